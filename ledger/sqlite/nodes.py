"""Where inner nodes of the Merkle tree are stored: with the entry that completes them, the last one under each.

Entry n completes one inner node at each of the levels 1 … trailing ones of n. Its row holds their hashes one after the
other, from level 1 up.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..merkle import HASH_SIZE, Node

NODE = f"SELECT substr(nodes, {HASH_SIZE} * (?1 - 1) + 1, {HASH_SIZE}) FROM entries WHERE idx = ((?2 + 1) << ?1) - 1"
"""The hash of the perfect subtree (?1 = level from 1, ?2 = index); an empty one, or no row, where it is not stored."""


def column(completed: Iterable[Node]) -> bytes:
    """The `nodes` of an entry that completes these perfect subtrees, its own leaf hash (level 0) first."""
    return b"".join([digest for level, _index, digest in completed if level])
