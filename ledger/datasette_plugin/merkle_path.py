"""An inclusion proof drawn as the path that it is: from the entry at the bottom to the root at the top.

Each row is a subtree that holds the entry; beside it stands the sibling that the proof supplies, left or right
as in the tree, and the two are hashed into the row above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .. import merkle
from ..errors import ProofError
from .display import short

WIDTH = 560
_ROW, _BOX_WIDTH, _BOX_HEIGHT, _GAP = 58, 168, 38, 26
_CENTRE = WIDTH / 2


@dataclass(frozen=True)
class Subtree:
    """The hash over entries [low, high)."""

    hash: bytes
    low: int
    high: int

    @property
    def label(self) -> str:
        if self.high - self.low == 1:
            return f"entry {self.low:,}"
        return f"entries {self.low:,}–{self.high - 1:,}"


@dataclass(frozen=True)
class Rung:
    """One step of the path: `node` holds the entry; `sibling` comes from the proof."""

    node: Subtree
    sibling: Subtree
    sibling_is_left: bool


def climb(index: int, size: int, leaf_hash: bytes, proof: Sequence[bytes]) -> tuple[list[Rung], Subtree]:
    """The rungs from the leaf upwards, and the root to which they lead.

    Raises ProofError if the proof has not the length of its place; whether the root is the signed one is for
    the caller to compare.
    """
    ranges = merkle.inclusion_ranges(index, size)
    if len(ranges) != len(proof):
        raise ProofError(f"the proof has {len(proof)} hashes; leaf {index} of {size} needs {len(ranges)}")
    node = Subtree(leaf_hash, index, index + 1)
    rungs = []
    for (low, high), digest in zip(ranges, proof, strict=True):
        left = low < node.low
        sibling = Subtree(digest, low, high)
        rungs.append(Rung(node, sibling, left))
        first, second = (sibling, node) if left else (node, sibling)
        node = Subtree(merkle.node_hash(first.hash, second.hash), first.low, second.high)
    return rungs, node


def draw(rungs: Sequence[Rung], root: Subtree) -> Markup:
    """The path as an SVG; the leaf's box links nowhere, since it is the page's own entry."""
    rows = len(rungs) + 1
    height = rows * _ROW - (_ROW - _BOX_HEIGHT) + 4
    parts: list[Markup] = []
    for number, rung in enumerate(rungs):
        top = 2 + (rows - 1 - number) * _ROW
        parts += _rung(rung, top)
    for number, node in enumerate([*(rung.node for rung in rungs), root]):
        top = 2 + (rows - 1 - number) * _ROW
        role = "root" if node is root else "leaf" if number == 0 else "node"
        parts.append(_box(node, _CENTRE - _BOX_WIDTH / 2, top, f"own {role}"))
    said = f"{len(rungs)} hashes lead from entry {rungs[0].node.low if rungs else root.low} to the root"
    return Markup('<svg class="path" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, said, Markup("").join(parts)
    )


def _rung(rung: Rung, top: float) -> list[Markup]:
    """The sibling beside its row, and the two lines into the row above."""
    reach = _BOX_WIDTH + _GAP
    middle = _CENTRE - reach if rung.sibling_is_left else _CENTRE + reach
    elbow = top - (_ROW - _BOX_HEIGHT) / 2
    return [
        Markup('<path class="edge own" d="M{:g},{:g}V{:g}"/>').format(_CENTRE, top, top - (_ROW - _BOX_HEIGHT)),
        Markup('<path class="edge" d="M{:g},{:g}V{:g}H{:g}"/>').format(middle, top, elbow, _CENTRE),
        _box(rung.sibling, middle - _BOX_WIDTH / 2, top, "given"),
    ]


def _box(node: Subtree, left: float, top: float, role: str) -> Markup:
    middle = left + _BOX_WIDTH / 2
    return Markup(
        '<g class="{}"><title>{}: {}</title><rect x="{:g}" y="{:g}" width="{:g}" height="{:g}" rx="4"/>'
        '<text class="what" x="{:g}" y="{:g}">{}</text><text class="hash" x="{:g}" y="{:g}">{}</text></g>'
    ).format(
        role, node.label, node.hash.hex(), left, top, _BOX_WIDTH, _BOX_HEIGHT,
        middle, top + 15, node.label, middle, top + 30, short(node.hash.hex(), 16),
    )  # fmt: skip
