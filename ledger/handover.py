"""Which keys sign for the pinned log, for whoever holds one file and not the ledger: how one took another's place.

The root lets another key take a log key's place with a `key` entry, and the first checkpoint beyond that entry is
signed by both. The entry, its place in that checkpoint's tree and the checkpoint lead whoever pins the old key to the
new one, and so on from there. `line_of` and `open_handover` are the rule for whoever holds a log's `key` entries: a
whole ledger (verify_checkpoints), a copy of one (follow), a bundle. Part of the independent verifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _base64, jcs, merkle
from .checkpoint import Checkpoint, open_checkpoint
from .entry import entries
from .errors import BitwitnessError, EntryError, FoundWrong
from .keys import PublicKey
from .note import Note, Verifier
from .note_head import MAX_HASHES
from .trust import Trust
from .verify import EnrolledKey, KeyRing

PATH = "handovers"
"""Where a log serves them, beside its checkpoint."""
FORMAT = "bitwitness/handovers/1"
MAX_FILE = 1 << 20
MAX_HANDOVERS = 64


@dataclass(frozen=True)
class ProvenEntry:
    """An entry with its place in the tree."""

    data: bytes
    index: int
    hashes: tuple[bytes, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": _base64.encode(self.data),
            "hashes": [item.hex() for item in self.hashes],
            "index": self.index,
        }


@dataclass(frozen=True)
class Handover:
    """A checkpoint that an old log key and the one in its place signed, and the entry below it that says so."""

    note: str
    entry: ProvenEntry

    def to_json(self) -> dict[str, Any]:
        return {"checkpoint": self.note, "key": self.entry.to_json()}


@dataclass(frozen=True)
class LogKey:
    """A key of the log: it signs trees of `since` to `until` entries."""

    verifier: Verifier
    since: int = 0
    until: int | None = None

    def counts(self, size: int) -> bool:
        return size >= self.since and (self.until is None or size <= self.until)


class NotHanded(FoundWrong):
    """The keys that signed a checkpoint are the log's, and none of them signs trees of its size."""


class ByAnotherRoot(BitwitnessError):
    """A handover that another key than the pinned root signed, which the root may have put in its own place."""

    def __init__(self, keyid: str) -> None:
        super().__init__(
            f"key {keyid[:16]}… put another log key in the pinned one's place, not the pinned root key; whether the"
            " root let it only the whole ledger says: verify that instead"
        )


# The rule -----------------------------------------------------------------------------------------------------------


def replacements(ring: KeyRing) -> Iterator[tuple[EnrolledKey, EnrolledKey]]:
    """(old, new) of each log key that counted until the root put another one in its place.

    One that the root had ended before then, or revoked from before then on, hands nothing over, and each one does so
    once: the new key counts like one that is enrolled.
    """
    for new in ring:
        old = None if new.replaces is None else ring.get(new.replaces)
        if new.role == "log" and old is not None and old.until == new.since:
            yield old, new


def line_of(ring: KeyRing, pinned: PublicKey) -> list[EnrolledKey]:
    """The pinned log key and those that took its place one after the other, whoever signed what; none if not enrolled.

    That the old key's holder agreed, the checkpoints of the handovers say (open_handover).
    """
    heirs = {old.keyid: new for old, new in replacements(ring)}
    key = ring.get(pinned.keyid)
    line = [] if key is None or key.role != "log" else [key]
    while line and line[-1].keyid in heirs:
        line.append(heirs[line[-1].keyid])
    return line


def open_handover(text: str | bytes, origin: str, old: PublicKey, new: PublicKey, index: int) -> Checkpoint:
    """A checkpoint beyond the entry at `index`, which put `new` in the place of `old`, signed by both.

    Raises EntryError where it is not, and the errors of notes.
    """
    both = [Verifier(origin, key) for key in (old, new)]
    head, note = open_checkpoint(text, both, origin)
    if any(note.by(item) is None for item in both):
        raise EntryError("the checkpoint is not signed by both keys", "handover")
    if head.size <= index:
        raise EntryError(f"the checkpoint of {head.size} entries is not beyond entry {index}", "handover")
    return head


# For whoever holds one file ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogLine:
    """The keys of a log from the pinned one on, each in the place of the one before it, and what led to them."""

    origin: str
    keys: tuple[LogKey, ...]
    handovers: tuple[Handover, ...]

    @property
    def verifiers(self) -> tuple[Verifier, ...]:
        """All of them, whatever they may sign: what a log's key ever signed stays said."""
        return tuple(key.verifier for key in self.keys)

    def open(self, text: str | bytes, cosigners: Iterable[Verifier] = ()) -> tuple[Checkpoint, Note]:
        """Verify a checkpoint by a key that counts at its size. Raises NotHanded and the errors of notes."""
        head, note = open_checkpoint(text, self.verifiers, self.origin, cosigners)
        if not any(key.counts(head.size) for key in self.keys if note.by(key.verifier) is not None):
            raise NotHanded(f"the log keys that signed the checkpoint do not sign trees of {head.size} entries")
        return head, note


def log_line(trust: Trust, handovers: Iterable[Handover]) -> LogLine:
    """The keys to which handovers lead from the pinned one; those that begin elsewhere lead nowhere.

    Raises the errors of entries, notes and proofs for one that begins at the line's end and does not hold, and
    ByAnotherRoot where that cannot be told.
    """
    line, used = [LogKey(trust.log)], list[Handover]()
    for item in handovers:
        last = line[-1].verifier
        envelope, kind = entries.read(item.entry.data)
        if kind.name != "key":
            raise EntryError("puts no key in another's place", "handover")
        predicate = envelope.statement["predicate"]
        if predicate["action"] != "rotate" or predicate["key"]["role"] != "log":
            raise EntryError("puts no log key in another's place", "handover")
        if predicate["replaces"] != last.key.keyid:
            continue
        if envelope.keyid != trust.root.keyid:
            raise ByAnotherRoot(envelope.keyid)
        envelope.verify(trust.root)
        fresh = Verifier(trust.origin, PublicKey.from_hex(predicate["key"]["public"]))
        if any(key.verifier == fresh for key in line):
            raise EntryError(f"log key {fresh.key.keyid[:16]}… takes a place a second time", "handover")
        if item.entry.index < line[-1].since:
            raise EntryError(f"entry {item.entry.index} replaces a log key that came later", "handover")
        head = open_handover(item.note, trust.origin, last.key, fresh.key, item.entry.index)
        merkle.verify_inclusion(
            item.entry.index, head.size, merkle.leaf_hash(item.entry.data), item.entry.hashes, head.root
        )
        line[-1] = LogKey(last, line[-1].since, item.entry.index)
        line.append(LogKey(fresh, item.entry.index + 1))
        used.append(item)
    return LogLine(trust.origin, tuple(line), tuple(used))


# Files and JSON -----------------------------------------------------------------------------------------------------


def encode_handovers(handovers: Sequence[Handover]) -> bytes:
    """The file of a log's handovers, the first one first."""
    return jcs.encode({"format": FORMAT, "handovers": [item.to_json() for item in handovers]})


def decode_handovers(data: bytes) -> tuple[Handover, ...]:
    """Take `encode_handovers` apart strictly. Nothing is verified. Raises EntryError, JsonError."""
    value = jcs.parse(data, max_bytes=MAX_FILE)
    if not isinstance(value, dict) or value.keys() != {"format", "handovers"} or value["format"] != FORMAT:
        raise EntryError(f"not {FORMAT}", PATH)
    return read_handovers(value, "log")


def handovers_json(handovers: Sequence[Handover]) -> dict[str, Any]:
    """The field `handovers` of a file, absent where there is none."""
    return {"handovers": [item.to_json() for item in handovers]} if handovers else {}


def read_handovers(value: Mapping[str, Any], where: str) -> tuple[Handover, ...]:
    """The field `handovers` of a file. Raises EntryError."""
    if "handovers" not in value:
        return ()
    items, where = value["handovers"], f"{where}.handovers"
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_HANDOVERS:
        raise EntryError(f"not a list of 1 to {MAX_HANDOVERS} handovers", where)
    read = []
    for item in items:
        if not isinstance(item, dict) or item.keys() != {"checkpoint", "key"}:
            raise EntryError('not {"checkpoint","key"}', where)
        if not isinstance(item["checkpoint"], str):
            raise EntryError("a checkpoint is not text", where)
        read.append(Handover(item["checkpoint"], read_proven(item["key"], f"{where}.key")))
    return tuple(read)


def read_proven(value: object, where: str) -> ProvenEntry:
    """An entry with its place, as ProvenEntry.to_json() gives it. Raises EntryError."""
    if not isinstance(value, dict) or value.keys() != {"entry", "hashes", "index"}:
        raise EntryError('not {"entry","hashes","index"}', where)
    index, hashes = value["index"], value["hashes"]
    if type(index) is not int or index < 0:
        raise EntryError("not an index", f"{where}.index")
    if not isinstance(hashes, list) or len(hashes) > MAX_HASHES:
        raise EntryError(f"not a list of at most {MAX_HASHES} hashes", f"{where}.hashes")
    return ProvenEntry(decoded(value["entry"], where), index, tuple(_hash(item, f"{where}.hashes") for item in hashes))


def decoded(text: object, where: str) -> bytes:
    """The bytes of standard padded base64. Raises EntryError."""
    data = _base64.decode(text) if isinstance(text, str) else None
    if data is not None:
        return data
    raise EntryError("not standard padded base64", where)


def _hash(text: object, where: str) -> bytes:
    if isinstance(text, str) and jcs.is_hex(text, 64):
        return bytes.fromhex(text)
    raise EntryError("not 64 lower-case hex digits", where)
