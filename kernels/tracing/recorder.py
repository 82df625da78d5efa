"""Recording what a program of ours ran, as a trace file that others can execute.

    recorder = Recorder()
    executor = recorder.executor(program, threads=2)     in the place of Executor(program, 2)
    executor.run({...})                                  runs as ever, and is written down
    recorder.finish()                                    a TraceFile

Memory is followed by address: an array that one run writes and another reads is one slot. What the host put into an
array since the last run (a batch, a step's scalars, zeros) is found by comparing, and becomes a load; so nothing has
to be declared, and nothing can be forgotten. The price is a copy of every array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.program import Executor, Program
from bitwitness.kernels.tracing.trace_file import DTYPES, Array, Slot, TraceFile, bits, program_json


@dataclass
class _Memory:
    """One array that runs were given: `seen` is what it held after the last of them, as the trace knows it."""

    array: Array  # keeps the memory alive, so that its address is not given to another
    name: str
    written: bool = False
    seen: Array | None = None


@dataclass
class _Action:
    """A run or a commitment, the memory it uses and what that held; None where it is written without being read."""

    json: dict[str, Any]
    memories: list[_Memory] = field(default_factory=list)
    contents: list[Array | None] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)  # positions in memories that the host changed since the last action

    def add(self, memory: _Memory, reads: bool) -> None:
        if reads and (memory.seen is None or not _same(memory.seen, memory.array)):
            memory.seen = memory.array.copy()
            self.changed.add(len(self.memories))
        self.memories.append(memory)
        self.contents.append(memory.seen if reads else None)


@dataclass(frozen=True)
class CommittedTensor:
    """A tensor of a commitment: `shape` elements from `offset` of an array that runs were given."""

    array: Any
    offset: int
    shape: tuple[int, ...]


class RecordingExecutor:
    """An executor that runs its program and has the recorder write it down."""

    def __init__(self, recorder: Recorder, index: int, executor: Executor) -> None:
        self.program, self.threads = executor.program, executor.threads
        self._recorder, self._index = recorder, index
        self._executor = executor

    def run(self, arrays: Mapping[str, Any]) -> None:
        """As Executor.run."""
        self._recorder.before(self._index, self.program, arrays)
        self._recorder.perform(self._executor, arrays)
        self._recorder.after(self.program, arrays)

    def timings(self) -> list[tuple[str, float]]:
        """As Executor.timings."""
        return self._executor.timings()


class Recorder:
    """Collects programs, runs and commitments, and makes a trace file of them."""

    def __init__(self, make: Callable[[Program, int], Executor] = Executor) -> None:
        """`make` makes the executor that runs a program; others than Executor run it more slowly, or wrongly."""
        self._make = make
        self._programs: list[Program] = []
        self._memories: dict[tuple[int, str, tuple[int, ...]], _Memory] = {}
        self._actions: list[_Action] = []
        self._commitments: list[tuple[str, dict[str, CommittedTensor]]] = []

    def executor(self, program: Program, threads: int) -> RecordingExecutor:
        """An executor of `program` that records."""
        known = [i for i, other in enumerate(self._programs) if program_json(other) == program_json(program)]
        if not known:
            self._programs.append(program)
        index = known[0] if known else len(self._programs) - 1
        return RecordingExecutor(self, index, self._make(program, threads))

    def perform(self, executor: Executor, arrays: Mapping[str, Any]) -> None:
        """Run an executor's program. What is recorded of it, besides its inputs, is noted here (tracer.py)."""
        executor.run(arrays)

    def before(self, index: int, program: Program, arrays: Mapping[str, Any]) -> None:
        """Write down a run that is about to happen, with what its inputs hold now."""
        action = _Action({"run": index})
        for buffer in program.external:
            if buffer.name not in arrays:
                raise KernelError(f"no array for buffer {buffer.name}")
            memory = self._memory(arrays[buffer.name], buffer.name)
            memory.written = memory.written or buffer.kind != "input"
            action.add(memory, reads=buffer.kind != "output")
        self._actions.append(action)

    def after(self, program: Program, arrays: Mapping[str, Any]) -> None:
        """Note what a run has written."""
        for buffer in program.external:
            if buffer.kind != "input":
                memory = self._memory(arrays[buffer.name], buffer.name)
                memory.seen = memory.array.copy()

    def commit(
        self, kind: str, tensors: Mapping[str, CommittedTensor], label: str, expected: str | None = None
    ) -> None:
        """Have the referee compute a tree commitment here, and compare it with the root `expected`."""
        names = {name: tensors[name] for name in sorted(tensors)}
        same = [i for i, (k, known) in enumerate(self._commitments) if k == kind and _same_places(known, names)]
        if not same:
            self._commitments.append((kind, names))
        json: dict[str, Any] = {"commit": same[0] if same else len(self._commitments) - 1, "label": label}
        if expected is not None:
            json["expected"] = expected
        action = _Action(json)
        for memory in {id(m): m for m in (self._memory(t.array, "memory") for t in names.values())}.values():
            action.add(memory, reads=True)
        self._actions.append(action)

    def finish(self) -> TraceFile:
        """The trace file of everything recorded so far."""
        writer = _Writer(self._memories.values(), self._programs)
        for kind, tensors in self._commitments:
            places = [
                {
                    "name": name,
                    "offset": tensor.offset,
                    "shape": list(tensor.shape),
                    "slot": writer.names[id(self._memory(tensor.array, "memory"))],
                }
                for name, tensor in tensors.items()
            ]
            writer.file.commitments.append({"tensors": places, "type": kind})
        for action in self._actions:
            writer.add(action)
        return writer.file

    def _memory(self, given: Any, name: str) -> _Memory:
        array = np.asarray(given)
        key = (array.__array_interface__["data"][0], array.dtype.str, array.shape)
        return self._memories.setdefault(key, _Memory(array, name))


class _Writer:
    """Names the memory and writes the actions.

    Memory that no run writes holds inputs only: all of one name and shape share a slot, whichever array they were in,
    and each run loads what it needs.
    """

    def __init__(self, memories: Iterable[_Memory], programs: Sequence[Program]) -> None:
        self.file = TraceFile(programs=list(programs))
        self.names: dict[int, str] = {}  # by identity of a memory
        self.holds: dict[str, str] = {}  # what an input slot holds, by digest
        self.stored: dict[str, str] = {}  # digest -> tensor of the file
        shared: dict[Slot, str] = {}
        for memory in memories:
            dtype = next(name for name, known in DTYPES.items() if memory.array.dtype == known)
            inputs = Slot(memory.name, dtype, memory.array.shape)
            if not memory.written and inputs in shared:
                self.names[id(memory)] = shared[inputs]
                continue
            taken = {slot.name for slot in self.file.slots}
            name = next(name for name in _numbered(memory.name) if name not in taken)
            self.file.slots.append(Slot(name, dtype, memory.array.shape))
            self.names[id(memory)] = name
            if not memory.written:
                shared[inputs] = name

    def add(self, action: _Action) -> None:
        for position, (memory, contents) in enumerate(zip(action.memories, action.contents, strict=True)):
            if contents is not None and (position in action.changed or not memory.written):
                self._load(memory, contents)
        slots = [self.names[id(memory)] for memory in action.memories]
        self.file.actions.append(action.json | ({"with": slots} if "run" in action.json else {}))

    def _load(self, memory: _Memory, contents: Array) -> None:
        slot = self.names[id(memory)]
        digest = _digest(contents)
        if not memory.written and self.holds.get(slot) == digest:
            return
        touched, self.holds[slot] = slot in self.holds, digest
        if not bits(contents).any():
            if touched:
                self.file.actions.append({"zero": slot})
            return
        if digest not in self.stored:
            number = sum(name.rpartition("/")[0] == slot for name in self.file.tensors)
            self.stored[digest] = f"{slot}/{number}"
            self.file.tensors[self.stored[digest]] = contents
        self.file.actions.append({"load": slot, "tensor": self.stored[digest]})


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}.{number}"
        number += 1


def _same(a: Array, b: Array) -> bool:
    """Whether two arrays hold the same bits."""
    return bool(np.array_equal(bits(a), bits(b)))


def _digest(array: Array) -> str:
    return hashlib.sha256(repr((array.dtype.str, array.shape)).encode() + array.tobytes()).hexdigest()


def _same_places(a: Mapping[str, CommittedTensor], b: Mapping[str, CommittedTensor]) -> bool:
    return list(a) == list(b) and all(
        np.asarray(a[n].array).__array_interface__["data"] == np.asarray(b[n].array).__array_interface__["data"]
        and (a[n].offset, a[n].shape) == (b[n].offset, b[n].shape)
        for n in a
    )
