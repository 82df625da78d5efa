"""Texts that end with a signed note: lines of their own, an empty line, the note (tlog-proof, tlog-witness).

The first empty line splits them: a note has one in itself, lines before it have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from . import _base64
from .errors import NoteError

MAX_HASHES = 63
"""Of a proof: no tree has more levels."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


def split(text: str | bytes, where: str, *, max_bytes: int, max_lines: int) -> tuple[list[str], str]:
    """The lines before the note, and the note, which is not read here. `where` names the format in errors.

    Lines beyond `max_lines` stand together in the last one. Raises NoteError.
    """
    try:
        body = text if isinstance(text, str) else text.decode("utf-8")
        size = len(body.encode("utf-8"))
    except (UnicodeError, AttributeError):  # the latter: neither text nor bytes
        raise NoteError(where, "not UTF-8") from None
    if size > max_bytes:
        raise NoteError(where, f"{size} bytes are more than {max_bytes}")
    head, separator, note = body.partition("\n\n")
    if not separator or not note:
        raise NoteError(where, "no empty line with a checkpoint after it")
    return head.split("\n", max_lines), note


def join(lines: Iterable[str], note: str) -> str:
    """The text that split() takes apart."""
    return "".join(f"{line}\n" for line in lines) + "\n" + note


def number(line: str, word: str) -> int | None:
    """N of the line `WORD N`, decimal without leading zeros and of at most 19 digits; None for any other line."""
    found = line.removeprefix(f"{word} ")
    return int(found) if found != line and _NUMBER.fullmatch(found) else None


def hashes(lines: Sequence[str], where: str) -> tuple[bytes, ...]:
    """The hashes of a proof, one a line. Their lengths are the caller's to check. Raises NoteError."""
    if len(lines) > MAX_HASHES:
        raise NoteError(where, f"more than {MAX_HASHES} hashes")
    decoded = [_base64.decode(line) for line in lines]
    known = tuple(item for item in decoded if item is not None)
    if len(known) != len(decoded):
        raise NoteError(where, "a hash is not standard padded base64")
    return known
