"""Which keys sign for a log that is followed: the pinned one, and those that the pinned root put in its place.

The enrolments come from the copy's signed entries, under the root key of the policy that was named, whatever policy the
copy was made under. A key that replaced the pinned one counts once a checkpoint carries both signatures, the old key's
and the new one's; any other log key that the root enrolled counts for nothing. verify_checkpoints holds a whole file to
the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from ..checkpoint import Checkpoint, open_checkpoint
from ..entry import entries
from ..errors import BitwitnessError, FoundWrong, NoKnownSigner, NoteError
from ..files.durable import write_whole
from ..files.regular_file import read_regular
from ..handover import (
    MAX_FILE,
    ByAnotherRoot,
    Handover,
    LogKey,
    decode_handovers,
    encode_handovers,
    line_of,
    log_line,
    open_handover,
)
from ..handover import PATH as HANDOVERS
from ..note import Note, Verifier, parse_note
from ..store import Ledger
from ..trust import Trust
from ..verify import EnrolledKey, KeyRing, verify_entry
from .remote import NotThere, Remote, RemoteError


class NotWhatWasSigned(FoundWrong):
    """The other side's tiles or entries are not those of its own checkpoint."""


class OtherPins(BitwitnessError):
    """A copy was made under other keys than the policy pins."""


class FollowedKeys:
    """The keys that may sign checkpoints of the log that `trust` pins, as far as its copy tells."""

    def __init__(
        self, trust: Trust, ledger: Ledger, notes: Iterable[str | bytes] = (), handovers: Sequence[Handover] = ()
    ) -> None:
        """`notes` are what else is at hand and may be checkpoints of the log, stored in the copy or not.

        `handovers` lead to keys whose entries were not copied yet. Raises OtherPins where the copy's keys do not come
        from the pinned root, and the errors of log_line().
        """
        line = log_line(trust, handovers)
        self.handovers = line.handovers
        self._trust, self._notes = trust, (*notes, *(item.note for item in line.handovers))
        self._ring = _ring(trust, ledger)
        self._keys = {trust.log: LogKey(trust.log, 0, self._end(trust.log))}
        for old, new in pairwise(line_of(self._ring, trust.log.key)):
            beyond = (*ledger.checkpoints_over(new.since)[:1], *self._notes)
            if not any(self._hands_over(old, new, text) for text in beyond):
                break
            verifier = Verifier(trust.origin, new.public)
            self._keys[verifier] = LogKey(verifier, new.since + 1, new.until)
        for before, after in pairwise(line.keys):
            if after.verifier in self._keys:
                continue
            last, ends = self._keys[before.verifier], after.since - 1
            # What the entries here say of the old key's end goes first. Where they hold another entry in that place,
            # the log was forked: whoever compares finds it.
            if last.until is not None and last.until < ends:
                break
            self._keys[before.verifier] = LogKey(before.verifier, last.since, ends)
            self._keys[after.verifier] = LogKey(after.verifier, after.since, self._end(after.verifier))

    def know(self, text: str | bytes) -> bool:
        """Whether one of these keys is among those that claim to have signed a note, of which nothing is verified."""
        try:
            lines = {(line.name, line.key_id) for line in parse_note(text).lines}
        except NoteError:
            return False
        return any((item.name, item.key_id) in lines for item in self._keys)

    def open(self, text: str | bytes, url: str) -> tuple[Checkpoint, Note]:
        """Verify a checkpoint that came from `url`, by a key that counts at its size.

        Raises RemoteError for what is no signed note at all, which nobody has vouched for; else NotWhatWasSigned and
        the errors of notes.
        """
        try:
            parse_note(text)
        except NoteError as error:
            raise RemoteError(url, f"its checkpoint cannot be read, and nobody signed it ({error})") from None
        try:
            head, note = open_checkpoint(text, self._keys, self._trust.origin, self._trust.cosigners)
        except NoKnownSigner as error:
            raise NoKnownSigner(
                url,
                "its checkpoint is of another log than the policy pins, or of one whose key was replaced and that says "
                f"nothing of it in `{HANDOVERS}` ({error.reason})",
            ) from None
        if not any(key.counts(head.size) for key in self._keys.values() if note.by(key.verifier) is not None):
            raise NotWhatWasSigned(
                f"its checkpoint of {head.size} entries is signed by a log key that has ended, or came later"
            )
        return head, note

    def reopen(self, text: str) -> Checkpoint:
        """Verify a checkpoint that was kept, by any key that ever counted: what it signed stays said. Note's errors."""
        return open_checkpoint(text, self._keys, self._trust.origin)[0]

    def _end(self, verifier: Verifier) -> int | None:
        key = self._ring.get(verifier.key.keyid)
        return None if key is None else key.until

    def _hands_over(self, old: EnrolledKey, new: EnrolledKey, text: str | bytes) -> bool:
        try:
            open_handover(text, self._trust.origin, old.public, new.public, new.since)
        except FoundWrong:
            return False
        return True


def ask_keys(
    trust: Trust, ledger: Ledger, notes: Iterable[str | bytes], folder: Path, remote: Remote, shown: bytes
) -> FollowedKeys:
    """The log's keys; where none that is known here signed what is shown, the other side is asked who took their place.

    What it answers is kept in the folder of the copy. Raises RemoteError and what FollowedKeys raises.
    """
    notes = (*notes, shown)
    try:
        keys = FollowedKeys(trust, ledger, notes, read_handovers_of(folder))
    except (FoundWrong, ByAnotherRoot) as error:
        raise damaged(folder / HANDOVERS, str(error)) from None
    if keys.know(shown) or not _is_note(shown):
        return keys
    try:
        data = remote.get(HANDOVERS, MAX_FILE)
    except NotThere:
        return keys
    try:
        keys = FollowedKeys(trust, ledger, notes, decode_handovers(data))
    except (FoundWrong, ByAnotherRoot) as error:
        raise RemoteError(remote.url, f"its {HANDOVERS} do not lead from the pinned log key on ({error})") from None
    if keys.know(shown):
        write_whole(folder / HANDOVERS, encode_handovers(keys.handovers))
    return keys


def read_handovers_of(folder: Path) -> tuple[Handover, ...]:
    """The handovers that are kept in the folder of a copy, of which nothing is verified."""
    path = folder / HANDOVERS
    try:
        return decode_handovers(read_regular(path, MAX_FILE))
    except FileNotFoundError:
        return ()
    except FoundWrong as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, reason: str) -> BitwitnessError:
    return BitwitnessError(
        f"{path} is damaged, or by another key than the policy pins ({reason}); put it back from a copy, or remove it"
    )


def _is_note(text: bytes) -> bool:
    try:
        parse_note(text)
    except NoteError:
        return False
    return True


def check_root_entry(entry: bytes, trust: Trust) -> bool:
    """Whether a log's first entry enrols the root key that the policy pins. Raises EntryError and others."""
    envelope, kind = entries.read(entry)
    return kind.name == "key" and envelope.keyid == trust.root.keyid


def _ring(trust: Trust, ledger: Ledger) -> KeyRing:
    ring = KeyRing(trust.root)
    try:
        if ledger.size and not check_root_entry(ledger.entry(0), trust):
            raise OtherPins(
                f"{ledger.path} is a copy of a log with another root key than the policy pins; give an empty folder"
            )
        for (index,) in ledger.connection.execute("SELECT entry FROM log WHERE kind = 'key' ORDER BY entry"):
            ring.add(index, verify_entry(ledger.entry(index), ring, index).statement["predicate"])
    except FoundWrong as error:
        raise OtherPins(
            f"{ledger.path}: its keys do not come from the root key that the policy pins ({error}); give an"
            " empty folder"
        ) from None
    return ring
