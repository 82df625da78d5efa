"""Randomness: Philox4x32-10 and what is drawn from it (docs/arithmetic.md, "Randomness").

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A value depends on its
key and its logical position alone, never on who draws it or in what order.
"""

import hashlib

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import functions

Key = tuple[int, int]
Words = tuple[int, int, int, int]

ROUNDS = 10
FEISTEL_ROUNDS = 4
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: Words, key: Key, rounds: int = ROUNDS) -> Words:
    """Four random 32-bit words for a counter of four and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def derive_key(seed: int, purpose: str, name: str) -> Key:
    """The key of one use: first 8 bytes of SHA-256(seed, 8 bytes big-endian | purpose | 00 | name)."""
    data = seed.to_bytes(8, "big") + purpose.encode("ascii") + b"\0" + name.encode("ascii")
    digest = hashlib.sha256(data).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def words_of_element(e: int, key: Key, a: int = 0, b: int = 0) -> Words:
    """The four output words that element e shares with its neighbours; e itself takes word e mod 4."""
    block = e // 4
    return philox4x32((block & _MASK, block >> 32, a, b), key)


def uniform(e: int, key: Key) -> int:
    """Element e of a uniform tensor over [0, 1): the upper 24 bits of its word, as binary32 bits."""
    return _fraction(words_of_element(e, key)[e % 4] >> 8)


def normal(e: int, key: Key, attempt: int = 0) -> int:
    """Element e of a standard normal tensor (Box-Muller on the word pairs (0, 1) and (2, 3))."""
    words = words_of_element(e, key, attempt)
    pair = e % 4 // 2 * 2
    u1 = _fraction(2 * (words[pair] >> 9) + 1)  # odd, so never 0: its logarithm is finite
    u2 = _fraction(words[pair + 1] >> 8)
    radius = f32.sqrt(f32.mul(f32.MINUS_TWO, functions.log(u1)))
    return f32.mul(radius, functions.cos2pi(u2) if e % 2 == 0 else functions.sin2pi(u2))


def trunc_normal(e: int, key: Key, std: int, bound: int) -> int:
    """Element e of a normal tensor cut at ±bound standard deviations, times std (std, bound: bits).

    Each element takes its value from the first attempt in which its own value lies within the bound.
    """
    attempt = 0
    while True:
        z = normal(e, key, attempt)
        if not f32.greater(z, bound) and not f32.greater(f32.neg(bound), z):
            return f32.mul(z, std)
        attempt += 1


def permutation(i: int, n: int, key: Key, epoch: int) -> int:
    """Where a keyed bijection of 0 ... n-1 sends i, for 0 <= i < n.

    A 4-round Feistel network over the least even number of bits that holds n, walked until it lands below n.
    """
    half = ((n - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    x = i
    while True:
        left, right = x >> half, x & mask
        for number in range(FEISTEL_ROUNDS):
            word = philox4x32((right, number, epoch & _MASK, epoch >> 32), key)[0]
            left, right = right, left ^ word & mask
        x = left << half | right
        if x < n:
            return x


def _fraction(count: int) -> int:
    """count * 2^-24, exact for a count below 2^24."""
    return f32.rounded(count << (149 - 24))
