"""Computing again what the ledger says was computed, and comparing bits.

A replay starts from a stored state, or from the seed, but only after that state's commitments equal the
ledger's. Then it is `step` and nothing else; whatever differs in `computed` is a mismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger.errors import BitwitnessError, FoundWrong

from . import records, start
from .data import WindowStream
from .history import RunHistory
from .material import Material, StoredStates
from .memory import require_memory
from .models import own_model
from .models.arithmetic import difference
from .state import (
    WEIGHTS_FILE,
    State,
    StateCommitment,
    StateMismatch,
    StateUnavailable,
    initial_state,
    load_state,
    load_weights,
)
from .step import AfterShard, PartialFold, StepRecord, Tap, Workspace, step


class OtherArithmetic(BitwitnessError):
    """This build does not compute what the run was computed with; the message says in what, at most 200 characters."""


class ReplayMismatch(FoundWrong):
    """A replayed step differs from the ledger. `differences` maps each field to (ledger's, replayed)."""

    def __init__(self, step: int, differences: dict[str, tuple[Any, Any]]) -> None:
        shown = "; ".join(f"{key}: ledger {_brief(a)}, replay {_brief(b)}" for key, (a, b) in differences.items())
        super().__init__(f"step {step} replays to other bits: {shown}")
        self.step, self.differences = step, differences


@dataclass(frozen=True)
class Replayed:
    """One step that was computed again. `differences` is empty when every bit agrees."""

    step: int
    record: StepRecord
    differences: dict[str, tuple[Any, Any]]


def replay_workspace(
    material: Material, history: RunHistory, threads: int, windows_at_once: int = 0, *, taps: bool = False
) -> Workspace:
    """Plan the programs of a run, once it is sure that this build and this machine can compute it.

    Raises OtherArithmetic, NotEnoughMemory, and what own_model.captured raises.
    """
    config = history.config
    captured = own_model.captured(material.model(history), history)
    require_memory(config, windows_at_once, captured)
    if (changed := difference(history.genesis["arithmetic"], config, captured)) is not None:
        raise OtherArithmetic(changed)
    return Workspace(config, threads, windows_at_once, taps=taps, captured=captured)


def provide_first(material: Material, history: RunHistory) -> None:
    """Put state 0 of imported weights in its place where only their files are at hand; else it is not at hand."""
    with suppress(BitwitnessError):
        start.provide(material.project, history)


def stored_state(history: RunHistory, stored: StoredStates, workspace: Workspace, step: int) -> State:
    """Load the state after `step` updates and check it against the ledger; state 0 is drawn from the seed.

    Of imported weights the moments are +0, whatever the genesis says; a run that goes on from another one has stored
    that state whole. Raises StateUnavailable or StateMismatch.
    """
    expected = history.stored(step)
    where, kind = "the initial state", history.genesis["init"]["kind"] if step == history.first else None
    if kind == "seeded":
        state = initial_state(workspace.config, workspace.layout)
    elif kind == "import":
        state = State(workspace.layout)
        load_weights(stored.folder(0) / WEIGHTS_FILE, state)
    else:
        folder = stored.folder(step)
        state = load_state(folder, workspace.layout, expected.control)
        where = str(folder)
    found = state.commit()
    for part in ("weights", "optimizer"):
        ours, ledgers = getattr(found, part), getattr(expected, part)
        if ours != ledgers:
            raise StateMismatch(f"{where}: {part} root {ours.root} is not the ledger's {ledgers.root}", found.digest)
    return state


def nearest_state(
    history: RunHistory,
    stored: StoredStates,
    workspace: Workspace,
    step: int,
    candidates: Collection[int],
    passed_over: Callable[[int, str], None] = lambda step, reason: None,
) -> tuple[State, int]:
    """The latest stored state up to `step` that can be read and meets the ledger, else the initial state; and its step.

    One that may be damaged by the way it came is looked at twice. `passed_over` is told of those that are no use.
    Raises StateUnavailable, StateMismatch.
    """
    problem: StateUnavailable | StateMismatch | None = None
    first = history.first
    for candidate in sorted((n for n in candidates if first < n <= step), reverse=True):
        try:
            try:
                return stored_state(history, stored, workspace, candidate), candidate
            except StateMismatch:
                if not stored.again(candidate):
                    raise
                return stored_state(history, stored, workspace, candidate), candidate
        except (StateUnavailable, StateMismatch) as error:
            problem = problem or error
            damaged = isinstance(error, StateMismatch)
            passed_over(candidate, "damaged (not the ledger's)" if damaged else "missing or cannot be read")
    try:
        return stored_state(history, stored, workspace, first), first
    except StateMismatch:
        if problem is not None:
            raise problem from None
        raise


def replay(
    history: RunHistory,
    state: State,
    workspace: Workspace,
    stream: WindowStream,
    last: int,
    tap: Callable[[int], Tap | None] = lambda number: None,
    fold: PartialFold | None = None,
    after_shard: AfterShard | None = None,
) -> Iterator[Replayed]:
    """Compute the steps after `state` up to `last` again, checking the data that each reads, and compare each.

    `fold` holds what was computed of the first of them already; `after_shard` is told of each shard.
    After a mismatch the iteration ends: the states that follow descend from another one.
    """
    per_step = workspace.config.data.windows_per_step
    while state.control.step < last:
        cursor = state.control.cursor
        stream.check_samples(cursor, per_step)
        number = state.control.step + 1
        record = step(state, stream, workspace, tap(number), fold, after_shard)
        fold = None
        expected = history.computed(number)
        commitment = state.commit(optimizer="optimizer" in expected)
        if workspace.ranks is not None:  # who resumes does it with the ranks that then go on
            workspace.ranks.agree(number, commitment.weights)
        differences = compare(expected, records.computed_step(record, commitment))
        if number in history.states:
            differences |= _compare_stored(history.stored(number), commitment, state)
        yield Replayed(number, record, differences)
        if differences:
            return


def advance(history: RunHistory, state: State, workspace: Workspace, stream: WindowStream, last: int) -> None:
    """Bring `state` to the one after step `last`. Raises StateMismatch where a step on the way does not replay."""
    for replayed in replay(history, state, workspace, stream, last):
        if replayed.differences:
            raise StateMismatch(f"step {replayed.step}, on the way to it, does not replay")


def compare(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two `computed` objects differ."""
    return {
        key: (expected.get(key), found.get(key))
        for key in sorted(expected.keys() | found.keys())
        if expected.get(key) != found.get(key)
    }


def _compare_stored(claimed: StateCommitment, commitment: StateCommitment, state: State) -> dict[str, tuple[Any, Any]]:
    """A stored state claims a commitment of its own, with the moments; it must be that of the replayed state."""
    found = state.commit() if commitment.optimizer is None else commitment
    return {} if claimed == found else {"stored": (claimed.digest, found.digest)}


def resume_state(
    history: RunHistory,
    stored: StoredStates,
    workspace: Workspace,
    stream: WindowStream,
    report: Callable[[StepRecord], None],
) -> tuple[State, int]:
    """Return the state after the ledger's last step, and the step of the stored state that it came from.

    The newest stored state that can be read and meets the ledger is used, as in an audit. Raises ReplayMismatch.
    """
    last = history.last_step
    state, origin = nearest_state(history, stored, workspace, last, history.states.keys())
    for replayed in replay(history, state, workspace, stream, last):
        if replayed.differences:
            raise ReplayMismatch(replayed.step, replayed.differences)
        report(replayed.record)
    return state, origin


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "root" in value:
        value = value["root"]
    text = str(value)
    return text if len(text) <= 20 else text[:16] + "…"
