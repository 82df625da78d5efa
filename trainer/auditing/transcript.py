"""What an auditor can only know by computing: the transcript of a replay (docs/formats/audit.md).

A copied hash proves nothing. A transcript is the tree over HMAC-SHA-256 of the raw bytes of every tap, keyed by
the sample's seed and the auditor's key, so it can be neither copied from the ledger nor from another auditor,
and any later replay can check it (docs/formats/audit.md, transcript).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from bitwitness.kernels.buffers import F32
from bitwitness.ledger import jcs, merkle
from bitwitness.ledger.commitments import Commitment, from_leaf_hashes

from ..hashing import macs

_DOMAIN = b"bitwitness/transcript/v1\x00"


class Transcript:
    """Collects taps in the order in which a step makes them; the order is part of the commitment."""

    def __init__(self, seed: bytes, auditor: str) -> None:
        """`seed` is the sample's 32 bytes, `auditor` the hex keyid of the auditor's key."""
        self._key = hashlib.sha256(_DOMAIN + seed + bytes.fromhex(auditor)).digest()
        self._hashes: list[bytes] = []

    @property
    def hashes(self) -> list[bytes]:
        """The leaf hashes so far, 32 bytes each."""
        return self._hashes

    def restore(self, hashes: list[bytes]) -> None:
        """Go on from the leaf hashes that the same transcript had before."""
        self._hashes = list(hashes)

    def add(self, step: int, taps: Iterable[tuple[str, F32]]) -> None:
        """Add taps of a step by name: float32 values, row-major, as little-endian bytes. Reads all of them.

        They are hashed side by side, for theirs are most of the bytes that a replay hashes; their order stays.
        """
        named = list(taps)
        found = macs(self._key, [values for _, values in named])
        self._hashes += [
            merkle.leaf_hash(jcs.encode({"mac": mac.hex(), "step": step, "tap": name}))
            for (name, _), mac in zip(named, found, strict=True)
        ]

    def commit(self) -> Commitment:
        return from_leaf_hashes("transcript/1", self._hashes)
