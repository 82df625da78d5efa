"""The public points of Ed25519 that a verifier accepts (RFC 8032, section 5.1).

Ed25519 verifiers disagree about low-order, mixed-order and non-canonical public keys. Every honestly
generated key is a canonical point of the prime-order subgroup, so anything else is refused once, here, and
all verifiers agree.
"""

from __future__ import annotations

from functools import lru_cache

from .errors import BadKey

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_SQRT_M1 = pow(2, (_P - 1) // 4, _P)

_Point = tuple[int, int, int, int]  # extended homogeneous coordinates X, Y, Z, T
_IDENTITY: _Point = (0, 1, 1, 0)


@lru_cache(maxsize=4096)
def check_point(raw: bytes) -> None:
    """Accept a 32-byte encoding of a point of prime order, else raise BadKey with the reason."""
    if len(raw) != 32:
        raise BadKey(f"an Ed25519 public key has 32 bytes, not {len(raw)}")
    point = _decode(raw)
    low = point
    for _ in range(3):
        low = _add(low, low)
    if _is_identity(low):
        raise BadKey(f"the public key {raw.hex()} has low order: anyone can sign for it")
    if not _is_identity(_multiply(_L, point)):
        raise BadKey(f"the public key {raw.hex()} is outside the prime-order subgroup")


def _decode(raw: bytes) -> _Point:
    number = int.from_bytes(raw, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= _P:
        raise BadKey(f"the public key {raw.hex()} is not canonical")
    numerator, denominator = (y * y - 1) % _P, (_D * y * y + 1) % _P
    x = numerator * pow(denominator, 3, _P) * pow(numerator * pow(denominator, 7, _P), (_P - 5) // 8, _P) % _P
    if denominator * x * x % _P != numerator:
        x = x * _SQRT_M1 % _P
    if denominator * x * x % _P != numerator:
        raise BadKey(f"the public key {raw.hex()} is not a point of the curve")
    if x == 0 and sign:
        raise BadKey(f"the public key {raw.hex()} is not canonical")
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _add(p: _Point, q: _Point) -> _Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiply(scalar: int, point: _Point) -> _Point:
    result = _IDENTITY
    while scalar:
        if scalar & 1:
            result = _add(result, point)
        point = _add(point, point)
        scalar >>= 1
    return result


def _is_identity(point: _Point) -> bool:
    return point[0] % _P == 0 and (point[1] - point[2]) % _P == 0
