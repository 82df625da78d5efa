"""What an audit would cost, told before it begins: bytes to fetch, memory, time on this machine.

A drawn sample is not known before its intent is in the log, so its largest units stand for it: figures are at most
what the audit takes, as far as they depend on the draw. Time is measured: one window and one update, here and now.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bitwitness.ledger.errors import BitwitnessError

from ..config import RunConfig
from ..data.index import RECORD
from ..data.ranges import BLOCK
from ..data.tokenizer import TokenizerInfo
from ..data.windows import Rows
from ..history import RunHistory, open_verified_run
from ..memory import available_bytes
from ..models import own_model
from ..models.programs import StepPrograms
from ..record_check import require_steps
from ..sample import Unit
from ..state import State
from ..step import Workspace, step
from .coverage import next_interval
from .eval_audit import find_steps
from .venue import LocalVenue, Venue


@dataclass(frozen=True)
class AuditPlan:
    """Bytes, steps and seconds of an audit. `entries` are fetched already: what is to be done follows from them."""

    run: str
    name: str
    steps: int
    units: int
    entries: int
    states_bytes: int
    data_bytes: int
    memory_bytes: int
    available_bytes: int
    seconds: float
    exact: bool
    """Whether the steps are known; else the sample's largest units stand for it."""

    @property
    def fetch_bytes(self) -> int:
        return self.states_bytes + self.data_bytes

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fetch_bytes": self.fetch_bytes, "seconds": round(self.seconds, 3)}


def plan_audit(
    venue: Venue,
    name: str,
    *,
    samples: int,
    steps: tuple[int, int] | None,
    until: int | None = None,
    uncovered: bool = False,
    intent: int | None = None,
    evals: str | None = None,
    threads: int,
    windows_at_once: int = 0,
) -> AuditPlan:
    """Verify the ledger, and say what the audit would take. Nothing is announced, signed or appended.

    An evaluated window is counted like one of training, which takes longer. Raises what audit() raises before its
    intent.
    """
    with venue.open() as ledger:
        history = open_verified_run(venue.project, ledger, name)
        entries = ledger.size
        if uncovered:
            steps = next_interval(venue.project, ledger, name, venue.auditor.keyid, venue.material)
    require_steps(history)
    if not history.steps:
        raise BitwitnessError(f"run {name} has no steps in the ledger yet; there is nothing to audit")
    last = history.last_step if until is None else until
    if intent is not None:
        said = history.reopen(venue.auditor.keyid, intent).predicate
        samples, last = said["samples"], said["last"]
    evaluated = 0
    if evals is not None:
        wanted = find_steps(history, evals)
        evaluated = len(wanted) * history.config.run.eval_windows
        stored = {step: max((n for n in history.states if n <= step), default=history.first) for step in wanted}
        chosen = [Unit(stored[step] + 1, step, "chosen") for step in wanted]
    elif steps is not None:
        chosen = [Unit(a, b, "chosen") for a, b in history.units() if b >= steps[0] and a <= steps[1]]
    else:
        always = history.select(last, bytes(32), 0)
        chosen = _with_largest(history, [unit for unit in always if unit.last > history.first], samples, last)
    count = sum(unit.last - unit.first + 1 for unit in chosen)
    captured = own_model.captured(venue.material.model(history), history)
    config = history.config
    probe = _probe(config, threads, captured)
    windows = config.data.windows_per_step
    seconds = count * (windows * probe.window + probe.update) + probe.commit * len(chosen) + evaluated * probe.window
    return AuditPlan(
        run=history.run,
        name=history.name,
        steps=count,
        units=len(chosen),
        entries=entries,
        states_bytes=_states(venue, history, chosen, probe.parameters),
        data_bytes=0 if isinstance(venue, LocalVenue) else _data(history, count * windows),
        memory_bytes=_memory(config, windows_at_once, probe),
        available_bytes=available_bytes(),
        seconds=seconds,
        exact=steps is not None or evals is not None or samples == 0,
    )


def _with_largest(history: RunHistory, always: list[Unit], samples: int, last: int) -> list[Unit]:
    there = {(unit.first, unit.last) for unit in always}
    others = [pair for pair in history.units(last) if pair not in there]
    others.sort(key=lambda pair: pair[0] - pair[1])
    return always + [Unit(*pair, "sample") for pair in others[:samples]]


def _states(venue: Venue, history: RunHistory, chosen: list[Unit], parameters: int) -> int:
    stored = venue.material.states(history)
    kind, first = history.genesis["init"]["kind"], history.first
    starts = {max((step for step in history.states if step < unit.first), default=first) for unit in chosen}
    away = [start for start in starts if not stored.at_hand(start) and not (start == first and kind == "seeded")]
    return sum(parameters * (4 if start == first and kind == "import" else 12) for start in away)


def _data(history: RunHistory, windows: int) -> int:
    """At most: every window reads whole documents, in blocks, and a path of index and tree for each."""
    total = 0
    for use in history.genesis["datasets"]:
        said = history.datasets[use["entry"]]
        width = TokenizerInfo(said["tokenizer"]["name"], said["tokenizer"]["vocabulary"], 0, None).token_bytes
        read = windows if use["role"] == "train" else history.config.run.eval_windows
        each = (history.config.data.window + 1 + 2 * said["tokens"] // said["documents"]) * width + 2 * BLOCK
        index = said["documents"] * (RECORD.size + 64)
        total += min(said["tokens"] * width, read * each) + min(index, read * 16 * BLOCK)
    return total


@dataclass(frozen=True)
class _Probe:
    parameters: int
    window: float
    update: float
    commit: float
    arena: int
    """Bytes that the program of one window holds for a time."""
    taps: int
    """Bytes of what the blocks of one window give, with gradients, which are kept for a whole shard."""


class _Counting:
    """Windows of made-up tokens: no data is needed to measure."""

    def __init__(self, window: int, vocabulary: int) -> None:
        self._window, self._vocabulary = window, vocabulary

    def samples(self, first: int, count: int) -> Rows:
        rows = count * self._window
        tokens = (np.arange(rows, dtype=np.int32) * 7 + first) % self._vocabulary
        pos = np.arange(rows, dtype=np.int32) % self._window
        start = np.arange(rows, dtype=np.int32) - pos
        return Rows(tuple(range(count)), tokens, np.roll(tokens, -1), pos, start)


def _probe(config: RunConfig, threads: int, captured: StepPrograms | None) -> _Probe:
    """Measure a step of one window, twice where it is short, on a state of zeros."""
    data = config.data.model_copy(update={"shards": 1, "windows_per_shard": 1})
    small = config.model_copy(update={"data": data})
    workspace = Workspace(small, threads, 1, taps=True, captured=captured)
    windows = _Counting(data.window, workspace.programs.vocabulary)
    state = State(workspace.layout)
    state.params.fill(1 / 64)
    spent = []
    for _attempt in range(2):
        started = time.perf_counter()
        gradient, _loss, _tokens = workspace.shard_gradient(workspace.weights(state.params), windows, 0)
        shard = time.perf_counter() - started
        workspace.release(gradient)
        started = time.perf_counter()
        step(state, windows, workspace)
        whole = time.perf_counter() - started
        started = time.perf_counter()
        state.commit()
        spent.append((shard, max(0.0, whole - shard), time.perf_counter() - started))
        if whole > 5.0:
            break
    window, update, commit = (min(times) for times in zip(*spent, strict=True))
    programs = workspace.programs
    arena, taps = programs.shard(1, taps=True).plan.size, 4 * data.window * sum(programs.boundaries.values())
    return _Probe(workspace.layout.size, window, update + commit, commit, arena, taps)


def _memory(config: RunConfig, windows_at_once: int, probe: _Probe) -> int:
    """Weights, moments, the gradients that a fold holds, what the windows computed at a time keep, and taps."""
    per_shard = config.data.windows_per_shard
    at_once = min(windows_at_once or per_shard, per_shard)
    folded = max(1, (config.data.shards - 1).bit_length()) + 1
    return 4 * probe.parameters * (3 + folded) + at_once * probe.arena + per_shard * probe.taps
