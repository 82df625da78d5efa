"""Beacons: every way in which an audit's sample can be another than its intent fixed is refused."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bitwitness.ledger import keys, merkle, note
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry import beacon, drand
from bitwitness.ledger.entry.beacon import BeaconWrong, Cosignature, check_seed, find_cosignature, sample_seed
from bitwitness.ledger.entry.drand import CannotVerify, RoundUnusable, read_round, round_after, round_time, verify_round

from .beacon_sample import WITNESS, cosign

ORIGIN = "log.example/1"
LEAVES = [merkle.leaf_hash(bytes([number])) for number in range(9)]
INDEX, ANSWER = 5, 12
TIME = "2026-01-02T03:04:05Z"
AT = beacon.seconds(TIME)
OTHER = keys.Signer.from_seed("witness", bytes([78]) * 32)
# Rounds 1000 and 1001 of quicknet, as the network answered them.
SIGNATURE = bytes.fromhex(
    "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"
)
NEXT = bytes.fromhex("b33bf3667cbd5a82de3a24b4e0e9fe5513cc1a0e840368c6e31f5fcfa79bea03f73896b25883abf2853d10337fb8fa41")
RANDOMNESS = "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd"


def intent(**named: Any) -> dict[str, Any]:
    return {"beacon": named or {"kind": "cosignature", "witness": WITNESS.keyid}, "time": TIME}


def audit(given: Cosignature, **changes: Any) -> dict[str, Any]:
    seed = sample_seed(LEAVES[INDEX], given.beacon).hex()
    made = {"kind": "cosignature", "cosignature": given.to_json()}
    return {"basis": "beacon", "beacon": made, "seed": seed, **changes}


def check(made: dict[str, Any], said: dict[str, Any] | None = None, answer: int = ANSWER) -> None:
    check_seed(made, said or intent(), leaf=LEAVES[INDEX], index=INDEX, answer=answer, origin=ORIGIN)


def test_a_cosignature_after_the_intent_is_a_beacon() -> None:
    for size in (6, 7, 9):
        for delay in (-600, 0, 86_400):
            given = cosign(ORIGIN, LEAVES[:size], INDEX, AT + delay)
            check(audit(given))
            assert Cosignature.from_json(json.loads(json.dumps(given.to_json()))) == given


GOOD = cosign(ORIGIN, LEAVES, INDEX, AT + 5)
NO_KEY = {**GOOD.to_json(), "public": "00" * 32}
WRONG: list[tuple[str, Callable[[], dict[str, Any]]]] = [
    ("older", lambda: audit(cosign(ORIGIN, LEAVES[:5], INDEX, AT + 5))),
    ("older", lambda: audit(replace(GOOD, size=5))),
    ("does not hold the intent", lambda: audit(cosign(ORIGIN, LEAVES[::-1], INDEX, AT + 5))),
    ("does not hold the intent", lambda: audit(replace(GOOD, proof=GOOD.proof[:-1]))),
    ("not a cosignature", lambda: audit(replace(GOOD, time=AT + 6))),
    ("not a cosignature", lambda: audit(replace(GOOD, signature=bytes(64)))),
    ("not a cosignature", lambda: audit(cosign("log.example/2", LEAVES, INDEX, AT + 5))),
    ("not a cosignature", lambda: audit(replace(GOOD, key=OTHER.public))),
    ("another witness", lambda: audit(cosign(ORIGIN, LEAVES, INDEX, AT + 5, OTHER))),
    ("older than its intent", lambda: audit(cosign(ORIGIN, LEAVES, INDEX, AT - 601))),
    ("after its intent", lambda: audit(cosign(ORIGIN, LEAVES, INDEX, AT + 86_401))),
    ("has none", lambda: {"basis": "self-chosen", "seed": sample_seed(LEAVES[INDEX]).hex()}),
    ("by the seed", lambda: audit(GOOD, seed=sample_seed(LEAVES[INDEX]).hex())),
    ("by the seed", lambda: audit(GOOD, seed=sample_seed(LEAVES[4], GOOD.beacon).hex())),
    ("names no key", lambda: audit(GOOD, beacon={**audit(GOOD)["beacon"], "cosignature": NO_KEY})),
    ("of the kind round", lambda: audit(GOOD, beacon={**audit(GOOD)["beacon"], "kind": "round"})),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "made"), WRONG, ids=[f"{n}-{reason}" for n, (reason, _) in enumerate(WRONG)])
def test_what_is_no_beacon_is_refused(reason: str, made: Callable[[], dict[str, Any]]) -> None:
    with pytest.raises(BeaconWrong, match=reason):
        check(made())


def test_a_cosignature_from_after_the_audit_is_refused() -> None:
    check(audit(GOOD), answer=9)
    with pytest.raises(BeaconWrong, match="the audit itself is number 8"):
        check(audit(GOOD), answer=8)


def test_without_a_beacon_the_seed_is_that_of_the_intent() -> None:
    said = intent(kind="none")
    check({"basis": "self-chosen", "seed": sample_seed(LEAVES[INDEX]).hex()}, said)
    for made in (audit(GOOD), {"basis": "self-chosen", "seed": "00" * 32}):
        with pytest.raises(BeaconWrong, match="by the seed"):
            check(made, said)


def test_the_first_cosignature_counts() -> None:
    def signed(size: int, *times: int, signer: keys.Signer = WITNESS, origin: str = ORIGIN) -> str:
        body = Checkpoint(origin, size, merkle.root(LEAVES[:size])).format()
        lines = [note.cosignature_line(body, "w.example", signer, time) for time in times]
        return note.Note(body, tuple(lines)).format()

    forged = signed(7, 50).replace("w.example", "other.example")
    notes = [
        signed(5, 100),
        signed(6, 400),
        signed(8, 300, 350),
        signed(7, 10, signer=OTHER),
        signed(7, 20, origin="log.example/2"),
        forged,
    ]
    found = find_cosignature(notes, ORIGIN, WITNESS.public, INDEX)
    assert found is not None and (found[0].size, found[1]) == (8, 300)
    assert find_cosignature(notes[:1], ORIGIN, WITNESS.public, INDEX) is None


def test_a_round_gives_its_randomness() -> None:
    said = intent(kind="round", source="quicknet", round=1000)
    given = {"randomness": RANDOMNESS, "signature": SIGNATURE.hex()}
    made = audit(GOOD, seed=sample_seed(LEAVES[INDEX], bytes.fromhex(RANDOMNESS)).hex())
    made["beacon"] = {"kind": "round", "cosignature": GOOD.to_json(), "round": given}
    check(made, said)
    made["beacon"]["round"] = {**given, "signature": NEXT.hex()}
    with pytest.raises(BeaconWrong, match="not the SHA-256"):
        check(made, said)
    made["beacon"]["round"], made["seed"] = given, sample_seed(LEAVES[INDEX], GOOD.beacon).hex()
    with pytest.raises(BeaconWrong, match="by the seed"):
        check(made, said)


def test_rounds_have_a_time() -> None:
    source = drand.SOURCES["quicknet"]
    assert round_time(source, 1000) == 1692806364
    for number in (1, 2, 1000):
        due = round_time(source, number)
        assert round_after(source, due - 1) == number
        assert round_after(source, due) == number + 1
    assert round_after(source, 0) == 1


def test_a_file_of_a_round() -> None:
    answer = {"round": 1000, "randomness": RANDOMNESS, "signature": SIGNATURE.hex()}
    assert read_round(json.dumps(answer).encode(), 1000) == SIGNATURE
    for wrong, reason in (
        (b"", "not a round"),
        (b"[" * 5000, "not a round"),
        (json.dumps(answer).encode().replace(b'{"round"', b'{"round": 1000, "round"'), "not a round"),
        (json.dumps({**answer, "round": True}).encode(), "not a round"),
        (json.dumps({**answer, "round": 999}).encode(), "holds round 999"),
        (json.dumps({**answer, "signature": SIGNATURE.hex().upper()}).encode(), "hex digits"),
        (json.dumps({**answer, "randomness": "00" * 32}).encode(), "not the SHA-256"),
    ):
        with pytest.raises(RoundUnusable, match=reason):
            read_round(wrong, 1000)


def test_the_network_signed_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("py_ecc") is None:
        pytest.skip("py_ecc is not installed")
    limit = sys.getrecursionlimit()
    verify_round("quicknet", 1000, SIGNATURE)
    assert sys.getrecursionlimit() == limit  # which py_ecc raises, and deep JSON would crash the process
    infinity = bytes([0xC0]) + bytes(47)
    for signature in (NEXT, infinity, bytes(48), bytes(96), b"\xff" * 48):
        with pytest.raises(BeaconWrong, match="not signed by quicknet"):
            verify_round("quicknet", 1000, signature)
    with pytest.raises(CannotVerify, match="no public randomness source"):
        verify_round("nobody", 1000, SIGNATURE)
    monkeypatch.setitem(sys.modules, "py_ecc.bls.hash_to_curve", None)
    with pytest.raises(CannotVerify, match="py_ecc"):
        verify_round("quicknet", 1000, SIGNATURE)
