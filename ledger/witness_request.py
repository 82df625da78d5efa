"""The body of add-checkpoint, C2SP tlog-witness: what a log hands to a witness (docs/formats/witness.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from . import _base64, note
from .errors import NoteError
from .merkle import HASH_SIZE, MAX_SIZE

MAX_HASHES = 63
MAX_REQUEST = note.MAX_NOTE + 64 * 1024
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")


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
    return "".join(f"{line}\n" for line in (f"old {old}", *map(_base64.encode, proof))) + "\n" + checkpoint_note


def parse_request(body: str | bytes) -> AddCheckpoint:
    """Read a request strictly; `parse_request(body).format() == body`. Nothing is verified. Raises NoteError."""
    try:
        text = body if isinstance(body, str) else body.decode("utf-8")
        size = len(text.encode("utf-8"))
    except UnicodeError:
        raise NoteError("add-checkpoint", "not UTF-8") from None
    if size > MAX_REQUEST:
        raise NoteError("add-checkpoint", f"{size} bytes are more than {MAX_REQUEST}")
    head, separator, checkpoint_note = text.partition("\n\n")
    if not separator or not checkpoint_note:
        raise NoteError("add-checkpoint", "no empty line with a checkpoint after it")
    first, *lines = head.split("\n", MAX_HASHES + 1)
    old = _OLD.fullmatch(first)
    if old is None:
        raise NoteError("add-checkpoint", "the first line is not 'old SIZE', SIZE decimal without leading zeros")
    if len(lines) > MAX_HASHES:
        raise NoteError("add-checkpoint", f"more than {MAX_HASHES} hashes")
    hashes = [_base64.decode(line) for line in lines]
    known = tuple(item for item in hashes if item is not None)
    if len(known) != len(hashes):
        raise NoteError("add-checkpoint", "a hash is not standard padded base64")
    return AddCheckpoint(int(old[1]), known, checkpoint_note)
