"""Inclusion proofs in the format of the `merkletools` package, an independent implementation.

With leaves added by `add_leaf(hex leaf hash, do_hash=False)` and a `hash_function` that puts the byte 0x01
before what it hashes, its trees are those of RFC 6962. It is a second opinion, never the verifier: it ignores
index and size.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import merkle
from ..errors import ProofError


def to_merkletools(proof: Sequence[bytes], index: int, size: int) -> list[dict[str, str]]:
    """[{"left" or "right": hex sibling}, …] from the leaf upwards. Raises ProofError if lengths disagree."""
    ranges = merkle.inclusion_ranges(index, size)
    if len(proof) != len(ranges):
        raise ProofError(f"the proof has {len(proof)} hashes; leaf {index} of {size} needs {len(ranges)}")
    return [
        {"right" if low > index else "left": sibling.hex()} for (low, _high), sibling in zip(ranges, proof, strict=True)
    ]
