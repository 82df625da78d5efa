"""The verifier of entries and proof files: keys, roles, and every byte of a proof."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs, keys, merkle, tlog_proof
from bitwitness.ledger.cli import proof as proof_command
from bitwitness.ledger.entry import envelope
from bitwitness.ledger.errors import EntryError, FoundWrong, SignatureError
from bitwitness.ledger.exchange import prove
from bitwitness.ledger.handover import ProvenEntry
from bitwitness.ledger.note import COSIGNATURE, Verifier, sign_note
from bitwitness.ledger.proof_file import extra_bytes, read_extra, verify_proof
from bitwitness.ledger.trust import Trust, TrustError, load_trust
from bitwitness.ledger.verify import (
    Check,
    Disowned,
    KeyRing,
    exit_code,
    verify_entry,
)

from . import small_ledger as small

SIGNERS = small.SIGNERS


def ring(*entries: bytes) -> KeyRing:
    made = KeyRing(SIGNERS["root"].public)
    for index, data in enumerate(entries):
        made.add(index, verify_entry(data, made, index).statement["predicate"])
    return made


# Keys -----------------------------------------------------------------------------------------------------


def test_keys_count_in_their_role_from_their_enrolment_on() -> None:
    keyring = ring(*small.key_entries())
    trainer = SIGNERS["trainer"].keyid
    assert keyring.signer(trainer, ("trainer",), 6).public == SIGNERS["trainer"].public
    for keyid, roles, index in (
        (trainer, ("auditor",), 6),
        (trainer, ("trainer",), 1),
        ("00" * 32, ("trainer",), 6),
    ):
        with pytest.raises(EntryError):
            keyring.signer(keyid, roles, index)


def test_only_the_pinned_root_enrols() -> None:
    other = keys.Signer.from_seed("root", b"\x31" * 32)
    foreign = small.enrolment(other, other.public, "root", time=small.TIME)
    with pytest.raises(EntryError, match="not enrolled"):
        verify_entry(foreign, KeyRing(SIGNERS["root"].public), 0)
    verify_entry(foreign, KeyRing(other.public), 0)


def test_a_key_is_enrolled_once() -> None:
    entries = small.key_entries()
    keyring = ring(*entries)
    with pytest.raises(EntryError, match="second time"):
        keyring.add(6, envelope.open_envelope(entries[2]).statement["predicate"])


def test_a_revocation_ends_a_key_from_its_index_on() -> None:
    keyring = ring(*small.key_entries(), small.revocation("trainer", 4))
    trainer = SIGNERS["trainer"].keyid
    keyring.signer(trainer, ("trainer",), 3)
    for index in (4, 5):  # before the revocation stood in the ledger: sound then, disowned now
        with pytest.raises(Disowned):
            keyring.signer(trainer, ("trainer",), index)
    with pytest.raises(EntryError, match="revoked from entry 4") as raised:
        keyring.signer(trainer, ("trainer",), 7)
    assert not isinstance(raised.value, Disowned)


def test_a_later_revocation_does_not_excuse_what_an_earlier_one_ended() -> None:
    """Entry 6 ends the trainer's key from 5 on, entry 8 from 3 on: what it signs at 7 never counted."""
    entries = [*small.key_entries(), small.revocation("trainer", 5)]
    entries += [small.revocation("witness", 0), small.revocation("trainer", 3)]
    keyring = ring(*entries)
    trainer = SIGNERS["trainer"].keyid
    for index in (3, 5):
        with pytest.raises(Disowned):
            keyring.signer(trainer, ("trainer",), index)
    for index in (6, 7, 8, 9):
        with pytest.raises(EntryError, match="is revoked") as raised:
            keyring.signer(trainer, ("trainer",), index)
        assert not isinstance(raised.value, Disowned)
    assert keyring.revocation(trainer) == 6
    assert pickle.loads(pickle.dumps(keyring)).revocation(trainer) == 6


def test_a_rotation_hands_over_to_a_key_of_the_same_role() -> None:
    fresh = keys.Signer.from_seed("trainer", b"\x56" * 32)
    keyring = ring(*small.key_entries(), small.rotation("trainer", fresh))
    old = SIGNERS["trainer"].keyid
    keyring.signer(fresh.keyid, ("trainer",), 7)
    keyring.signer(old, ("trainer",), 5)
    with pytest.raises(EntryError):
        keyring.signer(old, ("trainer",), 7)
    assert keyring.may_continue(fresh.keyid, old)
    assert not keyring.may_continue(old, fresh.keyid)
    again = pickle.loads(pickle.dumps(keyring))  # as it travels to worker processes
    assert [(key.keyid, key.until) for key in again] == [(key.keyid, key.until) for key in keyring]


def test_every_changed_byte_of_an_entry_is_caught() -> None:
    keyring = ring(*small.key_entries())
    verify_entry(small.DATASET, keyring, 6)
    for position in range(len(small.DATASET)):
        for flip in (1, 0x20):
            changed = bytearray(small.DATASET)
            changed[position] ^= flip
            with pytest.raises(FoundWrong):
                verify_entry(bytes(changed), keyring, 6)


def test_the_signature_must_be_by_the_stated_key() -> None:
    opened = envelope.open_envelope(small.DATASET)
    with pytest.raises(SignatureError):
        verify_entry(envelope.assemble(opened.payload, opened.keyid, bytes(64)), ring(*small.key_entries()), 6)


# Proof files ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> str:
    with small.with_run(tmp_path_factory.mktemp("proof") / "ledger.db", 12) as ledger:
        ledger.sign_checkpoint(SIGNERS["log"])
        return prove.prove(ledger, 9).format()


def answers(checks: list[Check]) -> dict[str, bool | None]:
    return {item.name: item.ok for item in checks}


def test_a_proof_stands_alone(proof: str) -> None:
    checks = verify_proof(proof, small.TRUST)
    assert answers(checks) == {"proof": True, "inclusion": True, "entry": True, "signature": True}
    assert exit_code(checks) == 0
    assert "trainer key" in checks[-1].detail


def test_every_changed_byte_of_a_proof_is_caught(proof: str) -> None:
    data = proof.encode("utf-8")
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        checks = verify_proof(bytes(changed), small.TRUST)
        assert exit_code(checks) == 1, f"byte {position} of the proof"
        assert {item.name for item in checks} == {"proof", "inclusion", "entry", "signature"}
    for length in range(0, len(data), 13):
        assert exit_code(verify_proof(data[:length], small.TRUST)) == 1


def test_a_proof_under_other_keys_is_refused(proof: str) -> None:
    other = keys.Signer.from_seed("log", b"\x41" * 32)
    trusts = {
        "inclusion": [
            Trust(small.ORIGIN, Verifier(small.ORIGIN, other.public), small.TRUST.root),
            Trust("example.org/other", Verifier("example.org/other", small.TRUST.log.key), small.TRUST.root),
        ],
        "signature": [Trust(small.ORIGIN, small.TRUST.log, SIGNERS["log"].public)],
    }
    for name, listed in trusts.items():
        for trust in listed:
            # A root key may enrol another one, which the proof of one entry does not tell: that accuses nobody.
            assert answers(verify_proof(proof, trust))[name] is (None if name == "signature" else False)
            assert exit_code(verify_proof(proof, trust)) == (2 if name == "signature" else 1)


def _with(proof: str, **changes: Any) -> str:
    opened = tlog_proof.parse(proof)
    fields = {name: getattr(opened, name) for name in ("index", "hashes", "checkpoint_note", "extra")} | changes
    return tlog_proof.Proof(**fields).format()


def test_a_proof_for_another_tree_size_or_index_is_refused(proof: str, tmp_path: Path) -> None:
    with small.with_run(tmp_path / "ledger.db", 12) as ledger:
        writer = small.RunWriter.open(ledger, SIGNERS["trainer"], str(ledger.find_run("demo")))
        writer.append_all([("step", small.step(number)) for number in range(13, 40)])
        note = ledger.sign_checkpoint(SIGNERS["log"])
        hashes = tuple(ledger.inclusion_proof(9, 12))
    for changed in (_with(proof, checkpoint_note=note), _with(proof, hashes=hashes), _with(proof, index=8)):
        assert answers(verify_proof(changed, small.TRUST))["inclusion"] is False


def test_the_signers_enrolment_must_be_in_the_same_tree(proof: str) -> None:
    entry, signer, _handovers = read_extra(tlog_proof.parse(proof).extra or b"")
    wrong = [
        {"index": signer.index + 1},
        {"hashes": signer.hashes[1:]},
        {"hashes": (bytes(32), *signer.hashes[1:])},
        {"data": small.key_entries()[3]},
        {"data": small.DATASET},
    ]
    for change in wrong:
        fields = {"data": signer.data, "index": signer.index, "hashes": signer.hashes} | change
        changed = _with(proof, extra=extra_bytes(entry, type(signer)(**fields)))
        assert answers(verify_proof(changed, small.TRUST)) == {
            "proof": True,
            "inclusion": True,
            "entry": True,
            "signature": False,
        }


def test_who_may_sign_an_entry_is_checked_in_a_log_that_takes_anything() -> None:
    """Whoever has the log's key alone can put any entry into its tree."""
    keyring = small.key_entries()
    auditor = small.seal("dataset", _predicate(small.DATASET), signer=SIGNERS["auditor"])
    enrolled = {role: keyring[number] for number, role in enumerate(keys.ROLES)}
    for entry, signer, later, said in (
        (small.DATASET, enrolled["trainer"], False, None),
        (auditor, enrolled["auditor"], False, "auditor key signed it, not a trainer"),
        (small.DATASET, enrolled["trainer"], True, "enrolled later"),
        (small.DATASET, enrolled["publisher"], False, ""),
        (small.DATASET, small.revocation("trainer", 9), False, "does not enrol a key"),
        (small.DATASET, small.DATASET, False, "does not enrol a key"),
    ):
        leaves = [merkle.leaf_hash(item) for item in ((entry, signer) if later else (signer, entry))]
        index = 0 if later else 1
        head = sign_note(small.Checkpoint(small.ORIGIN, 2, merkle.root(leaves)).format(), small.ORIGIN, SIGNERS["log"])
        extra = extra_bytes(entry, ProvenEntry(signer, 1 - index, (leaves[index],)))
        checks = verify_proof(tlog_proof.Proof(index, (leaves[1 - index],), head, extra).format(), small.TRUST)
        assert answers(checks) == {"proof": True, "inclusion": True, "entry": True, "signature": said is None}
        assert (said or "") in checks[-1].detail


def _predicate(data: bytes) -> dict[str, Any]:
    found = envelope.open_envelope(data).statement["predicate"]
    return {name: value for name, value in found.items() if name != "signer"}


def test_a_proof_without_its_entry_asks_for_it(proof: str) -> None:
    entry, *_others = read_extra(tlog_proof.parse(proof).extra or b"")
    bare = _with(proof, extra=None)
    checks = verify_proof(bare, small.TRUST)
    assert exit_code(checks) == 2 and "--entry" in checks[0].detail
    checks = verify_proof(bare, small.TRUST, entry)
    assert answers(checks) == {"proof": True, "inclusion": True, "entry": True, "signature": None}
    assert exit_code(checks) == 2
    assert answers(verify_proof(bare, small.TRUST, small.DATASET))["inclusion"] is False
    assert answers(verify_proof(proof, small.TRUST, small.DATASET))["proof"] is False


@pytest.mark.parametrize(
    "extra",
    [
        b"{}",
        b"[]",
        b"\xff",
        jcs.encode({"entry": "!", "signer": {"entry": "", "hashes": [], "index": 0}}),
        jcs.encode({"entry": "", "signer": {"entry": "", "hashes": [], "index": -1}}),
        jcs.encode({"entry": "", "signer": {"entry": "", "hashes": ["00"], "index": 1}}),
        jcs.encode({"entry": "", "signer": {"entry": "", "hashes": ["00" * 32] * 64, "index": 1}}),
        jcs.encode({"entry": "", "signer": 1}),
        jcs.encode({"entry": "", "handovers": [], "signer": {"entry": "", "hashes": [], "index": 0}}),
        jcs.encode({"entry": "", "handovers": [{}], "signer": {"entry": "", "hashes": [], "index": 0}}),
    ],
)
def test_malformed_extra_data_is_refused(proof: str, extra: bytes) -> None:
    assert answers(verify_proof(_with(proof, extra=extra), small.TRUST))["proof"] is False


def test_a_large_entry_is_handed_over_beside_its_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small.create(tmp_path / "ledger.db") as ledger:
        config = {"model": {f"n{number}": "x" * 190 for number in range(150)}}
        small.RunWriter.begin(ledger, SIGNERS["trainer"], small.genesis() | {"config": config})
        ledger.sign_checkpoint(SIGNERS["log"])
        made = prove.prove(ledger, 7)
        assert proof_command._tlog_proof(ledger, 7, made.checkpoint_note) == made.format()
        assert "entry 7 is too large to be in the file" in capsys.readouterr().err
        assert made.extra is not None and read_extra(made.extra).entry is None
        assert exit_code(verify_proof(made.format(), small.TRUST)) == 2
        assert exit_code(verify_proof(made.format(), small.TRUST, ledger.entry(7))) == 0
        assert exit_code(verify_proof(made.format(), small.TRUST, ledger.entry(6))) == 1


def test_the_other_formats_of_a_proof(tmp_path: Path) -> None:
    with small.with_run(tmp_path / "ledger.db", 12) as ledger:
        note = ledger.sign_checkpoint(SIGNERS["log"])
        size = ledger.size
        for index in range(size):
            plain = prove.json_proof(ledger, index, note)
            assert base64.b64decode(plain["entry"]) == ledger.entry(index)
            merkle.verify_inclusion(
                plain["index"],
                plain["size"],
                bytes.fromhex(plain["leaf_hash"]),
                [bytes.fromhex(item) for item in plain["hashes"]],
                bytes.fromhex(plain["root"]),
            )
        with pytest.raises(prove.NoCheckpoint):
            small.begin(ledger, "second")
            prove.covering_checkpoint(ledger, size)
        assert prove.sign_if_needed(ledger, size, SIGNERS["log"]) != note


# Trust ----------------------------------------------------------------------------------------------------


def test_trust_pins_a_log_and_a_root(tmp_path: Path) -> None:
    path = tmp_path / "trust.toml"
    root = small.TRUST.root.raw.hex()
    good = f'[log]\norigin = "{small.ORIGIN}"\nkey = "{small.TRUST.log.vkey}"\n[root]\nkey = "{root}"\n'
    path.write_text(good)
    assert load_trust(path) == small.TRUST
    witness = Verifier(small.ORIGIN, small.TRUST.log.key, COSIGNATURE)
    for text, says in (
        (good.replace("small", "other", 1), "its name is"),
        (good.replace(small.TRUST.log.vkey, witness.vkey), "a witness's key"),
    ):
        path.write_text(text)
        with pytest.raises(TrustError, match=says):
            load_trust(path)
    for text in ("", "x", "[log]", good.replace("root", "rot"), good.replace('key = "', 'key = "0'), "\x00"):
        path.write_text(text)
        with pytest.raises(TrustError) as raised:
            load_trust(path)
        assert "\n" not in str(raised.value)
    with pytest.raises(TrustError, match="no such file"):
        load_trust(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("[rulez]\nrequire_audit = true\n", "unknown key rulez"),
        ("[rules]\nrequire_audits = true\n", "unknown key rules.require_audits"),
        ("[rules]\nrequire_audit = 1\n", "rules.require_audit: must be true or false"),
        ("[rules]\nmin_version = true\n", "rules.min_version: must be a whole number"),
        ('[rules]\ntrainers = ["AB"]\n', "rules.trainers: must be a list"),
        ('[rules]\nlicenses = "MIT"\n', "rules.licenses: must be a list of texts"),
        ('[witnesses]\npolicies = "x"\n', "unknown key witnesses.policies"),
        ("[witnesses]\n", "the key witnesses.policy is missing"),
        ("name = 1\n", "unknown key root.name"),
        ("[[rules]]\n", "rules: must be a table"),
    ],
)
def test_a_policy_is_read_strictly_by_every_command(tmp_path: Path, more: str, says: str) -> None:
    path = tmp_path / "trust.toml"
    root = small.TRUST.root.raw.hex()
    good = f'[log]\norigin = "{small.ORIGIN}"\nkey = "{small.TRUST.log.vkey}"\n[root]\nkey = "{root}"\n'
    path.write_text(good + more)
    with pytest.raises(TrustError) as raised:
        load_trust(path)
    assert says in str(raised.value)


def test_a_note_of_another_kind_is_no_checkpoint(proof: str) -> None:
    changed = _with(proof, checkpoint_note=sign_note("hello\n", small.ORIGIN, SIGNERS["log"]))
    assert answers(verify_proof(changed, small.TRUST))["inclusion"] is False
