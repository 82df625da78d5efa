"""Which log key signs for the pinned log: writer, whole file, copy, single file and bundle decide alike."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from bitwitness.ledger import keys, note
from bitwitness.ledger.checkpoint import Checkpoint, open_checkpoint
from bitwitness.ledger.entry.key_entries import enrolment, revocation, rotation
from bitwitness.ledger.errors import BitwitnessError, FoundWrong, NoKnownSigner
from bitwitness.ledger.exchange.prove import handovers
from bitwitness.ledger.follow.followed_keys import FollowedKeys
from bitwitness.ledger.handover import Handover, ProvenEntry, line_of, log_line, replacements
from bitwitness.ledger.sqlite import log_keys
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import Trust
from bitwitness.ledger.verify import KeyRing, verify_entry
from bitwitness.ledger.verify_checkpoints import CheckpointChecks
from bitwitness.registry.bundles import bundle
from bitwitness.registry.bundles import log_line as bundles

from ..ledger import small_ledger as small
from ..second_signature import second_line

ROOT, FIRST = small.SIGNERS["root"], small.SIGNERS["log"]
FRESH = [keys.Signer.from_seed("log", bytes([0x80 + number]) * 32) for number in range(3)]


def signed(ledger: Ledger, size: int, signers: Sequence[keys.Signer]) -> str:
    body = Checkpoint(small.ORIGIN, size, ledger.root(size)).format()
    lines = tuple(note.signature_line(body, small.ORIGIN, signer) for signer in signers)
    return note.Note(body, lines).format()


class Verdicts:
    """On a checkpoint that might be the next one of a log, by whoever pins one of its keys."""

    def __init__(self, ledger: Ledger, empty: Ledger, text: str, signers: Sequence[keys.Signer], pin: keys.Signer):
        self.ledger, self.text = ledger, text
        self.trust = Trust(small.ORIGIN, note.Verifier(small.ORIGIN, pin.public), small.TRUST.root)
        self.ring = _ring(ledger)
        self.line = line_of(self.ring, pin.public)
        (before,) = ledger.connection.execute("SELECT coalesce(max(size), 0) FROM checkpoints").fetchone()
        self.handed = self._handovers()
        self.writer = self._holds(
            lambda: log_keys.check_signers(ledger.connection, before, ledger.size, (item.keyid for item in signers))
        )
        self.faults, self.covers = self._whole()
        self.copy = self._holds(lambda: FollowedKeys(self.trust, ledger, [text]).open(text, "x"))
        self.fresh = self._holds(lambda: FollowedKeys(self.trust, empty, [], self.handed).open(text, "x"))
        self.file = self._holds(lambda: log_line(self.trust, self.handed).open(text))
        self.bundle = self._holds(self._bundle)

    @staticmethod
    def _holds(check: object) -> bool:
        try:
            check()  # type: ignore[operator]
        except BitwitnessError:
            return False
        return True

    def _handovers(self) -> list[Handover]:
        """Those of a log in which the checkpoint is stored."""
        made = handovers(self.ledger, self.ledger.size)
        size = self.ledger.size
        for index in (
            new.since for _old, new in replacements(self.ring) if not self.ledger.checkpoints_over(new.since)
        ):
            place = ProvenEntry(self.ledger.entry(index), index, tuple(self.ledger.inclusion_proof(index, size)))
            made.append(Handover(self.text, place))
        return made

    def _whole(self) -> tuple[list[str], bool]:
        size = self.ledger.size
        roots = {number: self.ledger.root(number) for number in range(size + 1)}
        checks = CheckpointChecks(small.ORIGIN, self.trust, self.ring, roots, size)
        rows = self.ledger.connection.execute("SELECT id, size, note FROM checkpoints ORDER BY id").fetchall()
        for row, covered, text in rows:
            assert not list(checks.follow(row, covered, text.encode()))
        return list(checks.follow(len(rows), size, self.text.encode())), checks.covered == size

    def _bundle(self) -> None:
        anchors = list(bundles.handovers(self.ledger, self.ledger.size).values())
        names = [note.Verifier(small.ORIGIN, key.public) for key in self.line]
        head, opened = open_checkpoint(self.text, names, small.ORIGIN)
        bundles.signing_key(head, opened, self.ring, self.trust.log, anchors)

    def compare(self) -> None:
        assert self.writer == (not self.faults), self.faults
        assert self.copy == self.bundle
        assert self.fresh == self.file and (self.file or not self.copy)
        if not self.faults:
            assert self.copy == self.covers
        elif self.copy:  # what others hand over is no matter of this line's
            mine = {new.since for new in self.line[1:]}
            assert not any(f"changed at entry {index}:" in fault for fault in self.faults for index in mine)
        if self.file and not self.copy:  # single files do not tell what was revoked
            assert any(not end.replaced for key in self.ring for end in key.ends)


def grow(ledger: Ledger, chance: random.Random) -> None:
    """One more key entry, of those that a ledger takes."""
    enrolled = [key for key in (FIRST, *FRESH) if _enrolled(ledger, key)]
    fresh = [key for key in FRESH if key not in enrolled]
    key = chance.choice(enrolled)
    what = chance.choice(("rotate", "rotate", "revoke", "enrol"))
    if what == "revoke":
        data = revocation(ROOT, key.public, "log", chance.randrange(ledger.size + 3), time=small.TIME)
    elif fresh and what == "rotate":
        data = rotation(ROOT, fresh[0].public, "log", key.keyid, time=small.TIME)
    elif fresh:
        data = enrolment(ROOT, fresh[0].public, "log")
    else:
        data = enrolment(ROOT, keys.generate("auditor").public, "auditor")
    try:
        ledger.append([data])
    except BitwitnessError:
        ledger.append([enrolment(ROOT, keys.generate("auditor").public, "auditor")])


def _enrolled(ledger: Ledger, key: keys.Signer) -> bool:
    return ledger.connection.execute("SELECT 1 FROM keys WHERE keyid = ?", (key.keyid,)).fetchone() is not None


@pytest.mark.parametrize("seed", range(5))
def test_all_decide_alike(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with (
        Ledger.create(tmp_path / "e.db", small.ORIGIN) as empty,
        Ledger.create(tmp_path / "l.db", small.ORIGIN) as ledger,
    ):
        ledger.append([enrolment(ROOT, key.public, key.role) for key in (ROOT, FIRST)])
        for _round in range(4):
            for _ in range(chance.choice((1, 1, 2, 3))):
                grow(ledger, chance)
            known = [key for key in (FIRST, *FRESH) if _enrolled(ledger, key)]
            good = []
            for signers in itertools.chain.from_iterable(itertools.combinations(known, n) for n in (1, 2, 3)):
                text = signed(ledger, ledger.size, signers)
                verdicts = [Verdicts(ledger, empty, text, signers, pin) for pin in known]
                for verdict in verdicts:
                    verdict.compare()
                if verdicts[0].writer:
                    good.append(text)
            if good and chance.random() < 0.8:
                ledger.keep_checkpoint(chance.choice(good))


def test_two_signatures_of_one_key_hand_nothing_over(tmp_path: Path) -> None:
    """Whoever has the new key alone can sign twice; whoever has the old one alone, too."""
    with Ledger.create(tmp_path / "l.db", small.ORIGIN) as ledger:
        ledger.append([enrolment(ROOT, key.public, key.role) for key in (ROOT, FIRST)])
        ledger.append([rotation(ROOT, FRESH[0].public, "log", FIRST.keyid)])
        ring = _ring(ledger)
        body = Checkpoint(small.ORIGIN, ledger.size, ledger.root()).format()
        line = note.signature_line(body, small.ORIGIN, FRESH[0])
        twice = note.Note(body, (line, second_line(body, small.ORIGIN, bytes([0x80]) * 32, line))).format()
    new = note.Verifier(small.ORIGIN, FRESH[0].public)
    head, opened = open_checkpoint(twice, [new], small.ORIGIN)
    assert len(opened.verified) == 2
    with pytest.raises(FoundWrong, match="no checkpoint beyond it that both signed"):
        bundles.signing_key(head, opened, ring, small.TRUST.log, [bundle.Anchor(checkpoint=twice, proof=[])])


def test_a_checkpoint_of_before_the_change_hands_nothing_over(tmp_path: Path) -> None:
    """Both keys signed it, and its tree does not hold the entry that says so."""
    with Ledger.create(tmp_path / "l.db", small.ORIGIN) as ledger:
        ledger.append([enrolment(ROOT, key.public, key.role) for key in (ROOT, FIRST)])
        ledger.append([rotation(ROOT, FRESH[0].public, "log", FIRST.keyid)])
        ring = _ring(ledger)
        early = bundle.Anchor(
            checkpoint=signed(ledger, 2, (FIRST, FRESH[0])),
            proof=[node.hex() for node in ledger.consistency_proof(2, 3)],
        )
        text, both = (
            signed(ledger, 3, FRESH[:1]),
            bundle.Anchor(checkpoint=signed(ledger, 3, (FIRST, FRESH[0])), proof=[]),
        )
        assert early.proof
        small_tree = signed(ledger, 2, FRESH[:1])
        for notes in ([early.checkpoint], []):
            with pytest.raises(NoKnownSigner):
                FollowedKeys(small.TRUST, ledger, notes).open(text, "x")
        assert FollowedKeys(small.TRUST, ledger, [both.checkpoint]).open(text, "x")[0].size == 3
    head, opened = open_checkpoint(text, [note.Verifier(small.ORIGIN, FRESH[0].public)], small.ORIGIN)
    for anchors in ([early], []):
        with pytest.raises(FoundWrong, match="no checkpoint beyond it that both signed"):
            bundles.signing_key(head, opened, ring, small.TRUST.log, anchors)
    assert bundles.signing_key(head, opened, ring, small.TRUST.log, [early, both]).keyid == FRESH[0].keyid
    # Nor does one beyond it lead to a smaller tree, which the new key alone signed.
    names = [note.Verifier(small.ORIGIN, FRESH[0].public)]
    head, opened = open_checkpoint(small_tree, names, small.ORIGIN)
    for proof in ([], early.proof):
        beyond = both.model_copy(update={"proof": proof})
        with pytest.raises(FoundWrong, match="no checkpoint beyond it that both signed"):
            bundles.signing_key(head, opened, ring, small.TRUST.log, [early, beyond])
    stranger = note.Verifier(small.ORIGIN, FRESH[1].public)
    with pytest.raises(FoundWrong, match="the pinned log key is not enrolled as a log key"):
        bundles.signing_key(head, opened, ring, stranger, [both])


def test_what_a_key_signs_that_nobody_handed_over_to_covers_nothing(tmp_path: Path) -> None:
    """Whole files that hold such a checkpoint are found wrong, and nothing after it is taken for the pinned log's."""
    with Ledger.create(tmp_path / "l.db", small.ORIGIN) as ledger:
        ledger.append([enrolment(ROOT, key.public, key.role) for key in (ROOT, FIRST)])
        ledger.append([rotation(ROOT, FRESH[0].public, "log", FIRST.keyid)])
        ledger.append([enrolment(ROOT, keys.generate("auditor").public, "auditor")])
        roots = {number: ledger.root(number) for number in range(5)}
        checks = CheckpointChecks(small.ORIGIN, small.TRUST, _ring(ledger), roots, 4)
        found = [
            list(checks.follow(row, size, signed(ledger, size, (signer,)).encode()))
            for row, (size, signer) in enumerate([(2, FIRST), (3, FRESH[0]), (4, FRESH[0])])
        ]
    assert [len(faults) for faults in found] == [0, 1, 0] and "needs both signatures" in found[1][0]
    assert checks.covered == 2


def test_the_pinned_key_needs_no_enrolment_in_a_whole_file(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", small.ORIGIN) as ledger:
        ledger.append([enrolment(ROOT, ROOT.public, ROOT.role)])
        for trust, covered in ((small.TRUST, 1), (None, 0)):
            checks = CheckpointChecks(small.ORIGIN, trust, _ring(ledger), {1: ledger.root()}, 1)
            faults = list(checks.follow(0, 1, signed(ledger, 1, (FIRST,)).encode()))
            assert (checks.covered, bool(faults)) == (covered, not covered)
            assert "checkpoint 1 is missing" in list(checks.follow(2, 1, signed(ledger, 1, (FIRST,)).encode()))


def test_each_fault_of_a_checkpoint_is_told(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "l.db", small.ORIGIN) as ledger:
        ledger.append([enrolment(ROOT, key.public, key.role) for key in (ROOT, FIRST, *FRESH[:1])])
        notes = {size: signed(ledger, size, (FIRST,)).encode() for size in (1, 2, 3)}
        ring, roots = _ring(ledger), {1: ledger.root(1), 2: ledger.root(2)}
        early = signed(ledger, 2, FRESH[:1]).encode()
    wrong = {1: bytes(32)}
    for given, held, rows, said in (
        (roots, 3, [(1, notes[2])], "is stored for size 1, but signed for 2"),
        (roots, 1, [(2, notes[2])], "signs 2 entries, the ledger holds 1"),
        (roots, 3, [(3, notes[3])], "signs 3 entries, whose root was not computed"),
        (wrong, 3, [(1, notes[1])], "signs the root"),
        (roots, 3, [(2, notes[2]), (1, notes[1])], "signs 1 entries after one that signs 2"),
        (roots, 3, [(2, early)], "which entry 2 enrols later"),
        (roots, 3, [(2, None)], "note: "),
    ):
        checks = CheckpointChecks(small.ORIGIN, small.TRUST, ring, given, held)
        *before, last = [list(checks.follow(row, size, text)) for row, (size, text) in enumerate(rows)]
        assert not any(before) and len(last) == 1 and said in last[0], (said, last)
        assert checks.covered == (2 if before else 0)


def test_a_file_that_forgot_how_a_key_ended_signs_nothing() -> None:
    """Its derived tables were edited: without the end nobody would ask for both signatures."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE keys (entry, keyid, role, replaces); CREATE TABLE key_revocations (key, from_index);"
        "INSERT INTO keys VALUES (1, 'old', 'log', NULL), (4, 'new', 'log', 1)"
    )
    for end in (None, 5):
        if end is not None:
            connection.execute("INSERT INTO key_revocations VALUES (1, ?)", (end,))
        with pytest.raises(FoundWrong, match="derived tables state no end of the log key old"):
            log_keys.check_signers(connection, 0, 6, ["new"])
    connection.execute("INSERT INTO key_revocations VALUES (1, 4)")
    with pytest.raises(log_keys.WrongLogKey, match="both sign the next"):
        log_keys.check_signers(connection, 0, 6, ["new"])
    log_keys.check_signers(connection, 0, 6, ["new", "old"])
    connection.execute("INSERT INTO key_revocations VALUES (1, 3)")  # revoked from before then on
    log_keys.check_signers(connection, 0, 6, ["new"])
    connection.close()


def _ring(ledger: Ledger) -> KeyRing:
    ring = KeyRing(small.TRUST.root)
    for index, data in ledger.entries(0):
        ring.add(index, verify_entry(data, ring, index).statement["predicate"])
    return ring
