"""Keys that were revoked, or replaced: what they signed before stands only where witnesses saw it before."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from bitwitness.ledger import keys, note
from bitwitness.ledger.checkpoint import parse_checkpoint
from bitwitness.ledger.entry.key_entries import enrolment, revocation, rotation
from bitwitness.ledger.trust import load_trust
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.ledger.witnessing.witness import Witness
from bitwitness.registry.bundles import bundle, status_file
from bitwitness.registry.bundles.collect import collect
from bitwitness.registry.bundles.evidence import EvidenceRefused
from bitwitness.registry.checks import Check
from bitwitness.registry.policy import load_policy
from bitwitness.registry.status import append_status
from bitwitness.registry.verify import examine

from .conftest import Registered

SIGNER = keys.Signer.from_seed("witness", bytes([71]) * 32)
VKEY = note.Verifier("w.example", SIGNER.public, note.COSIGNATURE).vkey


@pytest.fixture
def witness(registered: Registered, tmp_path: Path) -> Witness:
    path = registered.policy
    log = load_trust(path).log
    path.write_text(path.read_text() + f'\n[witnesses]\npolicy = """\nwitness w {VKEY}\nquorum w\n"""\n')
    return Witness("w.example", SIGNER, [log], tmp_path / "w.db")


def cosign(registered: Registered, witness: Witness, *others: keys.Signer) -> str:
    """Sign the tree, have it cosigned, store it."""
    with registered.project.open_ledger(writable=True) as ledger:
        signed = ledger.sign_checkpoint(registered.project.signer("log"), *others)
        size = int(signed.split("\n")[1])
        last = witness.newest(ledger.origin)
        proof = ledger.consistency_proof(last[0], size) if last else []
        from bitwitness.ledger.witnessing.witness_request import request_text

        answer = witness.add_checkpoint(request_text(last[0] if last else 0, proof, signed))
        assert answer.status == 200, answer
        ledger.keep_checkpoint(signed + answer.body)
        return signed + answer.body


def revoke(registered: Registered, role: str) -> None:
    root, public = registered.project.signer("root"), registered.project.signer(role).public
    with registered.project.open_ledger(writable=True) as ledger:
        ledger.append([revocation(root, public, role, ledger.size)])


def collected(registered: Registered, head: str) -> dict[str, Check]:
    """The verdict on the model with a bundle collected anew under this checkpoint."""
    old = bundle.parse((registered.folder / bundle.FILE_NAME).read_bytes())
    from bitwitness.ledger.commitments import TensorLeaf

    leaves = [TensorLeaf(leaf.name, leaf.dtype, tuple(leaf.shape), leaf.bytes, leaf.digest) for leaf in old.weights]
    (release,) = (item.index for item in old.entries if b"release/v1" in base64.b64decode(item.entry["payload"]))
    with registered.project.open_ledger() as ledger:
        made = collect(ledger, release, head, leaves)
    (registered.folder / bundle.FILE_NAME).write_bytes(made.encode())
    assert bundle.parse(made.encode()) == made
    return {check.name: check for check in examine(registered.folder, load_policy(registered.policy)).checks}


def test_witnessed_before_the_revocation(registered: Registered, witness: Witness) -> None:
    cosign(registered, witness)
    revoke(registered, "publisher")
    checks = collected(registered, cosign(registered, witness))
    assert (
        checks["signatures"].ok is True
        and "1 by keys since revoked were witnessed before" in checks["signatures"].detail
    )
    report = verify_ledger(registered.project.ledger_path, load_trust(registered.policy))
    assert not report.faults and report.disowned == 0


def test_not_witnessed_before_the_revocation(registered: Registered, witness: Witness) -> None:
    revoke(registered, "publisher")
    checks = collected(registered, cosign(registered, witness))
    assert checks["signatures"].ok is False and "no checkpoint before it" in checks["signatures"].detail
    report = verify_ledger(registered.project.ledger_path, load_trust(registered.policy))
    assert not report.faults and report.disowned == 1
    assert "1 no longer count" in report.checks[2].detail
    # A policy without witnesses takes the log's order as it is.
    registered.policy.write_text(registered.policy.read_text().split("\n[witnesses]")[0])
    assert registered.verdict()["signatures"].ok is True


def test_an_anchor_of_another_log_or_tree_is_refused(registered: Registered, witness: Witness) -> None:
    cosign(registered, witness)
    revoke(registered, "publisher")
    collected(registered, cosign(registered, witness))
    path = registered.folder / bundle.FILE_NAME
    made = bundle.parse(path.read_bytes())
    assert made.anchors is not None
    (anchor,) = made.anchors
    for wrong in (
        anchor.model_copy(update={"proof": anchor.proof[:-1]}),
        anchor.model_copy(update={"proof": ["00" * 32, *anchor.proof[1:]]}),
        anchor.model_copy(update={"checkpoint": anchor.checkpoint.replace("— w.example ", "— x.example ")}),
        anchor.model_copy(update={"checkpoint": anchor.checkpoint[:-8] + "AAAAAA=\n"}),
    ):
        path.write_bytes(made.model_copy(update={"anchors": [wrong]}).encode())
        assert registered.verdict()["signatures"].ok is False
    path.write_bytes(made.model_copy(update={"anchors": None}).encode())
    assert registered.verdict()["signatures"].ok is False


def test_a_trainer_key_that_is_replaced_needs_no_witness(registered: Registered, witness: Witness) -> None:
    root, old = registered.project.signer("root"), registered.project.signer("trainer")
    with registered.project.open_ledger(writable=True) as ledger:
        ledger.append([rotation(root, keys.generate("trainer").public, "trainer", old.keyid)])
    assert collected(registered, cosign(registered, witness))["signatures"].ok is True


def test_the_log_key_is_replaced(registered: Registered, witness: Witness) -> None:
    """The checkpoint that both keys signed is good for whoever pins the old one, the next for the new one only."""
    root, old = registered.project.signer("root"), registered.project.signer("log")
    new = keys.Signer.from_seed("log", bytes([72]) * 32)
    with registered.project.open_ledger(writable=True) as ledger:
        ledger.append([rotation(root, new.public, "log", old.keyid)])
    both = cosign(registered, witness, new)
    assert collected(registered, both)["signatures"].ok is True
    pinned = note.Verifier(load_trust(registered.policy).origin, new.public).vkey
    text = registered.policy.read_text()
    registered.policy.write_text(text.replace(load_trust(registered.policy).log.vkey, pinned))
    assert registered.verdict()["signatures"].ok is True
    with registered.project.open_ledger(writable=True) as ledger:
        ledger.append([revocation(root, registered.project.signer("auditor").public, "auditor", ledger.size)])
        later = ledger.sign_checkpoint(new)
    registered.policy.write_text(registered.policy.read_text().split("\n[witnesses]")[0])
    assert collected(registered, later)["signatures"].ok is True

    # Whoever pins the old key alone follows by the checkpoint that both signed, which the bundle holds.
    registered.policy.write_text(text.split("\n[witnesses]")[0])
    verdict = registered.verdict()
    assert verdict["checkpoint"].ok is True and verdict["signatures"].ok is True
    assert f"log key {new.keyid[:16]}…, which took the pinned one's place" in verdict["checkpoint"].detail
    path = registered.folder / bundle.FILE_NAME
    whole = bundle.parse(path.read_bytes())
    (anchor,) = whole.anchors or ()
    for case, forged in {
        "no checkpoint by both": None,
        "signed by the old key alone": _one_line(anchor, 0),
        "signed by the new key alone": _one_line(anchor, 1),
        "no part of the log": anchor.model_copy(update={"proof": ["00" * 32, *anchor.proof[1:]]}),
    }.items():
        path.write_bytes(whole.model_copy(update={"anchors": None if forged is None else [forged]}).encode())
        assert registered.verdict()["checkpoint"].ok is False, case
    assert "no checkpoint beyond it that both signed" in registered.refused("checkpoint")


def test_a_status_file_follows_the_log_key(registered: Registered) -> None:
    """Whoever pins a log key that was replaced believes a status of its heir, by the checkpoint that both signed."""
    root, old = registered.project.signer("root"), registered.project.signer("log")
    new, newer = (keys.Signer.from_seed("log", bytes([seed]) * 32) for seed in (74, 75))
    policy = load_policy(registered.policy)
    with registered.project.open_ledger(writable=True) as ledger:
        before = status_file.make(ledger, ledger.sign_checkpoint(old))
        assert before.anchors is None and b"anchors" not in before.encode()
        ledger.append([rotation(root, new.public, "log", old.keyid)])
        ledger.sign_checkpoint(new, old)
        ledger.append([rotation(root, newer.public, "log", new.keyid)])
        both = status_file.make(ledger, ledger.sign_checkpoint(newer, new))
        append_status(ledger, newer)
        later = status_file.make(ledger, ledger.sign_checkpoint(newer))
    for made, handovers in ((both, 1), (later, 2)):
        assert len(made.anchors or ()) == handovers
        assert status_file.open_status(made.encode(), policy).head.size == _size(made.checkpoint)
    first, second = later.anchors or ()
    registered.folder.parent.joinpath("status.json").write_bytes(later.encode())
    shown = examine(registered.folder, policy, status=registered.folder.parent / "status.json").checks
    assert {check.name: check.ok for check in shown}["newest-status"] is True
    for case, forged in {
        "no checkpoint by both": None,
        "the second is missing": [first],
        "the first is missing": [second],
        "signed by the old key alone": [_one_line(first, 1), second],
        "signed by the new key alone": [_one_line(first, 0), second],
        "no part of the log": [first.model_copy(update={"proof": ["00" * 32, *first.proof[1:]]}), second],
    }.items():
        with pytest.raises(EvidenceRefused, match="no checkpoint beyond it that both signed"):
            status_file.open_status(later.model_copy(update={"anchors": forged}).encode(), policy)
            pytest.fail(case)


def _size(note_: str) -> int:
    return parse_checkpoint(note.parse_note(note_).text).size


def test_a_log_key_that_the_root_enrols_beside_the_pinned_one_moves_nothing(registered: Registered) -> None:
    root, other = registered.project.signer("root"), keys.Signer.from_seed("log", bytes([73]) * 32)
    with registered.project.open_ledger(writable=True) as ledger:
        ledger.append([enrolment(root, other.public, "log")])
        signed = ledger.sign_checkpoint(other)
    assert collected(registered, signed)["checkpoint"].ok is False


def _one_line(anchor: bundle.Anchor, number: int) -> bundle.Anchor:
    """The anchor with one of its log keys' signatures only."""
    opened = note.parse_note(anchor.checkpoint)
    alone = note.Note(opened.text, opened.lines[number : number + 1]).format()
    return anchor.model_copy(update={"checkpoint": alone})
