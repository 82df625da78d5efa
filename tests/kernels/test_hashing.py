"""Hashes of many buffers at once are hashlib's, whatever the lengths, and whoever shares a core with whom."""

import hashlib
import hmac
import os
import subprocess
import sys

import numpy as np
import pytest

from bitwitness.kernels import _native, hashing
from bitwitness.kernels.errors import KernelError

pytestmark = pytest.mark.skipif(not hashing.available(), reason="no SHA instructions")

# Every place in which a message can end in a block, and long ones beside short ones.
LENGTHS = [*range(200), 4095, 4096, 65535, 65536, 65537, 200_000, 3, 1_000_003, 64]


@pytest.fixture(scope="module")
def buffers() -> list[memoryview]:
    data = np.random.default_rng(5).bytes(max(LENGTHS) + len(LENGTHS))
    return [memoryview(data)[n : n + length] for n, length in enumerate(LENGTHS)]  # at any alignment


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [0, 1, 32, 63, 64])
def test_macs(buffers: list[memoryview], threads: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_threads", lambda: threads)
    key = bytes(range(length))
    assert hashing.macs(key, buffers) == [hmac.digest(key, buffer, "sha256") for buffer in buffers]


@pytest.mark.parametrize("chunk", [1, 55, 56, 62, 63, 64, 65, 119, 1000, 65536, 1 << 40])
def test_chunk_leaves(buffers: list[memoryview], chunk: int) -> None:
    some = [buffer for buffer in buffers if buffer.nbytes <= 1000 * chunk]
    expected = [
        [hashlib.sha256(b"\x00" + buffer[at : at + chunk]).digest() for at in range(0, buffer.nbytes, chunk)]
        for buffer in some
    ]
    assert hashing.chunk_leaves(some, chunk) == expected


def test_what_cannot_be_hashed_is_refused() -> None:
    strided = np.zeros((4, 4), np.float32)[:, ::2]
    for wrong in (lambda: _native.macs(bytes(65), [], 1), lambda: _native.macs(b"", [], 0),
                  lambda: _native.macs(b"", [strided], 1), lambda: _native.chunk_leaves([], 0, 1)):  # fmt: skip
        with pytest.raises(KernelError):
            wrong()
    assert hashing.macs(b"key", []) == [] == hashing.chunk_leaves([], 64)


def test_the_generic_build_leaves_it_to_hashlib() -> None:
    code = "from bitwitness.kernels import hashing; print(hashing.available())"
    environment = {**os.environ, "BITWITNESS_ISA": "generic"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
