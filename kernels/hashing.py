"""SHA-256 of many buffers at once: on every core, and two to a core, which takes no longer than one.

The digests are hashlib's, in half its time; for processors with the SHA instructions of x86 (csrc/hash_pairs.h).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bitwitness.kernels import _native

_SIZE = 32


def available() -> bool:
    """Whether this processor can. The functions below raise KernelError where it cannot."""
    return _native.hashes_pairs()


def chunk_leaves(buffers: Sequence[memoryview], chunk: int) -> list[list[bytes]]:
    """RFC 6962 leaf hashes, SHA-256(00 ‖ bytes), of the chunks of `chunk` bytes of every buffer."""
    hashes = iter(_split(_native.chunk_leaves(buffers, chunk, _threads())))
    return [[next(hashes) for _ in range(0, buffer.nbytes, chunk)] for buffer in buffers]


def macs(key: bytes, buffers: Sequence[Any]) -> list[bytes]:
    """HMAC-SHA-256 (RFC 2104) of every buffer, under one key of at most 64 bytes."""
    return _split(_native.macs(key, buffers, _threads()))


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + _SIZE] for at in range(0, len(hashes), _SIZE)]


def _threads() -> int:
    return min(64, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
