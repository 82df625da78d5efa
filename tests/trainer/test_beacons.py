"""Audits whose sample nobody could pick: announced, cosigned or after a public round, then drawn and replayed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bitwitness.ledger.entry import drand
from bitwitness.ledger.entry.beacon import round_randomness, sample_seed
from bitwitness.ledger.entry.drand import Source
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError, EntryError
from bitwitness.ledger.note import Verifier
from bitwitness.ledger.project import Project
from bitwitness.ledger.trust import load_trust
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.ledger.witnessing.witness import Witness
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.beacons import BeaconPending
from bitwitness.trainer.auditing.coverage import open_coverage
from bitwitness.trainer.run import train

from ..ledger.beacon_sample import WITNESS, cosign
from ..ledger.witness_process import WitnessProcess
from .conftest import small_config


@pytest.fixture
def trained(project: Project) -> Project:
    train(project, small_config(steps=4), threads=2)
    return project


def pin(project: Project, line: str) -> None:
    text = project.trust_path.read_text().split("\n[witnesses]")[0]
    project.trust_path.write_text(f'{text}\n[witnesses]\npolicy = """\n{line}quorum none\n"""\n')


def pin_silent_witness(project: Project) -> None:
    """One that has no address: its cosignatures come by file."""
    pin(project, f"witness w1 {Verifier('w1.example', WITNESS.public, 0x04).vkey}\n")


def cosign_now(project: Project, folder: Path) -> None:
    """What the log and the witness do by `ledger checkpoint --request` and `ledger witness sign`."""
    witness = Witness("w1.example", WITNESS, [load_trust(project.trust_path).log], folder / "w1.db")
    with project.open_ledger(writable=True) as ledger:
        signed = ledger.sign_checkpoint(project.signer("log"))
        last = witness.newest(ledger.origin)
        proof = ledger.consistency_proof(last[0], ledger.size) if last else []
        old = last[0] if last else 0
        lines = "".join(f"{__import__('base64').b64encode(node).decode()}\n" for node in proof)
        answer = witness.add_checkpoint(f"old {old}\n{lines}\n{signed}")
        assert answer.status == 200, answer
        ledger.keep_checkpoint(signed + answer.body)
    witness.close()


def predicate(project: Project, index: int) -> dict[str, object]:
    with project.open_ledger() as ledger:
        found: dict[str, object] = open_envelope(ledger.entry(index)).statement["predicate"]
        return found


def sound(project: Project) -> bool:
    report = verify_ledger(project.ledger_path, load_trust(project.trust_path), processes=1)
    return report.complete and not report.faults


def test_a_witness_gives_the_beacon(trained: Project, tmp_path: Path) -> None:
    server = WitnessProcess(tmp_path / "w", "w1", load_trust(trained.trust_path).log, 5)
    pin(trained, server.line)
    try:
        report = audit(trained, "r", samples=1, beacon="witness:w1", threads=2)
    finally:
        server.stop()
    assert (report.result, report.basis, report.open_intents) == ("match", "beacon", ())
    said = predicate(trained, report.entry)
    given = said["beacon"]["cosignature"]  # type: ignore[index]
    value = given["time"].to_bytes(8, "big") + bytes.fromhex(given["signature"])
    assert said["seed"] == sample_seed(bytes.fromhex(str(said["intent"])), value).hex()
    assert given["size"] == report.entry  # the checkpoint that the intent ended
    assert sound(trained)
    with trained.open_ledger() as ledger:
        assert open_coverage(trained, ledger, "r").covered == 4
    pin_silent_witness(trained)  # a policy that knows another witness only
    with trained.open_ledger() as ledger:
        found = open_coverage(trained, ledger, "r")
    assert found.covered == 0 and "no witness of the policy" in found.refused[0][1]


def test_the_cosignature_may_come_later(trained: Project, tmp_path: Path) -> None:
    pin_silent_witness(trained)
    cosign_now(trained, tmp_path)  # of before the intent: worth nothing to it
    with pytest.raises(BeaconPending, match=r"waits for its beacon.*--intent") as pending:
        audit(trained, "r", samples=1, beacon="witness:w1", threads=2)
    index = pending.value.intents[0]
    with pytest.raises(BeaconPending):
        audit(trained, "r", intent=index, threads=2)
    cosign_now(trained, tmp_path)
    report = audit(trained, "r", intent=index, threads=2)
    assert (report.basis, report.result, report.open_intents) == ("beacon", "match", ())
    assert sound(trained)
    with pytest.raises(BitwitnessError, match="no open audit-intent"):
        audit(trained, "r", intent=index, threads=2)


def test_the_ledger_takes_no_audit_with_another_beacon(trained: Project, tmp_path: Path) -> None:
    from bitwitness.ledger.entry.entries import statement
    from bitwitness.ledger.entry.envelope import seal

    pin_silent_witness(trained)
    with pytest.raises(BeaconPending) as pending:
        audit(trained, "r", samples=1, beacon="witness:w1", threads=2)
    cosign_now(trained, tmp_path)
    report = audit(trained, "r", intent=pending.value.intents[0], threads=2)
    said = predicate(trained, report.entry)
    with pytest.raises(BeaconPending) as second:
        audit(trained, "r", samples=1, beacon="witness:w1", threads=2)
    auditor = trained.signer("auditor")
    with trained.open_ledger(writable=True) as ledger:
        leaves = [ledger.leaf_hash(number) for number in range(ledger.size)]
        leaf, index = leaves[second.value.intents[0]], second.value.intents[0]
        late = cosign(ledger.origin, leaves, index, int(time.time()) + 90_000)
        for given in (said["beacon"], {"kind": "cosignature", "cosignature": late.to_json()}):
            seed = sample_seed(leaf, late.beacon).hex()
            forged = {**said, "intent": leaf.hex(), "beacon": given, "seed": seed}
            with pytest.raises(EntryError, match="its beacon"):
                ledger.append([seal(statement("audit", None, forged), auditor)])


def test_a_round_after_the_intent(trained: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time())
    monkeypatch.setattr("bitwitness.ledger.entry.drand.SOURCES", {"test": Source("00" * 96, now - 1000, 10)})
    checked: list[tuple[str, int, bytes]] = []
    for module in ("trainer.auditing.beacons", "ledger.entry.audit_rules"):
        monkeypatch.setattr(f"bitwitness.{module}.verify_round", lambda *args: checked.append(args))
    with pytest.raises(BitwitnessError, match="needs a witness"):
        audit(trained, "r", beacon="test", threads=2)
    pin_silent_witness(trained)
    for text, reason in (("test:5", "that round is out"), ("nowhere", "no public randomness"), ("a b", "give witness")):
        with pytest.raises(BitwitnessError, match=reason):
            audit(trained, "r", beacon=text, threads=2)
    with pytest.raises(BeaconPending) as pending:
        audit(trained, "r", samples=1, beacon="test", threads=2)
    intent = pending.value.intents[0]
    number = predicate(trained, intent)["beacon"]["round"]  # type: ignore[index]
    assert now + 50 < drand.round_time(drand.SOURCES["test"], number) <= now + 80
    cosign_now(trained, tmp_path)
    with pytest.raises(BeaconPending, match=f"round {number} of test, due .*--round FILE"):
        audit(trained, "r", intent=intent, threads=2)
    file = json.dumps({"round": number, "signature": "ab" * 48}).encode()
    report = audit(trained, "r", intent=intent, round_file=file, threads=2)
    said = predicate(trained, report.entry)
    randomness = round_randomness(bytes.fromhex("ab" * 48))
    assert said["seed"] == sample_seed(bytes.fromhex(str(said["intent"])), randomness).hex()
    assert sound(trained)
    with trained.open_ledger() as ledger:
        assert open_coverage(trained, ledger, "r").covered == 4
    assert checked == [("test", number, bytes.fromhex("ab" * 48))] * 2
    # Had the intent been seen only after the round, the auditor could have known it.
    monkeypatch.setattr("bitwitness.ledger.entry.drand.SOURCES", {"test": Source("00" * 96, now - 5000, 10)})
    with trained.open_ledger() as ledger:
        assert "nobody saw its intent before" in open_coverage(trained, ledger, "r").refused[0][1]


def test_steps_by_hand_have_no_beacon(trained: Project) -> None:
    with pytest.raises(BitwitnessError, match="chosen by hand"):
        audit(trained, "r", steps=(1, 2), beacon="witness:w1", threads=2)
    with pytest.raises(BitwitnessError, match="names no witness 'w9'; it has none"):
        audit(trained, "r", beacon="witness:w9", threads=2)
