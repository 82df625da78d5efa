"""Checkpoints, C2SP tlog-checkpoint: a log's size and root as a signed note (docs/formats/checkpoint.md)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from . import _base64, note
from .errors import NoKnownSigner, NoteError
from .keys import PublicKey
from .merkle import EMPTY_ROOT, HASH_SIZE, MAX_SIZE

MAX_EXTENSIONS = 100

_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_CONTROL = re.compile("[\x00-\x1f]")


@dataclass(frozen=True)
class Checkpoint:
    """The tree head of a log: `root` is the 32-byte RFC 6962 root of its first `size` entries.

    `extensions` are further lines that other logs may add; this one never does.
    """

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.origin or _CONTROL.search(self.origin):
            raise NoteError("checkpoint", "the origin is empty or holds control characters")
        if not 0 <= self.size <= MAX_SIZE:
            raise NoteError("checkpoint", f"the size {self.size} is not between 0 and 2^63-1")
        if len(self.root) != HASH_SIZE:
            raise NoteError("checkpoint", f"the root has {len(self.root)} bytes, not {HASH_SIZE}")
        if self.size == 0 and self.root != EMPTY_ROOT:
            raise NoteError("checkpoint", "the root of an empty tree is SHA-256 of nothing")
        if any(not line or _CONTROL.search(line) for line in self.extensions):
            raise NoteError("checkpoint", "an extension line is empty or holds control characters")

    def format(self) -> str:
        """The note text: origin, size and root, each on a line, then the extension lines."""
        lines = (self.origin, str(self.size), _base64.encode(self.root), *self.extensions)
        return "".join(f"{line}\n" for line in lines)


def parse_checkpoint(text: str | bytes) -> Checkpoint:
    """Read a checkpoint's note text (without signatures); `parse_checkpoint(text).format() == text`.

    Raises NoteError for what C2SP tlog-checkpoint does not allow, and for sizes above 2^63-1.
    """
    try:
        body = text if isinstance(text, str) else text.decode("utf-8")
        body.encode("utf-8")
    except (UnicodeError, AttributeError):  # the latter: neither text nor bytes
        raise NoteError("checkpoint", "not UTF-8") from None
    if len(body) > note.MAX_NOTE:
        raise NoteError("checkpoint", f"longer than {note.MAX_NOTE} characters")
    if not body.endswith("\n"):
        raise NoteError("checkpoint", "does not end with a newline")
    lines = body[:-1].split("\n", MAX_EXTENSIONS + 3)
    if len(lines) < 3:
        raise NoteError("checkpoint", "fewer than three lines: origin, size and root")
    if len(lines) > MAX_EXTENSIONS + 3:
        raise NoteError("checkpoint", f"more than {MAX_EXTENSIONS} extension lines")
    origin, size, root, *extensions = lines
    if not _SIZE.fullmatch(size):
        raise NoteError("checkpoint", f"the size {size[:40]!r} is not a decimal number without leading zeros")
    decoded = _base64.decode(root)
    if decoded is None:
        raise NoteError("checkpoint", "the root is not standard padded base64")
    return Checkpoint(origin, int(size), decoded, tuple(extensions))


def open_checkpoint(
    text: str | bytes,
    verifiers: Iterable[note.Verifier],
    origin: str,
    cosigners: Iterable[note.Verifier] = (),
) -> tuple[Checkpoint, note.Note]:
    """Verify a signed checkpoint (note.open_note) and read it; its origin must be `origin`.

    One of `verifiers`, the log's keys, must have signed; `cosigners` may have.
    """
    logs = list(verifiers)
    opened = note.open_note(text, [*logs, *cosigners])
    if not any(item.verifier in logs for item in opened.verified):
        raise NoKnownSigner("note", "cosigned, but no known key of the log signed it")
    checkpoint = parse_checkpoint(opened.text)
    if checkpoint.origin != origin:
        raise NoteError("checkpoint", f"it is of the log {checkpoint.origin[:200]!r}, not of {origin!r}")
    return checkpoint, opened


def default_origin(log_key: PublicKey) -> str:
    """`bitwitness.invalid/` and the first 16 hex digits of SHA-256(log public key): unique for each log."""
    return f"bitwitness.invalid/{hashlib.sha256(log_key.raw).hexdigest()[:16]}"
