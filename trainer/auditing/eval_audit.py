"""Evaluating again what the ledger says was evaluated: in every replay that passes such a step, and as an audit alone.

An audit of an eval needs the state of its step, a stored one or replayed from one, and the held-out windows; no
gradient. Its unit is that step with the part `eval` (docs/formats/audit.md).
"""

from __future__ import annotations

from typing import Any

from bitwitness.kernels.errors import KernelError
from bitwitness.ledger import jcs, merkle
from bitwitness.ledger.entry.audit_rules import EVAL_PART
from bitwitness.ledger.errors import BitwitnessError

from .. import records
from ..data import WindowStream
from ..history import RunHistory
from ..replay import compare
from ..sample import Unit
from ..state import State
from ..step import Tap, Workspace
from .outcome import UnitResult

EVAL = EVAL_PART
ALL = "all"

Json = dict[str, Any]


def find_steps(history: RunHistory, wanted: str) -> list[int]:
    """The steps whose evals `wanted` names: "all", or one by the index or leaf hash of its entry.

    That of the initial state is in every audit already. Raises BitwitnessError.
    """
    if wanted == ALL:
        found = sorted({entry.predicate["step"] for entry in history.evals} - {history.first})
        if not found:
            raise BitwitnessError(f"run {history.name} measured no step on held-out data; it has no eval to audit")
        return found
    for entry in history.evals:
        if wanted in (str(entry.index), entry.leaf_hash.hex()):
            if entry.predicate["step"] == history.first:
                raise BitwitnessError(f"eval {wanted} is of the initial state, which every audit evaluates: --steps")
            return [entry.predicate["step"]]
    listed = ", ".join(str(entry.index) for entry in history.evals[-8:]) or "none"
    raise BitwitnessError(f"entry {wanted} is no eval of run {history.name} (its last ones: {listed}); or --eval all")


def recorded(history: RunHistory, step: int) -> list[Json]:
    """What the ledger says was computed of the state after `step` on held-out data."""
    return [entry.predicate["computed"] for entry in history.evals if entry.predicate["step"] == step]


def evaluate(
    history: RunHistory, workspace: Workspace, state: State, held_out: WindowStream, tap: Tap | None = None
) -> tuple[Json | None, dict[str, tuple[Any, Any]]]:
    """Compute the held-out loss of a state again: what came out, and the fields that differ from what was recorded.

    `tap` is given the losses of the tokens of every window. Nothing comes out of data that the operators refuse.
    """
    said = recorded(history, state.control.step)
    windows = min(history.config.run.eval_windows, held_out.count)
    try:
        total, tokens = workspace.losses(state.params, held_out, range(windows), tap)
    except KernelError as error:  # its data is what the chain commits to, and the ledger has a loss of it
        return None, {"eval.mean": (said[0]["mean"], str(error))}
    if not tokens:
        return None, {"eval.tokens": (said[0]["tokens"], 0)}
    found = records.evaluation(total, tokens, windows)
    for computed in said:
        if differences := compare(computed, found):
            return found, {f"eval.{name}": values for name, values in differences.items()}
    return found, {}


def outcome(history: RunHistory, workspace: Workspace, state: State, held_out: WindowStream, tap: Tap) -> UnitResult:
    """The result of an audit of this state's evals. `found` holds leaf hashes of what was recorded and computed."""
    step = state.control.step
    unit, said = Unit(step, step, "chosen"), recorded(history, step)
    found, differences = evaluate(history, workspace, state, held_out, tap)
    if not differences:
        return UnitResult(unit, "match", part=EVAL)
    fields = list(differences)
    reason = f"the held-out loss of step {step} differs: {', '.join(fields)}"
    wrong = next((computed for computed in said if computed != found), said[0])
    where = {"computed": _hash(found or {}), "expected": _hash(wrong), "field": fields[0], "step": step}
    return UnitResult(unit, "mismatch", reason=reason, found=where, differences=differences, part=EVAL)


def _hash(computed: Json) -> str:
    return merkle.leaf_hash(jcs.encode(computed)).hex()
