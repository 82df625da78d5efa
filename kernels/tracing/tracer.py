"""A recorder that also traces: what every operator wrote in the very execution that is being recorded.

    recorder = TracingRecorder(values=1 << 26)
    executor = recorder.executor(program, threads=2)
    executor.run({...})
    file = recorder.finish()                the script and its inputs, as of Recorder
    recorder.trace(file)                    the trace of what ran here

Executing the file elsewhere gives the same trace if both machines compute alike. Where they do not, the values kept
here are this party's evidence: nobody else can compute them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bitwitness.kernels.program import Executor, Program
from bitwitness.kernels.tracing.recorder import Recorder
from bitwitness.kernels.tracing.stepwise import StepwiseExecutor
from bitwitness.kernels.tracing.trace import Trace, input_leaf, outline, script_leaf, tree_root
from bitwitness.kernels.tracing.trace_file import Array, TraceFile


class TracingRecorder(Recorder):
    """Records and traces. Keeps the values of all outputs while they take at most `values` bytes, else of `only`."""

    def __init__(
        self,
        make: Callable[[Program, int], Executor | StepwiseExecutor] = Executor,
        *,
        values: int = 0,
        only: tuple[int, int] | None = None,
    ) -> None:
        """`only` is (run, call). With values to keep, programs run call by call."""
        super().__init__(make)  # type: ignore[arg-type]  # a StepwiseExecutor stands in for an Executor
        self._room, self._only = values, only
        self._runs: list[list[tuple[int, int, bytes]]] = []
        self.values: dict[tuple[int, int, int], Array] = {}

    def perform(self, executor: Executor, arrays: Mapping[str, Any]) -> None:
        run = len(self._runs)
        if self._wanted(run):
            self._runs.append(self._stepwise(run, executor, arrays))
        else:
            self._runs.append(executor.trace(arrays))

    def _wanted(self, run: int) -> bool:
        return self._room > 0 if self._only is None else self._only[0] == run

    def _stepwise(self, run: int, executor: Executor, arrays: Mapping[str, Any]) -> list[tuple[int, int, bytes]]:
        disturb = executor.after if isinstance(executor, StepwiseExecutor) else None

        def keep(call: int, operand: int, written: Array) -> None:
            if disturb is not None:
                disturb(call, operand, written)
            if self._only is not None:
                if self._only == (run, call):
                    self.values[run, call, operand] = written.copy()
                return
            self._room -= written.nbytes
            if self._room >= 0:
                self.values[run, call, operand] = written.copy()
            else:
                self.values.clear()

        return StepwiseExecutor(executor.program, executor.threads, keep).trace(arrays)

    def trace(self, file: TraceFile) -> Trace:
        """The trace of the runs so far; `file` is what finish() has returned."""
        written = {
            (run, call, operand): hashes for run, calls in enumerate(self._runs) for call, operand, hashes in calls
        }
        leaves: list[dict[str, Any]] = [script_leaf(file)]
        chunks: dict[int, tuple[bytes, ...]] = {}
        for place in outline(file):
            if place.view is None:
                leaves.append(input_leaf(file, place.tensor))
                continue
            hashes = written[place.run, place.call, place.operand]
            pieces = tuple(hashes[at : at + 32] for at in range(0, len(hashes), 32))
            chunks[len(leaves)] = pieces
            leaves.append(place.leaf(tree_root(pieces).hex()))
        return Trace(leaves, chunks, {}, {})

    def kept(self, file: TraceFile) -> dict[int, Array]:
        """The values that were kept, by leaf."""
        places = enumerate(outline(file), 1)
        return {
            leaf: self.values[place.run, place.call, place.operand]
            for leaf, place in places
            if (place.run, place.call, place.operand) in self.values
        }
