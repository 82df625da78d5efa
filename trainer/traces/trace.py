"""Steps of a run as one trace file: programs, inputs, and the roots that the ledger has for every step.

`kernels/referee` executes such a file on any machine and says whether it meets those roots (docs/formats/trace.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from bitwitness.kernels.program import Executor, Program
from bitwitness.kernels.tracing.recorder import CommittedTensor, Recorder
from bitwitness.kernels.tracing.trace_file import TraceFile

from ..state import State, StateCommitment
from ..step import StepRecord, Windows, Workspace, step


@dataclass
class RecordingWorkspace(Workspace):
    """A workspace whose programs are written down as they run. Memory: a second copy of all they touch."""

    recorder: Recorder = field(default_factory=Recorder)

    def _executor(self, program: Program) -> Executor:
        return cast(Executor, self.recorder.executor(program, self.threads))


def record_steps(
    state: State, windows: Windows, workspace: RecordingWorkspace, count: int
) -> tuple[TraceFile, list[StepRecord]]:
    """Advance `state` by `count` steps; return them as a trace file, and their records.

    After each step the file commits to weights and moments, and expects the roots that this machine found.
    """
    records = []
    for _ in range(count):
        records.append(step(state, windows, workspace))
        commit_state(state, workspace, state.commit())
    return workspace.recorder.finish(), records


def commit_state(state: State, workspace: RecordingWorkspace, expected: StateCommitment) -> None:
    """Have the file commit to weights and moments as they are now, and expect these roots, where they are known."""
    slots = workspace.layout.slots
    moments = expected.optimizer.root if expected.optimizer is not None else None
    weights = {name: CommittedTensor(state.params, slot.offset, slot.shape) for name, slot in slots.items()}
    optimizer = {
        f"{part}/{name}": CommittedTensor(flat, slot.offset, slot.shape)
        for part, flat in (("m", state.m), ("v", state.v))
        for name, slot in slots.items()
    }
    label = f"step {state.control.step}"
    workspace.recorder.commit("weights/1", weights, f"{label} weights", expected.weights.root)
    workspace.recorder.commit("optimizer/1", optimizer, f"{label} optimizer", moments)
