"""Standard padded base64 (RFC 4648, section 4), with one spelling for each value."""

from __future__ import annotations

import base64
import binascii


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode(text: str) -> bytes | None:
    """The bytes, or None where `text` is not exactly what `encode` writes (unused low bits included)."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    return data if encode(data) == text else None
