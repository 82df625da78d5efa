"""Which documents are held out: decided by each document's own bytes, so nothing leaks.

A document is held out when the first 8 bytes of SHA-256("bitwitness/held-out/v1" ‖ 00 ‖ its bytes), read
big-endian, are below ⌊fraction·2^64⌋. Copies of a text fall on one side, more data never moves a document to
the other side, and anyone who has the text can check it.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

from bitwitness.ledger.exchange.replay_files import HELD_OUT

from .errors import DataError

__all__ = ["HELD_OUT", "RULE", "held_out_name", "is_held_out", "parse_fraction"]

RULE = "content/1"
_PREFIX = b"bitwitness/held-out/v1\x00"


def parse_fraction(text: str) -> Fraction:
    """A decimal in [0, 1), exactly. Raises DataError."""
    try:
        fraction = Fraction(text)
    except (ValueError, ZeroDivisionError):
        fraction = Fraction(-1)
    if not 0 <= fraction < 1 or "/" in text or len(text) > 20:
        raise DataError(f"--held-out {text}: give a decimal from 0 to below 1, such as 0.05")
    return fraction


def is_held_out(source: bytes, fraction: Fraction) -> bool:
    """Whether a document with these bytes is held out."""
    if not fraction:
        return False
    draw = int.from_bytes(hashlib.sha256(_PREFIX + source).digest()[:8], "big")
    return draw < fraction.numerator * 2**64 // fraction.denominator


def held_out_name(name: str) -> str:
    """The name of the dataset that holds what a build of `name` held out."""
    return name + HELD_OUT
