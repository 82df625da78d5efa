"""That the checkpoint of a bundle extends what somebody signed of the log before it."""

from __future__ import annotations

from collections.abc import Sequence

from bitwitness.ledger import merkle
from bitwitness.ledger.checkpoint import Checkpoint


def check_extended(size: int, root: bytes, head: Checkpoint, proof: Sequence[str]) -> None:
    """Check that the tree of `head` begins with the tree (size, root); `proof` as a bundle holds it, hex hashes.

    Raises ProofError.
    """
    nodes = [bytes.fromhex(node) for node in proof]
    merkle.verify_consistency(size, head.size, root, head.root, nodes)
