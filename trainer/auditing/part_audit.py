"""Auditing one part of a step alone: a shard, the fold, the norm, the update of one tensor, or an eval of its state.

A shard needs the state before the step and its own windows, nothing else. The gradients that the other parts start from
are computed by the auditor, so only the state before the step ever comes from the trainer.
"""

from __future__ import annotations

import re
from typing import Any

from bitwitness.ledger import merkle
from bitwitness.ledger.errors import BitwitnessError

from ..config import UserModel
from ..data import WindowStream
from ..history import RunHistory
from ..material import Material, StoredStates
from ..models import own_model
from ..models.layout import Layout
from ..parts import check_leaves, gradient_commitment, names, shard_leaf
from ..replay import advance, nearest_state, stored_state
from ..sample import Unit
from ..state import State, StateUnavailable
from ..step import Tap, Workspace, step
from . import eval_audit
from .outcome import UnitResult

_SHARD = re.compile(r"shard:(0|[1-9][0-9]{0,5})")

Json = dict[str, Any]


def require_part(history: RunHistory, part: str, material: Material) -> None:
    """Raise BitwitnessError unless the run commits to parts and has this one; ModelUnavailable as `part_names`."""
    if history.config.run.commit != "parts":
        raise BitwitnessError(f'run {history.name} does not commit to parts of its steps; it has run.commit = "step"')
    every = part_names(history, material)
    if part not in every:
        raise BitwitnessError(f"--part {part}: the steps of run {history.name} have {', '.join(every[:8])}, …")


def part_names(history: RunHistory, material: Material) -> list[str]:
    """Every part of a step of this run. The tensors of a model of the user's are those of its captured program.

    Raises ModelUnavailable where that is not at hand, GraphError where it is none.
    """
    model = history.config.model
    if isinstance(model, UserModel):
        captured = own_model.captured(material.model(history), history)
        layout = Layout.of(()) if captured is None else captured.layout
    else:
        layout = Layout(model)
    return list(names(history.config.data.shards, layout.names))


class PartExaminer:
    """Computes one part of some steps again and compares its leaf, or the tensor, with what the step committed to."""

    def __init__(
        self,
        history: RunHistory,
        stored: StoredStates,
        material: Material,
        workspace: Workspace,
        stream: WindowStream,
        trusted: set[int],
    ) -> None:
        self._history, self._stored, self._material = history, stored, material
        self._workspace, self._stream, self._trusted = workspace, stream, trusted

    def examine(self, number: int, part: str, tap: Tap, held_out: WindowStream | None = None) -> UnitResult:
        """The outcome for one part of step `number`, or its evals on `held_out`. Raises what a replay raises."""
        unit = Unit(number, number, "chosen")
        if part == eval_audit.EVAL and held_out is not None:
            return eval_audit.outcome(self._history, self._workspace, self._at(number), held_out, tap)
        state = self._at(number - 1)
        shard = _SHARD.fullmatch(part)
        if shard is not None:
            expected, found = self._shard(number, int(shard[1]), state, tap)
        elif part.startswith("update:"):
            expected, found = self._update(number, part.removeprefix("update:"), state, tap)
        else:
            expected, found = self._from_gradients(number, part, state, tap)
        if expected == found:
            return UnitResult(unit, "match", part=part)
        reason = f"step {number}: {part.split(':')[0]} is not what the step committed to"
        where = {"computed": found, "expected": expected, "field": "parts." + _field(part), "step": number}
        return UnitResult(unit, "mismatch", reason=reason, found=where, part=part)

    def _at(self, number: int) -> State:
        """The state after step `number`: a stored one, or replayed from one and compared on the way."""
        state, _ = nearest_state(self._history, self._stored, self._workspace, number, self._trusted)
        advance(self._history, state, self._workspace, self._stream, number)
        return state

    def _leaves(self, number: int) -> tuple[bytes, ...]:
        given = self._material.parts(self._history, number)
        return check_leaves(given, number, self._history.computed(number)["parts"]).leaves

    def _shard(self, number: int, shard: int, state: State, tap: Tap) -> tuple[str, str]:
        workspace, data = self._workspace, self._workspace.config.data
        expected = self._leaves(number)[shard]
        first = state.control.cursor + shard * data.windows_per_shard
        self._stream.check_samples(first, data.windows_per_shard)
        gradient, loss, tokens = workspace.shard_gradient(workspace.weights(state.params), self._stream, first)
        tap(workspace.tapped(shard, gradient))
        found = shard_leaf(shard, gradient_commitment(workspace.layout, gradient), loss, tokens)
        workspace.release(gradient)
        return _leaf(expected), _leaf(found)

    def _from_gradients(self, number: int, part: str, state: State, tap: Tap) -> tuple[str, str]:
        """The nodes of the fold together, or the norm with clip factor and scalars."""
        shards, expected = self._workspace.config.data.shards, self._leaves(number)
        found = self._step(state, tap).leaves
        chosen = slice(shards, -1) if part == "fold" else slice(-1, None)
        return _tree(expected[chosen]), _tree(found[chosen])

    def _update(self, number: int, name: str, state: State, tap: Tap) -> tuple[str, str]:
        """The tensor after the step; the state there must be a stored one, whose tensors are in the ledger's trees."""
        if number not in self._history.states:
            raise StateUnavailable(f"step {number} is not stored, so its tensors cannot be told apart")
        self._step(state, tap)
        stored = stored_state(self._history, self._stored, self._workspace, number)
        return _digest(stored, name), _digest(state, name)

    def _step(self, state: State, tap: Tap) -> Any:
        self._stream.check_samples(state.control.cursor, self._workspace.config.data.windows_per_step)
        return step(state, self._stream, self._workspace, tap).parts


def _field(part: str) -> str:
    kind, _, which = part.partition(":")
    return f"{kind}.{which}"[:90].rstrip(".") if which else kind


def _leaf(leaf: bytes) -> str:
    return merkle.leaf_hash(leaf).hex()


def _tree(leaves: tuple[bytes, ...]) -> str:
    return merkle.root([merkle.leaf_hash(leaf) for leaf in leaves]).hex()


def _digest(state: State, name: str) -> str:
    """The tree over a tensor's weight and both its moments, as bytes."""
    parts = [state.layout.tensors(flat)[name].tobytes() for flat in (state.params, state.m, state.v)]
    return merkle.root([merkle.leaf_hash(part) for part in parts]).hex()
