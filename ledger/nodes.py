"""Where inner nodes of the Merkle tree are stored: positions in the order in which they become complete.

Leaf n completes one inner node at each of the levels 1 … trailing zeros of n + 1; n leaves have completed
n - popcount(n) in all. So node (level, index), covering leaves up to e = ((index + 1) << level) - 1, is number
e - popcount(e) + level - 1, counted from zero.
"""

from __future__ import annotations


def position(level: int, index: int) -> int:
    """The stored position of the perfect subtree (level, index); level >= 1."""
    last = ((index + 1) << level) - 1
    return last - last.bit_count() + level - 1


def count(size: int) -> int:
    """How many inner nodes a tree of `size` leaves has completed."""
    return size - size.bit_count()
