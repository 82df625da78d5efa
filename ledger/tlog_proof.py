"""Proof files, C2SP tlog-proof v1: index, inclusion proof and checkpoint (docs/formats/proof.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import _base64, note, note_head
from .checkpoint import Checkpoint, open_checkpoint
from .errors import NoteError
from .merkle import HASH_SIZE, MAX_SIZE, verify_inclusion
from .note_head import MAX_HASHES

HEADER = "c2sp.org/tlog-proof@v1"
MAX_LINE = 64 * 1024
MAX_PROOF = note.MAX_NOTE + 2 * MAX_LINE


@dataclass(frozen=True)
class Proof:
    """What a `.tlog-proof` file says: `hashes` from the leaf's sibling upwards, `checkpoint_note` verbatim.

    `extra` is opaque and authenticated by nothing. Sizes and roots come from the checkpoint alone.
    """

    index: int
    hashes: tuple[bytes, ...]
    checkpoint_note: str
    extra: bytes | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < MAX_SIZE:
            raise NoteError("proof", f"the index {self.index} is not between 0 and 2^63-2")
        if len(self.hashes) > MAX_HASHES:
            raise NoteError("proof", f"more than {MAX_HASHES} hashes")
        if any(len(item) != HASH_SIZE for item in self.hashes):
            raise NoteError("proof", f"a hash has not {HASH_SIZE} bytes")
        if self.extra is not None and not 0 < len(self.extra) <= MAX_LINE // 2:
            raise NoteError("proof", f"the extra data has not 1 to {MAX_LINE // 2} bytes")
        if not self.checkpoint_note.endswith("\n") or len(self.checkpoint_note) > note.MAX_NOTE:
            raise NoteError("proof", "the checkpoint is too long or does not end with a newline")

    def format(self) -> str:
        """The file's text."""
        lines = [HEADER]
        if self.extra is not None:
            lines.append(f"extra {_base64.encode(self.extra)}")
        lines.append(f"index {self.index}")
        lines += [_base64.encode(item) for item in self.hashes]
        return note_head.join(lines, self.checkpoint_note)


def parse(text: str | bytes) -> Proof:
    """Read a proof file strictly; `parse(text).format() == text`. Nothing is verified. Raises NoteError."""
    lines, checkpoint_note = note_head.split(text, "proof", max_bytes=MAX_PROOF, max_lines=MAX_HASHES + 3)
    if any(len(line) > MAX_LINE for line in lines):
        raise NoteError("proof", f"a line is longer than {MAX_LINE} characters")
    if lines.pop(0) != HEADER:
        raise NoteError("proof", f"the first line is not {HEADER}")
    extra = None
    if lines and lines[0].startswith("extra "):
        extra = _base64.decode(lines.pop(0).removeprefix("extra "))
        if extra is None:
            raise NoteError("proof", "the extra data is not standard padded base64")
    index = note_head.number(lines.pop(0), "index") if lines else None
    if index is None:
        raise NoteError("proof", "no line 'index N', N decimal without leading zeros")
    return Proof(index, note_head.hashes(lines, "proof"), checkpoint_note, extra)


def verify(
    proof: Proof,
    leaf_hash: bytes,
    verifiers: Iterable[note.Verifier],
    origin: str,
    cosigners: Iterable[note.Verifier] = (),
) -> tuple[Checkpoint, note.Note]:
    """Check that `leaf_hash` is in the log `origin`, by a checkpoint that one of `verifiers` signed.

    Returns the checkpoint and its note. Raises NoteError, NoKnownSigner, SignatureError or ProofError.
    """
    checkpoint, opened = open_checkpoint(proof.checkpoint_note, verifiers, origin, cosigners)
    verify_inclusion(proof.index, checkpoint.size, leaf_hash, proof.hashes, checkpoint.root)
    return checkpoint, opened
