"""A log key that another one replaced: whoever pins the old one follows, in proofs, evidence, mirrors and pages."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import cli, handover, jcs, keys, merkle, note
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.datasette_plugin.server import make_datasette
from bitwitness.ledger.entry import envelope
from bitwitness.ledger.entry.key_entries import enrolment, revocation, rotation
from bitwitness.ledger.errors import BitwitnessError, EntryError, NoKnownSigner
from bitwitness.ledger.exchange.prove import handovers, prove
from bitwitness.ledger.follow.followed_keys import FollowedKeys, NotWhatWasSigned
from bitwitness.ledger.follow.mirror import ForkFound, Mirror
from bitwitness.ledger.follow.monitor import watch
from bitwitness.ledger.follow.remote import Remote, RemoteError
from bitwitness.ledger.handover import Handover, decode_handovers, encode_handovers, log_line
from bitwitness.ledger.proof_file import extra_bytes, read_extra, verify_proof
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.verify import exit_code
from bitwitness.ledger.verify_ledger import verify_ledger

from ..second_signature import second_line
from . import outside
from . import small_ledger as small
from .followed import LOG, Log, follow

PINNED = (small.TRUST.log.vkey, small.TRUST.root.raw)
SECOND, THIRD = (keys.Signer.from_seed("log", bytes([number]) * 32) for number in (0x61, 0x62))

STRANGER = keys.Signer.from_seed("root", bytes(32))


def replace_key(log: Log, old: keys.Signer, new: keys.Signer) -> None:
    """The root puts `new` in the place of `old`, and both sign."""
    key = {"algorithm": keys.ALGORITHM, "keyid": new.keyid, "public": new.public.raw.hex(), "role": "log"}
    with Ledger.open(log.path, writable=True) as ledger:
        ledger.append([small.seal("key", {"action": "rotate", "key": key, "replaces": old.keyid, "time": small.TIME})])
    log.publish(old, new)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log that was continued under a third key; the policy pins the first."""
    log = Log(tmp_path)
    replace_key(log, LOG, SECOND)
    log.append("under-the-second")
    log.publish(SECOND)
    replace_key(log, SECOND, THIRD)
    log.append("under-the-third")
    log.publish(THIRD)
    return log


def changed(log: Log, *handed: Handover) -> str:
    with Ledger.open(log.path) as ledger:
        made = prove(ledger, 9)
    held = read_extra(made.extra or b"")
    return dataclasses.replace(made, extra=extra_bytes(held.entry, held.signer, handed)).format()


def test_a_proof_under_a_later_key(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger.open(log.path) as ledger:
        proof, line = prove(ledger, 9), handovers(ledger, ledger.size)
    path = tmp_path / "9.tlog-proof"
    path.write_text(proof.format())
    assert cli.main(["verify", str(path), "--policy", str(log.policy)]) == 0
    assert f"signed by the log key {THIRD.keyid[:16]}…, which took the pinned one's place" in capsys.readouterr().out
    assert len(line) == 2 and changed(log, *line) == proof.format()
    outside.check_proof(proof.format().encode(), *PINNED)
    for fewer in (line[:1], line[1:], []):
        with pytest.raises(outside.Wrong):
            outside.check_proof(changed(log, *fewer).encode(), *PINNED)
    # Whoever pins a later key of the line needs no more than what leads on from there.
    second = dataclasses.replace(small.TRUST, log=note.Verifier(small.ORIGIN, SECOND.public))
    assert exit_code(verify_proof(changed(log, line[1]), second)) == 0
    assert exit_code(verify_proof(changed(log), dataclasses.replace(second, log=log_key(THIRD)))) == 0


def log_key(signer: keys.Signer) -> note.Verifier:
    return note.Verifier(small.ORIGIN, signer.public)


def test_pages_and_files_under_a_later_key(log: Log) -> None:
    datasette = make_datasette(log.path, public=True)

    def get(path: str) -> Any:
        return asyncio.run(datasette.client.get(path))

    served = get(f"/{handover.PATH}")
    assert served.status_code == 200 and served.headers["cache-control"] == "no-cache"
    assert served.content == (log.tiles / handover.PATH).read_bytes()
    assert [item.entry.index for item in decode_handovers(served.content)] == [12, 15]
    assert log.policy.parent == log.path.parent  # which pins the first key
    page = get("/entries/9").text
    assert "WRONG" not in page and "took the pinned one&#39;s place" in page


def test_a_log_without_handovers_serves_none(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert not (log.tiles / handover.PATH).exists()
    assert asyncio.run(make_datasette(log.path, public=True).client.get(f"/{handover.PATH}")).status_code == 404


def test_what_hands_no_key_over(log: Log) -> None:
    with Ledger.open(log.path) as ledger:
        first, second = handovers(ledger, ledger.size)
        head = Checkpoint(small.ORIGIN, ledger.size, ledger.root()).format()
    text = note.parse_note(first.note)
    enrolled = dataclasses.replace(first.entry, data=small.key_entries()[1], index=1)
    key = {"algorithm": keys.ALGORITHM, "keyid": SECOND.keyid, "public": SECOND.public.raw.hex(), "role": "log"}
    rotation = {"action": "rotate", "key": key, "replaces": LOG.keyid, "time": small.TIME}
    other = dataclasses.replace(first.entry, data=small.seal("key", rotation, signer=STRANGER))
    assert {
        item.name: item.ok for item in verify_proof(changed(log, dataclasses.replace(first, entry=other)), small.TRUST)
    }["inclusion"] is None  # the root may have let it: whoever has this file alone can not tell
    sealed = envelope.open_envelope(first.entry.data)
    unsigned = envelope.assemble(sealed.payload, small.TRUST.root.keyid, bytes(64))
    forged = dataclasses.replace(first.entry, data=unsigned)
    wrong = [
        (second,),
        (first,),
        (second, first),
        (dataclasses.replace(first, note=note.Note(text.text, text.lines[:1]).format()), second),
        (dataclasses.replace(first, note=note.Note(text.text, text.lines[1:]).format()), second),
        (dataclasses.replace(first, note=note.sign_note(head, small.ORIGIN, LOG)), second),
        (dataclasses.replace(first, entry=dataclasses.replace(first.entry, index=first.entry.index - 1)), second),
        (dataclasses.replace(first, entry=enrolled), second),
        (dataclasses.replace(first, entry=forged), second),
    ]
    for handed in wrong:
        assert {item.name: item.ok for item in verify_proof(changed(log, *handed), small.TRUST)}["inclusion"] is False


def test_a_key_signs_no_tree_beyond_its_end_nor_before_its_beginning(log: Log) -> None:
    with Ledger.open(log.path) as ledger:
        line = log_line(small.TRUST, handovers(ledger, ledger.size))
        ends = [key.until for key in line.keys]
        assert ends == [12, 15, None]
        for signer, sizes in ((LOG, (5, 12)), (SECOND, (13, 15)), (THIRD, (16, 18))):
            for size in range(1, ledger.size + 1):
                text = note.sign_note(Checkpoint(small.ORIGIN, size, ledger.root(size)).format(), small.ORIGIN, signer)
                if size <= sizes[1] and (size >= sizes[0] or signer is LOG):
                    assert line.open(text)[0].size == size
                else:
                    with pytest.raises(handover.NotHanded):
                        line.open(text)


def test_a_mirror_takes_no_tree_of_before_a_key_began(log: Log, tmp_path: Path) -> None:
    """Its file would hold a checkpoint that no verifier of whole ledgers accepts, for ever."""
    (log.tiles / "checkpoint").write_text(signed(log, 9, SECOND))
    mirror = Mirror(tmp_path / "copy", log.policy)
    with pytest.raises(NotWhatWasSigned, match="9 entries is signed by a log key that has ended, or came later"):
        follow(mirror, log)
    log.publish(THIRD)
    assert follow(mirror, log) == 18
    assert not verify_ledger(mirror.project.ledger_path, small.TRUST).faults


def signed(log: Log, size: int, *signers: keys.Signer) -> str:
    """A checkpoint of the first entries, whoever may sign it."""
    with Ledger.open(log.path) as ledger:
        body = Checkpoint(small.ORIGIN, size, ledger.root(size)).format()
    return note.Note(body, tuple(note.signature_line(body, small.ORIGIN, item) for item in signers)).format()


def proven(log: Log, size: int, index: int, *signers: keys.Signer) -> Handover:
    """The handover of a `key` entry by a checkpoint of this size."""
    with Ledger.open(log.path) as ledger:
        place = handover.ProvenEntry(ledger.entry(index), index, tuple(ledger.inclusion_proof(index, size)))
    return Handover(signed(log, size, *signers), place)


def test_the_entries_of_a_copy_say_who_took_whose_place(tmp_path: Path) -> None:
    """A key that the root revoked from before its replacement on hands nothing over, whatever a file says."""
    log = Log(tmp_path)
    with Ledger.open(log.path, writable=True) as ledger:
        at, root = ledger.size, small.SIGNERS["root"]
        ledger.append([enrolment(root, keys.generate("auditor").public, "auditor")])
        ledger.append([rotation(root, SECOND.public, "log", LOG.keyid)])
        ledger.append([revocation(root, LOG.public, "log", at)])
        made, size = proven(log, ledger.size, at + 1, SECOND, LOG), ledger.size
        assert handovers(ledger, size) == []
        ledger.sign_checkpoint(SECOND)  # nobody asks the old key
        text = signed(log, size, SECOND)
        assert log_line(small.TRUST, [made]).open(text)[0].size == size  # one file does not tell
        for handed in ([], [made]):
            with pytest.raises(NoKnownSigner):
                FollowedKeys(small.TRUST, ledger, [], handed).open(text, "x")
    report = verify_ledger(log.path, small.TRUST)
    assert not report.faults and report.covered == at


def test_a_copy_that_ends_between_two_handovers(tmp_path: Path) -> None:
    log = Log(tmp_path)
    mirror = Mirror(tmp_path / "copy", log.policy)
    replace_key(log, LOG, SECOND)
    assert follow(mirror, log) == 13
    replace_key(log, SECOND, THIRD)
    log.append("under-the-third")
    log.publish(THIRD)
    assert follow(mirror, log) == 16
    assert len(decode_handovers((mirror.folder / handover.PATH).read_bytes())) == 2


def test_a_copy_that_knows_a_revocation_follows_no_handover_after_it(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with Ledger.open(log.path, writable=True) as ledger:
        at, root = ledger.size, small.SIGNERS["root"]
        ledger.append([revocation(root, LOG.public, "log", at)])
    shutil.copyfile(log.path, tmp_path / "copy.db")
    with (
        Ledger.open(log.path, writable=True) as ledger,
        pytest.raises(EntryError, match="has ended at entry 12 already"),
    ):
        ledger.append([rotation(root, SECOND.public, "log", LOG.keyid)])
    made = under(at + 1, rotation(root, SECOND.public, "log", LOG.keyid), SECOND, LOG)
    with Ledger.open(tmp_path / "copy.db") as copy, pytest.raises(NotWhatWasSigned):
        FollowedKeys(small.TRUST, copy, [], [made]).open(made.note, "x")
    (tmp_path / "shorter").mkdir()
    shorter = Log(tmp_path / "shorter")
    with Ledger.open(shorter.path) as copy:
        assert FollowedKeys(small.TRUST, copy, [], [made]).open(made.note, "x")[0].size == 20


def under(index: int, data: bytes, *signers: keys.Signer) -> Handover:
    """The handover of an entry in a tree of 20 that holds anything else."""
    leaves = [merkle.leaf_hash(b"%d" % number) for number in range(20)]
    leaves[index] = merkle.leaf_hash(data)
    body = Checkpoint(small.ORIGIN, 20, merkle.root(leaves)).format()
    text = note.Note(body, tuple(note.signature_line(body, small.ORIGIN, item) for item in signers)).format()
    proof = merkle.inclusion_proof_from_nodes(index, 20, merkle.nodes_of(leaves))
    return Handover(text, handover.ProvenEntry(data, index, tuple(proof)))


def test_a_line_that_no_log_can_have(log: Log) -> None:
    """The root put a key back, or a later key in place of one that was not there yet."""
    with Ledger.open(log.path) as ledger:
        first, second = handovers(ledger, ledger.size)
    root = small.SIGNERS["root"]
    back = rotation(root, LOG.public, "log", SECOND.keyid, time=small.TIME)
    early = second.entry.data

    assert len(log_line(small.TRUST, [first, under(13, early, SECOND, THIRD)]).keys) == 3
    with pytest.raises(EntryError, match="takes a place a second time"):
        log_line(small.TRUST, [first, under(14, back, LOG, SECOND)])
    with pytest.raises(EntryError, match="entry 12 replaces a log key that came later"):
        log_line(small.TRUST, [first, under(12, early, SECOND, THIRD)])
    branch = under(14, rotation(root, THIRD.public, "log", LOG.keyid, time=small.TIME), LOG, THIRD)
    assert log_line(small.TRUST, [first, branch]) == log_line(small.TRUST, [first])  # a place is taken once


def test_two_signatures_of_one_key_hand_nothing_over(log: Log) -> None:
    with Ledger.open(log.path) as ledger:
        first, second = handovers(ledger, ledger.size)
    text = note.parse_note(first.note)
    (new,) = (line for line in text.lines if line.key_id == log_key(SECOND).key_id)
    twice = note.Note(text.text, (new, second_line(text.text, small.ORIGIN, bytes([0x61]) * 32, new)))
    assert len(note.open_note(twice.format(), [log_key(SECOND)]).verified) == 2
    with pytest.raises(EntryError, match="not signed by both keys"):
        log_line(small.TRUST, [dataclasses.replace(first, note=twice.format()), second])


def test_a_handover_by_another_root_accuses_nobody(log: Log, tmp_path: Path) -> None:
    """The pinned root may have let that one: of a proof, or evidence, it cannot be told."""
    with Ledger.open(log.path) as ledger:
        first, second = handovers(ledger, ledger.size)
    other = dataclasses.replace(first.entry, data=rotation(STRANGER, SECOND.public, "log", LOG.keyid))
    handed = [dataclasses.replace(first, entry=other), second]
    assert exit_code(verify_proof(changed(log, *handed), small.TRUST)) == 2
    (log.tiles / handover.PATH).write_bytes(encode_handovers(handed))
    with pytest.raises(RemoteError, match="not the pinned root key"):
        follow(Mirror(tmp_path / "copy", log.policy), log)
    (tmp_path / "copy" / handover.PATH).write_bytes(encode_handovers(handed))
    with pytest.raises(BitwitnessError, match=r"handovers is damaged.*remove it"):
        follow(Mirror(tmp_path / "copy", log.policy), log)


def test_evidence_against_a_later_key_stands_alone(log: Log, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "copy", log.policy)
    twin = log.twin("twin")
    assert follow(mirror, log) == 18
    twin.append("that", 2)
    twin.publish(THIRD)
    log.append("this", 2)
    log.publish(THIRD)
    assert follow(mirror, log) == 21
    with pytest.raises(ForkFound, match="two roots for 21 entries") as found:
        follow(mirror, twin)
    assert cli.main(["verify", str(found.value.path), "--policy", str(log.policy)]) == 1
    outside.check_fork(found.value.path.read_bytes(), *PINNED)
    assert len(outside.read_tiles(log.tiles, *PINNED)[0]) == 21
    (log.tiles / handover.PATH).unlink()
    with pytest.raises(outside.Wrong, match="a known signer"):
        outside.read_tiles(log.tiles, *PINNED)


def test_a_mirror_that_never_saw_both_signatures(log: Log, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "copy", log.policy)
    assert follow(mirror, log) == 18
    report = verify_ledger(mirror.project.ledger_path, small.TRUST)
    assert not report.faults and report.covered == 18 and report.checkpoints == 3
    log.append("later")
    log.publish(THIRD)
    (log.tiles / handover.PATH).unlink()  # what was asked for once is kept
    assert follow(mirror, log) == 20


def test_a_mirror_that_was_stopped_on_the_way(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(tmp_path / "copy", log.policy)
    monkeypatch.setattr(Ledger, "keep_checkpoint", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        follow(mirror, log)
    monkeypatch.undo()
    log.append("later")
    log.publish(THIRD)
    assert follow(mirror, log) == 20
    report = verify_ledger(mirror.project.ledger_path, small.TRUST)
    assert not report.faults and report.covered == 20


def test_what_leads_elsewhere_is_passed_over_and_not_kept(log: Log, tmp_path: Path) -> None:
    first, second = whole(log)
    stray = dataclasses.replace(second, note="no note at all\n")
    (log.tiles / handover.PATH).write_bytes(encode_handovers([stray, first, second, stray]))
    mirror = Mirror(tmp_path / "copy", log.policy)
    assert follow(mirror, log) == 18 and follow(mirror, log) == 18
    kept = mirror.folder / handover.PATH
    assert decode_handovers(kept.read_bytes()) == (first, second)
    for junk in (b"", b"x", encode_handovers([dataclasses.replace(first, note=second.note)])):
        kept.write_bytes(junk)
        with pytest.raises(BitwitnessError, match=r"handovers is damaged.*remove it"):
            follow(mirror, log)
    kept.unlink()
    assert follow(mirror, log) == 18


def test_a_handover_in_another_history_is_a_fork(log: Log, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Log(tmp_path / "other", 4)
    replace_key(other, LOG, SECOND)
    with Ledger.open(other.path) as ledger, Ledger.open(log.path) as own:
        (elsewhere,), (_first, second) = handovers(ledger, ledger.size), handovers(own, own.size)
    (log.tiles / handover.PATH).write_bytes(encode_handovers([elsewhere, second]))
    with pytest.raises(ForkFound) as found:
        follow(Mirror(tmp_path / "copy", log.policy), log)
    assert cli.main(["verify", str(found.value.path), "--policy", str(log.policy)]) == 1


def test_a_fork_under_a_later_key_is_found_by_whoever_has_the_other_history(tmp_path: Path) -> None:
    log = Log(tmp_path)
    twin, mirror = log.twin("twin"), Mirror(tmp_path / "copy", log.policy)
    log.append("this", 2)
    log.publish()
    assert follow(mirror, log) == 15
    replace_key(twin, LOG, SECOND)
    twin.append("that", 4)
    twin.publish(SECOND)
    with pytest.raises(ForkFound, match="do not begin with the") as found:
        follow(mirror, twin)
    assert cli.main(["verify", str(found.value.path), "--policy", str(log.policy)]) == 1


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", encode_handovers([]), None])
def test_handovers_that_lead_nowhere(log: Log, tmp_path: Path, data: bytes | None) -> None:
    path = log.tiles / handover.PATH
    if data is None:
        path.write_bytes(encode_handovers([dataclasses.replace(item, note="x\n") for item in whole(log)]))
    else:
        path.write_bytes(data)
    with pytest.raises(RemoteError, match="handovers do not lead from the pinned log key"):
        follow(Mirror(tmp_path / "copy", log.policy), log)
    assert not (tmp_path / "copy" / handover.PATH).exists()
    path.unlink()
    mirror = Mirror(tmp_path / "copy", log.policy)
    with pytest.raises(NoKnownSigner, match=r"says nothing of it in `handovers` \(no known key signed it"):
        follow(mirror, log)
    with Remote(str(log.tiles)) as remote:
        assert [item.name for item in watch(mirror, remote).alarms] == ["unknown-signer"]


def whole(log: Log) -> tuple[Handover, ...]:
    return decode_handovers((log.tiles / handover.PATH).read_bytes())


def test_handovers_are_read_strictly(log: Log) -> None:
    value = jcs.parse((log.tiles / handover.PATH).read_bytes())
    first = value["handovers"][0]
    key = first["key"]
    for items, said in (
        ({}, "not a list of 1 to 64"),
        ([], "not a list of 1 to 64"),
        ([first] * 65, "not a list of 1 to 64"),
        ([1], 'not {"checkpoint","key"}'),
        ([{**first, "more": 1}], 'not {"checkpoint","key"}'),
        ([{**first, "checkpoint": 1}], "a checkpoint is not text"),
        ([{**first, "key": 1}], 'not {"entry","hashes","index"}'),
        ([{**first, "key": {**key, "more": 1}}], 'not {"entry","hashes","index"}'),
        ([{**first, "key": {**key, "index": True}}], "not an index"),
        ([{**first, "key": {**key, "index": -1}}], "not an index"),
        ([{**first, "key": {**key, "hashes": "00"}}], "not a list of at most 63 hashes"),
        ([{**first, "key": {**key, "hashes": ["00" * 32] * 64}}], "not a list of at most 63 hashes"),
        ([{**first, "key": {**key, "hashes": [1]}}], "not 64 lower-case hex digits"),
        ([{**first, "key": {**key, "hashes": ["AB" * 32]}}], "not 64 lower-case hex digits"),
        ([{**first, "key": {**key, "hashes": ["00 " * 21 + "0"]}}], "not 64 lower-case hex digits"),
        ([{**first, "key": {**key, "entry": 1}}], "not standard padded base64"),
    ):
        with pytest.raises(EntryError, match=re.escape(said)):
            decode_handovers(jcs.encode({**value, "handovers": items}))
    for whole_file in ([], {**value, "format": "bitwitness/handovers/2"}, {**value, "more": 1}):
        with pytest.raises(EntryError, match="not bitwitness/handovers/1"):
            decode_handovers(jcs.encode(whole_file))


def test_entries_that_put_no_log_key_in_anothers_place(log: Log) -> None:
    (first, _second), root = whole(log), small.SIGNERS["root"]
    trainer = keys.generate("trainer").public
    for data in (
        small.DATASET,
        enrolment(root, SECOND.public, "log"),
        revocation(root, LOG.public, "log", 20),
        rotation(root, trainer, "trainer", LOG.keyid),
    ):
        with pytest.raises(EntryError, match=r"puts no (log )?key in another's place"):
            log_line(small.TRUST, [dataclasses.replace(first, entry=dataclasses.replace(first.entry, data=data))])


def test_an_enrolment_by_another_root_accuses_nobody(tmp_path: Path) -> None:
    root, trainer = keys.Signer.from_seed("root", bytes(32)), keys.Signer.from_seed("trainer", bytes([7]) * 32)
    with small.create(tmp_path / "ledger.db") as ledger:
        ledger.append([enrolment(small.SIGNERS["root"], root.public, "root", time=small.TIME)])
        ledger.append([enrolment(root, trainer.public, "trainer", time=small.TIME)])
        data = json.loads(envelope.open_envelope(small.DATASET).payload)
        ledger.append([small.seal("dataset", data["predicate"] | {"name": "other"}, signer=trainer)])
        ledger.sign_checkpoint(LOG)
        by_root, by_trainer = (prove(ledger, index).format() for index in (8, 9))
    assert exit_code(verify_proof(by_root, small.TRUST)) == 0
    checks = verify_proof(by_trainer, small.TRUST)
    assert exit_code(checks) == 2 and "not the pinned root key" in checks[-1].detail
