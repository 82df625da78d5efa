"""The body of add-checkpoint, C2SP tlog-witness: what a log hands to a witness (docs/formats/witness.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import _base64, note, note_head
from ..errors import NoteError
from ..merkle import HASH_SIZE, MAX_SIZE
from ..note_head import MAX_HASHES

MAX_REQUEST = note.MAX_NOTE + 64 * 1024


@dataclass(frozen=True)
class AddCheckpoint:
    """A signed checkpoint, and the consistency proof to it from the `old` size that the witness cosigned last."""

    old: int
    proof: tuple[bytes, ...]
    checkpoint_note: str

    def __post_init__(self) -> None:
        if not 0 <= self.old <= MAX_SIZE:
            raise NoteError("add-checkpoint", f"the old size {self.old} is not between 0 and 2^63-1")
        if len(self.proof) > MAX_HASHES or any(len(item) != HASH_SIZE for item in self.proof):
            raise NoteError("add-checkpoint", f"the proof is not at most {MAX_HASHES} hashes of {HASH_SIZE} bytes")

    def format(self) -> str:
        """The request's body."""
        return request_text(self.old, self.proof, self.checkpoint_note)


def request_text(old: int, proof: Sequence[bytes], checkpoint_note: str) -> str:
    """`old SIZE`, the proof's hashes in base64, an empty line, the checkpoint."""
    return note_head.join((f"old {old}", *map(_base64.encode, proof)), checkpoint_note)


def parse_request(body: str | bytes) -> AddCheckpoint:
    """Read a request strictly; `parse_request(body).format() == body`. Nothing is verified. Raises NoteError."""
    (first, *lines), checkpoint_note = note_head.split(
        body, "add-checkpoint", max_bytes=MAX_REQUEST, max_lines=MAX_HASHES + 1
    )
    old = note_head.number(first, "old")
    if old is None:
        raise NoteError("add-checkpoint", "the first line is not 'old SIZE', SIZE decimal without leading zeros")
    return AddCheckpoint(old, note_head.hashes(lines, "add-checkpoint"), checkpoint_note)
