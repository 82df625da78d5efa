"""Faults for a drill: a trainer that computes one thing wrong, and commits to what it got.

Such a fault contradicts nothing in the record, so only a replay can find it. Each kind leaves its mark where the table
says, which is where the traces of both parties must first differ:

    gradient        a bit of what an operator writes to the gradients        that operator
    moment          a bit of a first moment, as the update writes it         that call of adamw
    batch           a step reads the windows of a later one                  the input ids (or targets)
    reorder         two steps read each other's windows                      the input ids (or targets), in the first
    learning-rate   an update by half as much again as the record says       the input scalars
    state           a step that starts from an earlier state's values        the input params
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import Executor, Program
from bitwitness.kernels.tracing.culprit import Difference
from bitwitness.kernels.tracing.stepwise import StepwiseExecutor
from bitwitness.kernels.tracing.trace_file import Array

from ..data.windows import Rows, WindowStream
from ..state import Control, State
from ..step import Workspace
from ..traces.trace import RecordingWorkspace

KINDS = ("gradient", "moment", "batch", "reorder", "learning-rate", "state")

_BIT = np.uint32(1 << 20)
_INPUTS = {
    "batch": ("ids", "targets"),
    "reorder": ("ids", "targets"),
    "learning-rate": ("scalars",),
    "state": ("params", "m", "v"),
}


class Fault:
    """A fault of one kind at a hidden place in step `step`. It acts once a stream of its own has reached that step."""

    def __init__(self, kind: str, step: int, per_step: int, places: random.Random, begun: Control) -> None:
        """`begun` is what the run begins with: from there on every step reads `per_step` windows."""
        self.kind, self.step, self._per_step, self._begun = kind, step, per_step, begun
        self._where, self._element = places.random(), places.random()
        self.earlier: State | None = None
        """Whose values a `state` fault puts in the place of those that it should start from."""
        self.state: State | None = None
        """The state that is being trained."""
        self._at = 0
        self._pending = False
        self.hit: tuple[str, str] | None = None
        """The operator and the buffer that a fault in an operator was in."""

    # -- the three places where a trainer can be wrong: what it reads, what it computes with, what it computes ----

    def begin(self, first_sample: int) -> None:
        """A step begins that reads from this sample on."""
        self._at = self._begun.step + (first_sample - self._begun.cursor) // self._per_step + 1
        self._pending = self.kind in ("gradient", "moment")
        if self.kind == "state" and self._at == self.step and self.state is not None and self.earlier is not None:
            for name in ("params", "m", "v"):
                getattr(self.state, name)[:] = getattr(self.earlier, name)

    def first_sample(self, first: int) -> int:
        """The sample to read in the place of `first`."""
        if self.kind == "batch" and self._at == self.step:
            return first + 3 * self._per_step
        if self.kind == "reorder" and self._at in (self.step, self.step + 1):
            return first + (self._per_step if self._at == self.step else -self._per_step)
        return first

    def scalars(self, scalars: dict[str, float]) -> dict[str, float]:
        """The scalars to update with."""
        if self.kind != "learning-rate" or self._at != self.step:
            return scalars
        return scalars | {"step_size": float(np.float32(1.5 * scalars["step_size"]))}

    def concerns(self, program: Program) -> bool:
        """Whether an output of this program's next run is to be changed."""
        return self._pending and self._at == self.step and bool(self._targets(program))

    def change(self, program: Program, call: int, operand: int, written: Array) -> None:
        """Change what a call has written, if that is the place."""
        if not self.concerns(program):
            return
        targets = self._targets(program)
        if (call, operand) != targets[int(self._where * len(targets))]:
            return
        flat = written.reshape(-1)
        start = int(self._element * flat.size)
        nonzero = np.flatnonzero(flat)
        index = int(nonzero[np.searchsorted(nonzero, start) % len(nonzero)]) if len(nonzero) else start
        flat.view(np.uint32)[index] ^= _BIT
        self._pending = False
        self.hit = (program.calls[call].op, program.calls[call].operands[operand].name)

    def _targets(self, program: Program) -> list[tuple[int, int]]:
        names = {buffer.name for buffer in program.external}
        wanted = "grads" if self.kind == "gradient" and "ids" in names else "m" if self.kind == "moment" else None
        return [
            (number, position)
            for number, call in enumerate(program.calls)
            for position, spec in enumerate(OPERATORS[call.op].operands)
            if spec.direction != "in" and call.operands[position].name == wanted
        ]

    # -- what must be found ------------------------------------------------------------------------------------

    def is_named_by(self, found: Difference | None) -> bool:
        """Whether the first difference of two traces is this fault."""
        if found is None:
            return False
        if self.kind in _INPUTS:
            return found.kind == "input" and found.slot.partition(".")[0] in _INPUTS[self.kind]
        if found.kind != "operator" or found.place is None or found.place.view is None:
            return False
        return (found.place.op, found.place.view.name) == self.hit


class FaultyStream:
    """Windows as a faulty trainer reads them. Held-out text it reads as it is."""

    def __init__(self, stream: WindowStream, fault: Fault) -> None:
        self._stream, self._fault = stream, fault
        self.dataset = stream.dataset

    def check_samples(self, first: int, count: int) -> None:
        self._fault.begin(first)
        self._stream.check_samples(first, count)

    def samples(self, first: int, count: int) -> Rows:
        return self._stream.samples(self._fault.first_sample(first), count)


class _FaultyExecutor(StepwiseExecutor):
    """Runs the programs of a faulty trainer; step by step only where one of its outputs is to be changed."""

    def __init__(self, program: Program, threads: int, fault: Fault) -> None:
        super().__init__(program, threads, lambda *where: fault.change(program, *where))
        self._fault, self._plain = fault, Executor(program, threads)

    def run(self, arrays: Mapping[str, Any]) -> None:
        if self._fault.concerns(self.program):
            super().run(arrays)
        else:
            self._plain.run(arrays)

    def trace(self, arrays: Mapping[str, Any]) -> list[tuple[int, int, bytes]]:
        return super().trace(arrays) if self._fault.concerns(self.program) else self._plain.trace(arrays)


def faulty_executors(fault: Fault) -> Callable[[Program, int], StepwiseExecutor]:
    """What makes the executors of a faulty trainer."""
    return lambda program, threads: _FaultyExecutor(program, threads, fault)


@dataclass
class FaultyWorkspace(Workspace):
    """The workspace of a faulty trainer."""

    fault: Fault = field(kw_only=True)

    def _executor(self, program: Program) -> Executor:
        return cast(Executor, faulty_executors(self.fault)(program, self.threads))

    def update(self, state: State, gradient: Any, scalars: dict[str, float]) -> None:
        super().update(state, gradient, self.fault.scalars(scalars))


@dataclass
class FaultyRecordingWorkspace(RecordingWorkspace):
    """The same, for the faulty trainer's own trace; its recorder's executors are faulty_executors."""

    fault: Fault = field(kw_only=True)

    def update(self, state: State, gradient: Any, scalars: dict[str, float]) -> None:
        super().update(state, gradient, self.fault.scalars(scalars))
