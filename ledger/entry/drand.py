"""Public randomness rounds of drand: reading one from a file, when it was due, and whether the network signed it.

Only unchained networks whose key is pinned here: a round's signature then depends on its number alone, so nobody can
choose it. The signature is BLS on BLS12-381 (scheme bls-unchained-g1-rfc9380: signatures in G1, the key in G2); that
takes the package py_ecc, which `pip install 'bitwitness[drand]'` brings.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .. import foreign_json
from ..errors import BitwitnessError, JsonError
from .beacon import BeaconWrong, round_randomness

MAX_FILE = 4096
_DST = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
_HEX = re.compile("[0-9a-f]{96}")


class RoundUnusable(BitwitnessError):
    """The file is not the round that is needed."""


class CannotVerify(BitwitnessError):
    """Nothing here can check the signatures of this source."""


@dataclass(frozen=True)
class Source:
    """A network: its compressed public key in G2, and round n is due at genesis + (n − 1)·period seconds."""

    key: str
    genesis: int
    period: int


SOURCES: Mapping[str, Source] = {
    # Chain 52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971 of the League of Entropy.
    "quicknet": Source(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
        "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a",
        1692803367,
        3,
    )
}


def find_source(name: str) -> Source:
    """The pinned network of a name. Raises CannotVerify."""
    if name not in SOURCES:
        raise CannotVerify(f"no public randomness source {name} is known; use {', '.join(SOURCES)}")
    return SOURCES[name]


def round_time(source: Source, number: int) -> int:
    """When round `number` was due, seconds since 1970."""
    return source.genesis + (number - 1) * source.period


def round_after(source: Source, time: int) -> int:
    """The first round that is due later than `time`, seconds since 1970."""
    return max(1, (time - source.genesis) // source.period + 2)


def read_round(data: bytes, number: int) -> bytes:
    """The signature in a drand answer, JSON with `round`, `signature` and `randomness`. Raises RoundUnusable."""
    try:
        fields: Any = foreign_json.parse(data)
    except JsonError:
        fields = None
    if not isinstance(fields, dict) or type(fields.get("round")) is not int:
        raise RoundUnusable("the file is not a round as drand answers it: JSON with round, randomness and signature")
    if fields["round"] != number:
        raise RoundUnusable(f"the file holds round {fields['round']}, the intent names round {number}")
    signature = fields.get("signature")
    if not isinstance(signature, str) or not _HEX.fullmatch(signature):
        raise RoundUnusable("the round's signature is not 96 lower-case hex digits")
    decoded = bytes.fromhex(signature)
    if fields.get("randomness") not in (None, round_randomness(decoded).hex()):
        raise RoundUnusable("the round's randomness is not the SHA-256 of its signature")
    return decoded


def verify_round(name: str, number: int, signature: bytes) -> None:
    """Check that the network signed this round; takes some seconds. Raises BeaconWrong, CannotVerify."""
    source = find_source(name)
    with _recursion_kept():
        _verify(source, name, number, signature)


@contextmanager
def _recursion_kept() -> Iterator[None]:
    """py_ecc raises the interpreter's recursion limit, under which hostile JSON would overflow the stack."""
    limit = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _verify(source: Source, name: str, number: int, signature: bytes) -> None:
    try:
        # An extra of the package, and slow to import.
        from py_ecc.bls.hash_to_curve import hash_to_G1
        from py_ecc.bls.point_compression import decompress_G1, decompress_G2
        from py_ecc.optimized_bls12_381 import G2, curve_order, is_inf, multiply, pairing
    except ImportError:
        raise CannotVerify(
            "the signature of a drand round needs the package py_ecc: pip install 'bitwitness[drand]'"
        ) from None
    wrong = BeaconWrong(f"round {number} is not signed by {name}")
    if len(signature) != 48:
        raise wrong
    key = bytes.fromhex(source.key)
    try:
        public = decompress_G2((int.from_bytes(key[:48], "big"), int.from_bytes(key[48:], "big")))
        point = decompress_G1(int.from_bytes(signature, "big"))
    except ValueError:
        raise wrong from None
    message = hash_to_G1(hashlib.sha256(number.to_bytes(8, "big")).digest(), _DST, hashlib.sha256)
    # Outside the subgroup, or the point at infinity, would satisfy equations that no signature does.
    if is_inf(point) or not is_inf(multiply(point, curve_order)) or pairing(G2, point) != pairing(public, message):
        raise wrong
