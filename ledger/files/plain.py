"""Text for a terminal or a report, of which somebody else may have written a part.

Printable ASCII and the few marks of our own words go through; all else is shown by its number, as in \\x1b.
"""

from __future__ import annotations

# Besides printable ASCII: the ellipsis, dashes, arrow, relation signs and branches of our own messages.
_OWN = frozenset(
    "\N{HORIZONTAL ELLIPSIS}\N{EN DASH}\N{EM DASH}\N{RIGHTWARDS ARROW}\N{LESS-THAN OR EQUAL TO}"
    "\N{BOX DRAWINGS LIGHT VERTICAL AND RIGHT}\N{BOX DRAWINGS LIGHT UP AND RIGHT}\N{BOX DRAWINGS LIGHT HORIZONTAL}"
    "\N{BOX DRAWINGS LIGHT VERTICAL}\N{MULTIPLICATION SIGN}"
)


def plain(text: str) -> str:
    """Text that moves no cursor, breaks no line and imitates no other: the rest as \\xNN or \\uNNNN."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in _OWN or (char.isascii() and char.isprintable()) else _code(char) for char in text)


def _code(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
