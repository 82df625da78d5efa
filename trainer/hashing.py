"""What a run hashes: states, gradients and taps. By the kernels where the processor lets them, else by hashlib.

Whoever verifies a run without replaying it hashes by hashlib alone (ledger/commitments.py).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from bitwitness.kernels import hashing
from bitwitness.kernels.buffers import F32
from bitwitness.ledger import commitments
from bitwitness.ledger.commitments import CHUNK, Commitment, TensorView, byte_view
from bitwitness.ledger.files.hash_pool import submit


def commit(type: str, views: Mapping[str, TensorView]) -> Commitment:
    """As commitments.tensors."""
    if not hashing.available():
        return commitments.tensors(type, views)
    return commitments.tensors(type, views, lambda buffers: hashing.chunk_leaves(buffers, CHUNK))


def macs(key: bytes, values: Sequence[F32]) -> list[bytes]:
    """HMAC-SHA-256 of each array's bytes, row-major and little-endian."""
    views = [byte_view(array) for array in values]
    if hashing.available():
        return hashing.macs(key, views)
    return [mac.result() for mac in [submit(hmac.digest, key, view, "sha256") for view in views]]
