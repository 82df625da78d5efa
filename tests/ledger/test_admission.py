"""What the ledger takes: nothing that its verifier would refuse ever after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bitwitness.ledger import keys, merkle
from bitwitness.ledger.entry.key_entries import enrolment, revocation
from bitwitness.ledger.errors import BitwitnessError, EntryError
from bitwitness.ledger.sqlite.admission import SignerNotEnrolled
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.verify_ledger import verify_ledger

from . import small_ledger as small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with small.create(path) as made:
        yield made


def test_a_root_key_does_not_end_before_what_it_signs(ledger: Ledger, path: Path) -> None:
    size = ledger.size
    heir = keys.Signer.from_seed("root", b"\x78" * 32)
    for wrong in (small.revocation("root", 0), small.revocation("root", size), small.rotation("root", heir)):
        with pytest.raises(EntryError, match="cannot end before it"):
            ledger.append([wrong])
    ledger.append([small.revocation("root", size + 1)])
    with pytest.raises(SignerNotEnrolled, match="revoked"):
        ledger.append([small.rotation("auditor", keys.Signer.from_seed("auditor", b"\x79" * 32))])
    assert not verify_ledger(path, None).faults


def test_another_root_key_may_end_the_first(ledger: Ledger, path: Path) -> None:
    other = keys.Signer.from_seed("root", b"\x78" * 32)
    ledger.append([enrolment(small.SIGNERS["root"], other.public, "root", time=small.TIME)])
    ledger.append([revocation(other, small.SIGNERS["root"].public, "root", 0, time=small.TIME)])
    report = verify_ledger(path, None)
    assert not report.faults
    assert report.disowned == 7


def test_a_log_key_does_not_end_before_what_it_signed(ledger: Ledger, path: Path) -> None:
    log, root = small.SIGNERS["log"], small.SIGNERS["root"]
    ledger.sign_checkpoint(log)
    signed = ledger.size
    for wrong in (0, signed - 1):
        with pytest.raises(EntryError, match=f"a checkpoint of {signed} entries"):
            ledger.append([small.revocation("log", wrong)])
    ledger.append([small.revocation("log", signed)])
    with pytest.raises(BitwitnessError, match="has ended"):
        ledger.sign_checkpoint(log)
    heir = keys.Signer.from_seed("log", b"\x7a" * 32)
    with pytest.raises(EntryError, match="enrol the new key instead"):
        ledger.append([small.rotation("log", heir)])
    with pytest.raises(BitwitnessError, match="is not enrolled"):
        ledger.sign_checkpoint(heir)
    ledger.append([enrolment(root, heir.public, "log", time=small.TIME)])
    ledger.sign_checkpoint(heir)
    assert not verify_ledger(path, None).faults


def broken_runs() -> dict[str, list[tuple[str, small.Json]]]:
    """What follows a genesis and contradicts what is before it."""
    other = small.state(1, "other")
    audit = {"observed": {"time": small.TIME}}
    return {
        "a step is left out": [("step", small.step(2))],
        "a step comes twice": [("step", small.step(1)), ("step", small.step(1))],
        "a state is not its step's": [("step", small.step(1)), ("state", {"step": 1, "bytes": 1, **other})],
        "an end is not its step's": [("step", small.step(1)), ("end", {"step": 1, **other, **audit})],
        "tokens are made up": [("step", {**small.step(1), "computed": {**small.step(1)["computed"], "tokens": 7}})],
        "a halt is of another step": [("halt", {"step": 9, "state": "00" * 32, "reason": "error", **audit})],
        "a resume is from no state": [
            ("step", small.step(1)),
            ("resume", {"step": 1, "from": 1, "state": small.state(1)["state"], **audit}),
        ],
    }


@pytest.mark.parametrize("name", broken_runs())
@pytest.mark.parametrize("read_again", [False, True])
def test_nothing_gets_in_that_the_verifier_refuses(path: Path, name: str, read_again: bool) -> None:
    entries = small.chain("demo", broken_runs()[name])
    before = [*small.key_entries(), small.DATASET, *entries[:-1]]
    small.raw_ledger(path.with_name("raw.db"), [*before, entries[-1]])
    assert verify_ledger(path.with_name("raw.db"), small.TRUST, processes=1).faults
    with small.create(path) as ledger:
        ledger.append(entries[:-1])
        if not read_again:
            for _ in range(2):  # what was refused leaves no trace
                with pytest.raises(EntryError):
                    ledger.append(entries[-1:])
    with Ledger.open(path, writable=True) as again:
        with pytest.raises(EntryError):
            again.append(entries[-1:])
        assert again.size == len(before)
    assert not verify_ledger(path, small.TRUST, processes=1).faults


def test_datasets_origins_and_releases_are_those_of_the_ledger(ledger: Ledger, path: Path) -> None:
    used = small.genesis()["datasets"][0]
    genesis = {**small.genesis(), "seq": 0, "history": {"type": "history/1", "size": 0, "root": merkle.root([]).hex()}}
    for wrong in (
        {"origin": "example.org/other"},
        {"datasets": [{**used, "dataset": small.tree("dataset/1", 3, "others")}]},
    ):
        with pytest.raises(EntryError):
            ledger.append([small.seal("run", {**genesis, **wrong})])
    writer = small.begin(ledger)
    writer.append("step", small.step(1))
    made = small.state(1)
    release = {
        "model": "m",
        "version": 1,
        "run": writer.run,
        "step": 1,
        "state": made["state"],
        "weights": made["weights"],
        "files": [{"name": "model.safetensors", "sha256": "00" * 32, "bytes": 1}],
        "dtype": "F32",
        "time": small.TIME,
    }
    for wrong in ({"step": 2}, {"state": "11" * 32}, {"weights": small.tree("weights/1", 38, "others")}):
        with pytest.raises(EntryError, match="did not make this state"):
            ledger.append([small.seal("release", {**release, **wrong})])
    ledger.append([small.seal("release", release)])
    intent = {
        "run": writer.run,
        "size": ledger.size,
        "root": ledger.root().hex(),
        "first": 0,
        "last": 1,
        "samples": 1,
        "beacon": {"kind": "none"},
        "time": small.TIME,
    }
    for wrong in ({"size": ledger.size + 1}, {"last": 2}, {"size": 3}, {"root": "11" * 32}):
        with pytest.raises(EntryError):
            ledger.append([small.seal("audit-intent", {**intent, **wrong})])
    ledger.append([small.seal("audit-intent", intent)])
    assert not verify_ledger(path, small.TRUST, processes=1).faults
