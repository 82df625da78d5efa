"""How ranks share a step: each computes its shards, they exchange nodes of the fold, and all make the same update.

    rank 0                                  the others
    order: step n                     ──▶
    its shards                              their shards
                                      ◀──   losses and counts of their shards
    losses and counts of all          ──▶   everyone is done
    nodes of the fold, from right child to left: the owner of a node's first shard makes it
    root of the fold                  ──▶   along the same edges
                                      ◀──   roots of gradients, where a step commits to its parts
    norm, clip, update                      norm, clip, update
                                      ◀──   weights, to be compared

Only rank 0 has keys and ledger. Numbers are added in the order of the tree and of the shards, never of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from signal import SIGINT, SIGTERM
from typing import Any

from bitwitness.kernels.buffers import F32
from bitwitness.ledger import jcs
from bitwitness.ledger.commitments import Commitment, byte_view
from bitwitness.ledger.errors import FormatError
from bitwitness.ledger.jcs import f64_from_hex, f64_hex

from ..fold import crossings, fold_order, parents, ranges
from ..parts import Parts, fold_leaf, shard_leaf
from ..state import Control, State
from ..step import PartialFold, Sums, Workspace
from ..stop import Stop
from .channel import Channel, RankError, fail, understood

Json = dict[str, Any]


class Ranks:
    """One rank's side of the exchange (step.Exchange). `channels` are by rank."""

    def __init__(self, rank: int, ranks: int, shards: int, channels: dict[int, Channel]) -> None:
        self.rank, self.ranks, self.channels = rank, ranks, channels
        self.owned = ranges(shards, ranks)
        self.own = self.owned[rank]
        self._shards = shards
        self._crossings = crossings(shards, self.owned)
        self._parents = parents(self._crossings)

    def combine(self, fold: PartialFold, workspace: Workspace) -> tuple[F32, list[Sums]]:
        """The root of the fold, [n], and the sums of every shard, from what this rank has of them."""
        sums = self._share_sums(fold.sums)
        held, at = {}, self.own.start
        for count, gradient in fold.stack:
            held[at], at = gradient, at + count
        fold.stack.clear()
        for node, receiver, sender in self._crossings:
            if self.rank == sender != receiver:
                right = held.pop(node.right)
                self.channels[receiver].send(byte_view(right))
                workspace.release(right)
            elif self.rank == receiver:
                right = held.pop(node.right) if sender == receiver else workspace.gradient()
                if sender != receiver:
                    self.channels[sender].receive(byte_view(right))
                held[node.first] = workspace.fold(held[node.first], right)
                if fold.parts is not None:
                    fold.parts.fold(node.first, node.shards, held[node.first])
        root = held[0] if self.rank == 0 else workspace.gradient()
        self._spread(root)
        if fold.parts is not None:
            fold.parts = self._share_parts(fold.parts, workspace, sums)
        return root, sums

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()

    def fail(self, error: BaseException) -> None:
        """Tell everyone why this rank goes."""
        fail(self.channels.values(), error)

    def _spread(self, data: F32) -> None:
        """Bring what rank 0 has in `data` to the `data` of every rank, by the edges of the fold."""
        view = byte_view(data)
        if self.rank:
            self.channels[self._parents[self.rank]].receive(view)
        for child, parent in reversed(self._parents.items()):
            if parent == self.rank:
                self.channels[child].send(view)

    def _share_sums(self, own: list[Sums]) -> list[Sums]:
        raise NotImplementedError

    def _share_parts(self, parts: Parts, workspace: Workspace, sums: list[Sums]) -> Parts | None:
        raise NotImplementedError


class Leader(Ranks):
    """Rank 0. A signal that any rank had is passed on to `stop`."""

    def __init__(self, ranks: int, shards: int, channels: dict[int, Channel], stop: Stop) -> None:
        super().__init__(0, ranks, shards, channels)
        self._stop, self._begun, self._ended = stop, False, False

    def begin(self, state: State) -> None:
        """Have every rank compute its shards of the step after `state`, which they are sent before the first one."""
        if not self._begun:
            self._order({"control": state.control.to_json(), "state": state.commit().digest})
            for flat in (state.params, state.m, state.v):
                self._spread(flat)
            self._begun = True
        self._order({"step": state.control.step + 1})

    def agree(self, step: int, weights: Commitment) -> None:
        """Raise RankError unless every rank has these weights after `step`."""
        roots = {0: weights.root} | {rank: str(answer.get("weights")) for rank, answer in self._hear()}
        found = list(roots.values())
        usual = max(found, key=lambda root: (found.count(root), root == weights.root))
        odd = [rank for rank, root in roots.items() if root != usual]
        if odd:
            raise RankError(
                odd[0], f"has other weights than {_others(self.ranks)} after step {step}: it computes wrong"
            )

    def end(self, outcome: str, signal: int | None) -> None:
        """Tell every rank how it ended, and that it is over."""
        self._ended = True
        for channel in self.channels.values():
            with suppress(RankError):  # who is gone by now has done its part
                channel.tell({"end": outcome} | ({} if signal is None else {"signal": signal}))

    def fail(self, error: BaseException) -> None:
        if not self._ended:
            super().fail(error)

    def _order(self, order: Json) -> None:
        for channel in self.channels.values():
            channel.tell(order)

    def _hear(self) -> Iterator[tuple[int, Json]]:
        """What every rank answers, in their order."""
        for rank, channel in sorted(self.channels.items()):
            yield rank, channel.hear()

    def _share_sums(self, own: list[Sums]) -> list[Sums]:
        sums = list(own)
        for rank, answer in self._hear():
            sums += _sums(rank, answer, len(self.owned[rank]))
            if answer.get("stop") in (SIGINT, SIGTERM):
                self._stop.number = self._stop.number or answer["stop"]
        self._order(_said(sums))
        return sums

    def _share_parts(self, parts: Parts, workspace: Workspace, sums: list[Sums]) -> Parts:
        nodes, size = fold_order(self._shards), len(workspace.layout.names)
        owner = [rank for rank, own in enumerate(self.owned) for _ in own]
        made = [len(own) + sum(owner[node.first] == rank for node in nodes) for rank, own in enumerate(self.owned)]
        said = {0: _roots(parts)} | {rank: answer.get("gradients") for rank, answer in self._hear()}
        roots = {rank: iter(_gradients(rank, found, made[rank], size)) for rank, found in said.items()}
        shards = [
            shard_leaf(shard, next(roots[owner[shard]]), loss, tokens) for shard, (loss, tokens) in enumerate(sums)
        ]
        folds = [fold_leaf(node.first, node.shards, next(roots[owner[node.first]])) for node in nodes]
        return Parts(workspace.layout, ([leaf.decode() for leaf in shards], [leaf.decode() for leaf in folds]))


class Follower(Ranks):
    """Any other rank. A signal that it had goes to rank 0 with its next sums."""

    def __init__(self, rank: int, ranks: int, shards: int, channels: dict[int, Channel], stop: Stop) -> None:
        super().__init__(rank, ranks, shards, channels)
        self._stop = stop

    def order(self) -> Json:
        """What to do next: take a `state`, compute a `step`, or the `end`."""
        return self.channels[0].hear(patient=True)

    def take(self, state: State, order: Json) -> None:
        """Fill `state` with the one that rank 0 sends. Raises RankError where it is not the one of the order."""
        with understood(0):
            state.control = Control(**order["control"])
        for flat in (state.params, state.m, state.v):
            self._spread(flat)
        if state.commit().digest != order["state"]:
            raise RankError(self.rank, "has not received the state that rank 0 sent")

    def begin(self, state: State) -> None:
        """Rank 0 has said so."""

    def agree(self, step: int, weights: Commitment) -> None:
        self.channels[0].tell({"weights": weights.root})

    def _share_sums(self, own: list[Sums]) -> list[Sums]:
        self.channels[0].tell(_said(own) | ({} if self._stop.number is None else {"stop": int(self._stop.number)}))
        return _sums(0, self.channels[0].hear(), self._shards)

    def _share_parts(self, parts: Parts, workspace: Workspace, sums: list[Sums]) -> None:
        self.channels[0].tell({"gradients": _roots(parts)})


def _said(sums: list[Sums]) -> Json:
    return {"sums": [[f64_hex(loss), tokens] for loss, tokens in sums]}


def _sums(rank: int, answer: Json, shards: int) -> list[Sums]:
    """What a rank says of so many shards."""
    try:
        sums = [(f64_from_hex(loss), int(tokens)) for loss, tokens in answer["sums"]]
    except (FormatError, KeyError, TypeError, ValueError):
        sums = []
    if len(sums) != shards or any(tokens < 0 for _, tokens in sums):
        raise RankError(rank, f"sends something else where losses and tokens of {shards} shards must come")
    return sums


def _roots(parts: Parts) -> list[str]:
    """The roots of the gradients that some parts commit to, those of shards first."""
    return [jcs.parse(leaf.encode())["gradient"]["root"] for leaves in parts.so_far() for leaf in leaves]


def _gradients(rank: int, roots: Any, count: int, size: int) -> list[Commitment]:
    try:
        found = [Commitment("gradient/1", size, root) for root in roots]
    except (FormatError, TypeError):
        found = []
    if len(found) != count:
        raise RankError(rank, f"sends something else where the roots of {count} gradients must come")
    return found


def _others(ranks: int) -> str:
    return "the others" if ranks > 2 else "the other rank"
