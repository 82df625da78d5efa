"""A transcript's taps are hashed side by side, and stand in the order in which a step made them."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from bitwitness.kernels import hashing
from bitwitness.ledger import commitments, jcs, merkle
from bitwitness.trainer.auditing.transcript import Transcript
from bitwitness.trainer.hashing import commit


@pytest.fixture(params=["kernels", "hashlib"])
def _hashed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "hashlib":
        monkeypatch.setattr(hashing, "available", lambda: False)
    elif not hashing.available():
        pytest.skip("no SHA instructions")


@pytest.mark.usefixtures("_hashed_by")
def test_taps_added_at_once_are_those_added_one_by_one() -> None:
    """The first are long and the last short, so that they would come out in another order."""
    rng = np.random.default_rng(0)
    sizes = (700_000, 300_000, 40_000, 5, 4, 3, 2, 1)
    taps = [(f"tap.{n}", rng.standard_normal(size, np.float32)) for n, size in enumerate(sizes)]
    together, apart = (Transcript(bytes(32), "aa" * 32) for _ in range(2))
    together.add(3, iter(taps))
    for tap in taps:
        apart.add(3, [tap])
    key = hashlib.sha256(b"bitwitness/transcript/v1\x00" + bytes(32) + bytes.fromhex("aa" * 32)).digest()
    macs = [(name, hmac.digest(key, values.tobytes(), "sha256").hex()) for name, values in taps]
    leaves = [merkle.leaf_hash(jcs.encode({"mac": mac, "step": 3, "tap": name})) for name, mac in macs]
    assert together.hashes == apart.hashes == leaves


def test_all_taps_are_read_before_the_buffers_change() -> None:
    zeros, changing = np.zeros(1_000_000, np.float32), np.zeros(1_000_000, np.float32)
    expected, transcript = (Transcript(bytes(32), "aa" * 32) for _ in range(2))
    expected.add(1, [(f"tap.{n}", zeros) for n in range(4)])
    transcript.add(1, [(f"tap.{n}", changing) for n in range(4)])
    changing.fill(1.0)
    assert transcript.hashes == expected.hashes


@pytest.mark.usefixtures("_hashed_by")
def test_commitments_are_those_that_verifiers_compute() -> None:
    rng = np.random.default_rng(1)
    shapes = {"b": (300, 200), "a": (7,), "c": (16384,), "d": (16385,), "e": (1,)}
    views = {name: ("F32", shape, rng.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
    assert commit("weights/1", views) == commitments.tensors("weights/1", views)
