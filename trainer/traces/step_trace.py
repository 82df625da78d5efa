"""One step of a run, replayed and traced: what every operator wrote, for another party to compare with.

The steps before it are replayed and must meet the ledger, so that both parties start from the same state. The file's
commitments expect the roots that the ledger has, so that whoever executes it sees whether the ledger is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitwitness.kernels.program import Executor, Program
from bitwitness.kernels.tracing import trace_record
from bitwitness.kernels.tracing.stepwise import StepwiseExecutor
from bitwitness.kernels.tracing.trace import Trace
from bitwitness.kernels.tracing.trace_file import Array, TraceFile
from bitwitness.kernels.tracing.tracer import TracingRecorder
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project

from .. import records
from ..ancestry import line_of
from ..auditing.venue import LocalPlace, Place
from ..data.reads import NoSuchStep, training_dataset, training_windows
from ..history import RunHistory, open_verified_run
from ..models.layout import Layout
from ..models.programs import StepPrograms
from ..record_check import check_record, require_steps
from ..replay import compare, nearest_state, provide_first, replay, replay_workspace
from ..run import check_threads
from ..state import State
from ..step import NotFinite, NoTokens, Windows, step
from .trace import RecordingWorkspace, commit_state

VALUES = 256 << 20
"""Bytes of operator outputs that are kept unless more are asked for."""

Make = Callable[[Program, int], Executor | StepwiseExecutor]


@dataclass(frozen=True)
class StepTrace:
    """A traced step. `differences` maps each field of the step's record to (ledger's, ours), empty if all agree."""

    step: int
    file: TraceFile = field(repr=False)
    trace: Trace = field(repr=False)
    values: Mapping[int, Array] = field(repr=False)
    about: Mapping[str, Any] = field(repr=False)
    differences: Mapping[str, tuple[Any, Any]]

    def write(self, folder: Path) -> None:
        """Write it as docs/formats/trace.md says, to be handed to another party."""
        trace_record.write(folder, self.file, self.trace, self.values, self.about)


def trace_step(
    where: Project | Place,
    name: str,
    number: int,
    *,
    threads: int,
    windows_at_once: int = 0,
    values: int = VALUES,
    only: tuple[int, int] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> StepTrace:
    """Replay run `name` to step `number` and trace that step; keep its outputs, or only those of one (run, call).

    Ledger, states and data are verified as an audit verifies them, wherever they lie. Raises NoSuchRun, NoSuchStep,
    LedgerNotVerified, RecordWrong, OtherArithmetic, StateUnavailable, errors of the data, and BitwitnessError where an
    earlier step already differs.
    """
    check_threads(threads)
    place: Place = LocalPlace(where) if isinstance(where, Project) else where
    with place.open() as ledger:
        history = open_verified_run(place.project, ledger, name)
        require_steps(history)
        faulty = {fault.step for fault in check_record(history, ledger.origin)}
        if number not in history.steps:
            line = line_of(place.project, ledger, name) if number <= history.first else []
            before = next((span.name for span in line if span.first < number <= span.last), None)
            raise NoSuchStep(history, number, before=before)
    material = place.material
    workspace = replay_workspace(material, history, threads, windows_at_once)
    provide_first(material, history)
    stream = training_windows(history, material.dataset(history, *training_dataset(history)))
    trusted = history.states.keys() - faulty
    state, first = nearest_state(history, material.states(history), workspace, number - 1, trusted)
    for replayed in replay(history, state, workspace, stream, number - 1):
        report(replayed.step - first, number - first)
        if replayed.differences:
            raise BitwitnessError(
                f"step {replayed.step} already differs from the ledger, and step {number} descends from it: "
                f"trace that one, with --step {replayed.step}"
            )
    stream.check_samples(state.control.cursor, history.config.data.windows_per_step)
    model = workspace.captured
    return record_traced(history, state, stream, threads, windows_at_once, model=model, values=values, only=only)


def record_traced(
    history: RunHistory,
    state: State,
    windows: Windows,
    threads: int,
    windows_at_once: int = 0,
    *,
    model: StepPrograms | None = None,
    make: Make = Executor,
    values: int = VALUES,
    only: tuple[int, int] | None = None,
    workspace_of: Callable[..., RecordingWorkspace] = RecordingWorkspace,
) -> StepTrace:
    """Make the step after `state`, in place, and trace it; by other executors and workspaces, if they are given.

    Raises BitwitnessError if `only` names no call of it.
    """
    number = state.control.step + 1
    recorder = TracingRecorder(make, values=values, only=only)
    workspace = workspace_of(history.config, threads, windows_at_once, captured=model, recorder=recorder)
    expected = history.state(number)
    differences: Mapping[str, tuple[Any, Any]]
    try:
        record = step(state, windows, workspace)
        found = state.commit(optimizer=expected.optimizer is not None)
        differences = compare(history.computed(number), records.computed_step(record, found))
        commit_state(state, workspace, expected)
    except (NotFinite, NoTokens) as error:  # it ends before the update, and so does the trace
        differences = {"loss": (history.computed(number)["loss"], str(error))}
    file = recorder.finish()
    kept = recorder.kept(file)
    if only is not None and not kept:
        raise BitwitnessError(
            f"step {number} has no call {only[0]}.{only[1]}; `ledger bisect` names the one in dispute"
        )
    return StepTrace(number, file, recorder.trace(file), kept, _about(history, number, workspace, file), differences)


def _about(history: RunHistory, number: int, workspace: RecordingWorkspace, file: TraceFile) -> dict[str, Any]:
    return modules_json(file) | {
        "arithmetic": history.genesis["arithmetic"]["digest"],
        "layout": layout_json(workspace.layout),
        "name": history.name,
        "run": history.run,
        "step": number,
    }


def modules_json(file: TraceFile) -> dict[str, Any]:
    """Which module each call of a program belongs to, by the program's number; nothing for the built-in model."""
    named = {
        str(number): [call.module for call in program.calls]
        for number, program in enumerate(file.programs)
        if any(call.module for call in program.calls)
    }
    return {"modules": named} if named else {}


def layout_json(layout: Layout) -> dict[str, Any]:
    """Where each tensor lies in the flat buffers `params`, `grads`, `m` and `v`."""
    return {name: {"offset": slot.offset, "shape": list(slot.shape)} for name, slot in layout.slots.items()}
