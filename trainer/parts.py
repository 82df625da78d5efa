"""The parts of a step, each committed to alone (`run.commit = "parts"`; docs/formats/commitments.md, parts/1).

Leaves, in order: the S shards; the S − 1 nodes of the fold in the order in which they are made; the norm. What an
update of a tensor starts from and gives stands in the states before and after.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.kernels.buffers import F32
from bitwitness.ledger import jcs
from bitwitness.ledger.commitments import Commitment, tree
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.replay_files import parts_file
from bitwitness.ledger.files.regular_file import read_regular
from bitwitness.ledger.jcs import f32_hex, f64_hex

from . import hashing
from .models.layout import Layout

MAX_FILE = 64 << 20

Json = dict[str, Any]


class PartsUnavailable(BitwitnessError):
    """What a trainer keeps of the parts of a step is not at hand, or not what its entry commits to."""


def count(shards: int) -> int:
    """How many leaves `parts/1` has."""
    return 2 * shards


def gradient_commitment(layout: Layout, gradient: F32) -> Commitment:
    """`gradient/1`: one tensor leaf for each tensor of a flat gradient [n], in byte order of the names."""
    return hashing.commit("gradient/1", layout.views(gradient))


def shard_leaf(shard: int, gradient: Commitment, loss: float, tokens: int) -> bytes:
    """The leaf of a shard: its gradient of the SUM of token losses, that sum, its valid tokens."""
    return jcs.encode(
        {"gradient": gradient.to_json(), "loss": f64_hex(loss), "part": "shard", "shard": shard, "tokens": tokens}
    )


def fold_leaf(first: int, shards: int, gradient: Commitment) -> bytes:
    """The leaf of the sum over the shards first … first + shards − 1."""
    return jcs.encode({"first": first, "gradient": gradient.to_json(), "part": "fold", "shards": shards})


def norm_leaf(loss: float, norm: float, tokens: int, scalars: dict[str, float]) -> bytes:
    """The last leaf: what follows from the whole fold before any tensor is updated, the clip factor among it."""
    return jcs.encode(
        {
            "loss": f64_hex(loss),
            "norm": f64_hex(norm),
            "part": "norm",
            "scalars": {name: f32_hex(value) for name, value in scalars.items()},
            "tokens": tokens,
        }
    )


@dataclass(frozen=True)
class PartLeaves:
    """The leaves of one step."""

    leaves: tuple[bytes, ...]

    def commit(self) -> Commitment:
        return tree("parts/1", self.leaves)


class Parts:
    """Collects the leaves of a step while it is computed."""

    def __init__(self, layout: Layout, kept: tuple[list[str], list[str]] = ([], [])) -> None:
        """`kept` are the leaves of the first shards and folds, where a step is gone on with (`so_far`)."""
        self._layout = layout
        self._shards = [text.encode() for text in kept[0]]
        self._folds = [text.encode() for text in kept[1]]

    def so_far(self) -> tuple[list[str], list[str]]:
        """The leaves of shards and folds, canonical JSON."""
        return [leaf.decode() for leaf in self._shards], [leaf.decode() for leaf in self._folds]

    def shard(self, shard: int, gradient: F32, loss: float, tokens: int) -> None:
        self._shards.append(shard_leaf(shard, gradient_commitment(self._layout, gradient), loss, tokens))

    def fold(self, first: int, shards: int, gradient: F32) -> None:
        self._folds.append(fold_leaf(first, shards, gradient_commitment(self._layout, gradient)))

    def finish(self, loss: float, norm: float, tokens: int, scalars: dict[str, float]) -> PartLeaves:
        return PartLeaves((*self._shards, *self._folds, norm_leaf(loss, norm, tokens, scalars)))


def save_leaves(run_folder: Path, step: int, leaves: PartLeaves) -> None:
    """Keep the leaves of a step, whole or not at all. A replay makes them again, so nothing waits for the disk."""
    path = parts_file(run_folder, step)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(jcs.encode([jcs.parse(leaf) for leaf in leaves.leaves]))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BitwitnessError(f"{path}: the parts could not be kept: {error.strerror}") from None


def read_leaves(run_folder: Path, step: int) -> bytes:
    """What is kept of the parts of a step, not yet believed. Raises PartsUnavailable."""
    path = parts_file(run_folder, step)
    try:
        return read_regular(path, MAX_FILE)
    except OSError as error:
        raise PartsUnavailable(f"{path}: {error.strerror}") from None


def check_leaves(data: bytes, step: int, expected: Json) -> PartLeaves:
    """The leaves of a step, if they are those of its `computed.parts`. Raises PartsUnavailable."""
    try:
        found = jcs.parse(data, max_bytes=MAX_FILE)
        leaves = PartLeaves(tuple(jcs.encode(leaf) for leaf in found) if isinstance(found, list) else ())
    except (ValueError, BitwitnessError) as error:
        raise PartsUnavailable(f"the parts of step {step} cannot be read: {error}") from None
    if leaves.commit().to_json() != expected:
        raise PartsUnavailable(f"the parts at hand are not those that step {step} commits to")
    return leaves


def names(shards: int, tensors: Sequence[str]) -> Iterator[str]:
    """Every part that an audit can take: a step is covered when all of them are."""
    yield from (f"shard:{shard}" for shard in range(shards))
    yield "fold"
    yield "norm"
    yield from (f"update:{name}" for name in tensors)
