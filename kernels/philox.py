"""Randomness: Philox4x32-10 and what is drawn from it, by the native library (docs/arithmetic.md, Randomness).

A value depends on its key and its logical position alone, never on who draws it, or in what order. Buffers are
contiguous float32 CPU arrays (torch or numpy), seen flat in row-major order.
"""

from __future__ import annotations

import hashlib
from typing import Any

from bitwitness.kernels import _native
from bitwitness.kernels.errors import KernelError

Key = tuple[int, int]


def derive_key(seed: int, purpose: str, name: str) -> Key:
    """The key of one use: first 8 bytes of SHA-256(seed, 8 bytes big-endian ‖ purpose ‖ 00 ‖ name).

    Two little-endian 32-bit words. Raises KernelError for a seed outside 0 … 2^64 − 1 or a name not in ASCII.
    """
    if not 0 <= seed < 1 << 64:
        raise KernelError(f"seed must be 0 … 2^64 - 1, not {seed}")
    if not (purpose.isascii() and name.isascii()) or "\0" in purpose:
        raise KernelError(f"purpose and name of a random key must be ASCII: {purpose!r}, {name!r}")
    data = seed.to_bytes(8, "big") + purpose.encode("ascii") + b"\0" + name.encode("ascii")
    digest = hashlib.sha256(data).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def uniform(out: Any, key: Key, *, first: int = 0) -> None:
    """Fill with elements first, first + 1, … of a uniform tensor over [0, 1), multiples of 2^-24."""
    _native.uniform(out, key, first)


def normal(out: Any, key: Key, *, first: int = 0) -> None:
    """Fill with elements first, first + 1, … of a standard normal tensor (Box–Muller)."""
    _native.normal(out, key, first)


def trunc_normal(out: Any, key: Key, *, std: float, bound: float, first: int = 0) -> None:
    """Fill with normals cut at ±bound standard deviations, times std; std and bound are rounded to binary32.

    Raises KernelError for a bound that leaves next to nothing, which would be drawn for ever.
    """
    if not bound >= 0.125:
        raise KernelError(f"bound must be at least 0.125 standard deviations, not {bound}")
    _native.trunc_normal(out, key, std, bound, first)


def permutation(i: int, n: int, key: Key, epoch: int = 0) -> int:
    """Where the keyed bijection of 0 … n − 1 of this epoch sends i. Raises KernelError unless 0 <= i < n < 2^63."""
    if not 0 <= i < n < 1 << 63:
        raise KernelError(f"permutation needs 0 <= i < n < 2^63, not i = {i}, n = {n}")
    return _native.permutation(i, n, key, epoch)
