"""The shape of a step's fold, an RFC 6962 tree over its shards, and how ranks share the work of it.

None of it is in the bits: whoever computes a node adds the same two numbers.
"""

from __future__ import annotations

from typing import NamedTuple


class Node(NamedTuple):
    """The sum over `shards` shards from `first` on, of which its left child has `left`."""

    first: int
    shards: int
    left: int

    @property
    def right(self) -> int:
        """The first shard of its right child."""
        return self.first + self.left


class Crossing(NamedTuple):
    """A node that no rank has whole: the rank of its left child makes it, from what the rank of the right one sends."""

    node: Node
    receiver: int
    sender: int


def fold_order(shards: int) -> list[Node]:
    """The nodes of a fold as they are made: each right after its last shard, smaller ones first."""
    nodes, stack = [], []
    for shard in range(shards):
        stack.append((shard, 1))
        while len(stack) > 1 and (shard == shards - 1 or stack[-1][1] == stack[-2][1]):
            (_, right), (first, left) = stack.pop(), stack.pop()
            nodes.append(Node(first, left + right, left))
            stack.append((first, left + right))
    return nodes


def completed(shards: int) -> list[list[Node]]:
    """By shard, the nodes that are made right after it."""
    nodes: list[list[Node]] = [[] for _ in range(shards)]
    for node in fold_order(shards):
        nodes[node.first + node.shards - 1].append(node)
    return nodes


def ranges(shards: int, ranks: int) -> list[range]:
    """The shards of each rank: none has more than its share rounded up, and cuts lie at the largest subtrees.

    Takes at most as many ranks as shards.
    """
    share, cuts = -(-shards // ranks), [0]
    for rank in range(1, ranks):
        low = max(cuts[-1] + 1, shards - (ranks - rank) * share)
        high = min(cuts[-1] + share, shards - (ranks - rank))
        cuts.append(max(range(low, high + 1), key=lambda cut: (cut & -cut, cut)))
    return [range(low, high) for low, high in zip(cuts, [*cuts[1:], shards], strict=True)]


def crossings(shards: int, owned: list[range]) -> list[Crossing]:
    """The nodes whose shards several ranks have, in the order in which they are made."""
    owner = [rank for rank, own in enumerate(owned) for _ in own]
    nodes = [node for node in fold_order(shards) if owner[node.first] != owner[node.first + node.shards - 1]]
    return [Crossing(node, owner[node.first], owner[node.right]) for node in nodes]


def parents(crossed: list[Crossing]) -> dict[int, int]:
    """Who receives the last node that a rank sends, for every rank but 0: the tree by which the root comes back."""
    return {sender: receiver for _, receiver, sender in crossed if sender != receiver}
