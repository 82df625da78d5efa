"""A second valid Ed25519 signature of one key on one message, as whoever has the key can make any number of them."""

from __future__ import annotations

import hashlib

from bitwitness.ledger import _edwards, keys, note

_BASE = _edwards._decode(bytes([0x58]) + bytes([0x66]) * 31)


def second_line(body: str, name: str, seed: bytes, line: note.SignatureLine) -> note.SignatureLine:
    """`line`, the signature of the key of this seed on a note's body, made anew with another nonce."""
    public = keys.Signer.from_seed("log", seed).public.raw
    secret = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little") & ((1 << 254) - 8) | 1 << 254
    x, y, z, _ = _edwards._multiply(12345, _BASE)
    inverse = pow(z, -1, _edwards._P)
    x, y = x * inverse % _edwards._P, y * inverse % _edwards._P
    point = (y | (x & 1) << 255).to_bytes(32, "little")
    challenge = int.from_bytes(hashlib.sha512(point + public + body.encode()).digest(), "little")
    scalar = (12345 + challenge * secret) % _edwards._L
    return note.SignatureLine(name, line.key_id, point + scalar.to_bytes(32, "little"))
