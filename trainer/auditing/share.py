"""Sharing the audit of a run without a coordinator: rendezvous hashing over auditor keys (docs/formats/audit.md).

Everyone who has the ledger computes the same owner for each interval, an auditor that comes or goes moves only its
own intervals, and whoever is done with its own knows whose to take next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_DOMAIN = b"bitwitness/share/v1\x00"


def weight(run: str, first: int, last: int, auditor: str) -> bytes:
    """SHA-256("bitwitness/share/v1" ‖ 00 ‖ run ‖ first ‖ last ‖ keyid), numbers 8 bytes big-endian; the highest owns.

    `run` is the hex leaf hash of the genesis, `auditor` a hex keyid.
    """
    span = first.to_bytes(8, "big") + last.to_bytes(8, "big")
    return hashlib.sha256(_DOMAIN + bytes.fromhex(run) + span + bytes.fromhex(auditor)).digest()


def ranking(run: str, first: int, last: int, auditors: Iterable[str]) -> list[str]:
    """The auditors of an interval, its owner first; the others stand in for those before them."""
    return sorted(auditors, key=lambda auditor: weight(run, first, last, auditor), reverse=True)
