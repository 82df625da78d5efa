"""A program run one call at a time, so that what each call wrote can be looked at before the next one reads it.

The bits are those of Executor: every temporary buffer has memory of its own here, and nothing else differs. It takes
more memory and some time, which is why training does not run this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import Buffer, Call, Executor, Program, ProgramBuilder
from bitwitness.kernels.tracing.trace import chunk_hashes
from bitwitness.kernels.tracing.trace_file import DTYPES, Array

After = Callable[[int, int, Array], None]
"""Called with (call, operand, what the call wrote to it, which may be changed) after every call."""


class StepwiseExecutor:
    """As Executor, call by call; `after` sees each output as soon as it is written."""

    def __init__(self, program: Program, threads: int, after: After | None = None) -> None:
        self.program, self.threads, self.after = program, threads, after

    def run(self, arrays: Mapping[str, Any]) -> None:
        """As Executor.run."""
        self._perform(arrays, None)

    def trace(self, arrays: Mapping[str, Any]) -> list[tuple[int, int, bytes]]:
        """As Executor.trace. Hashes what stands there after `after` has seen it."""
        hashes: list[tuple[int, int, bytes]] = []
        self._perform(arrays, hashes)
        return hashes

    def timings(self) -> list[tuple[str, float]]:
        """Nothing is timed here."""
        return []

    def _perform(self, arrays: Mapping[str, Any], hashes: list[tuple[int, int, bytes]] | None) -> None:
        memory = all_buffers(self.program, arrays)
        for number, call in enumerate(self.program.calls):
            run_calls([call], memory, self.threads)
            for position, spec in enumerate(OPERATORS[call.op].operands):
                if spec.direction == "in":
                    continue
                written = view_of(call.operands[position], memory)
                if self.after is not None:
                    self.after(number, position, written)
                if hashes is not None:
                    hashes.append((number, position, b"".join(chunk_hashes(written))))


def all_buffers(program: Program, arrays: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of a run and zeros for the program's temporary buffers, by name."""
    memory = {name: np.asarray(array) for name, array in arrays.items()}
    for buffer in program.buffers.values():
        if buffer.kind == "temp":
            memory[buffer.name] = np.zeros(buffer.shape, DTYPES[buffer.dtype])
    return memory


def run_calls(calls: Sequence[Call], memory: Mapping[str, Array], threads: int) -> None:
    """Run some calls of a program on arrays for all of its buffers, temporary ones included."""
    builder = ProgramBuilder()
    buffers: dict[str, Buffer] = {}
    for call in calls:
        for view in call.operands:
            if view.name not in buffers:
                kind: Any = "input" if _only_read(calls, view.name) else "inout"
                buffers[view.name] = builder.buffer(view.name, memory[view.name].shape, view.dtype, kind)
        views = [builder.view(buffers[v.name], v.offset, v.shape) for v in call.operands]
        builder.call(call.op, *views, **call.attributes)
    if calls:
        Executor(builder.build(), threads).run({name: memory[name] for name in buffers})


def _only_read(calls: Sequence[Call], name: str) -> bool:
    return all(
        spec.direction == "in"
        for call in calls
        for spec, view in zip(OPERATORS[call.op].operands, call.operands, strict=True)
        if view.name == name
    )


def view_of(view: Buffer, memory: Mapping[str, Array]) -> Array:
    """The part of a buffer that an operand is, in its shape, in place."""
    return memory[view.name].reshape(-1)[view.offset : view.offset + view.size].reshape(view.shape)
