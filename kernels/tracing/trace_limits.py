"""What a trace file of somebody else's may take: a few bytes can declare any amount of memory and of work.

A file says all that it will take (docs/formats/trace.md, What a file takes). It is added up when the file is read, and
what is too much is refused before anything is allocated or executed. The referee adds up the same.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.program import ELEMENT_BYTES, cost_of

if TYPE_CHECKING:
    from bitwitness.kernels.tracing.trace_file import TraceFile

_GIB = 1 << 30
_TERA = 10**12
_PER_VALUE = 512  # bytes of memory for a value of the JSON
_PER_LEAF, _PER_CHUNK = 1024, 256  # bytes of memory for a leaf of the trace, and for each chunk of one
_PER_PAIR = 1 << 12  # work for each two buffers or calls of a program: how its memory is planned
_PER_RUN, _PER_PART, _PER_ELEMENT = 1 << 23, 1 << 20, 128  # work to begin a run, for a tensor, for each of its elements


class TooMuch(KernelError):
    """A file that would take more memory or work than it is allowed."""


@dataclass(frozen=True)
class Limits:
    """At most so many bytes of memory and so many multiply-adds, on so many threads."""

    memory: int = 8 * _GIB
    work: float = 100.0 * _TERA
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    held: int = 0
    """Bytes of the memory that are in use."""

    @classmethod
    def of(cls, gib: int, tera: int, threads: int) -> Limits:
        """As `--memory` and `--work` name them: GiB, and 10^12 multiply-adds."""
        return cls(gib * _GIB, float(tera) * _TERA, threads)

    def holding(self, taken: int) -> Limits:
        """The same, with ``taken`` more bytes of memory in use."""
        return replace(self, held=self.held + taken)

    def check_memory(self, needed: float, where: str) -> None:
        """Raises TooMuch if ``needed`` bytes do not fit beside those in use."""
        needed += self.held
        if needed > self.memory:
            raise TooMuch(
                f"{where}: it takes {math.ceil(needed / _GIB)} GiB of memory, more than the "
                f"{self.memory / _GIB:.3g} allowed; see --memory"
            )

    def check_work(self, work: float, where: str) -> None:
        """Raises TooMuch."""
        if work > self.work:
            raise TooMuch(
                f"{where}: it takes {math.ceil(work / _TERA)}*10^12 multiply-adds, more than the "
                f"{self.work / _TERA:.3g} allowed; see --work"
            )


def read_given(path: Path, limits: Limits) -> bytes:
    """The bytes of a regular file that fits the memory. Raises TooMuch, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):  # a FIFO would wait for ever, a device may never end
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        limits.check_memory(found.st_size, str(path))
        data = bytearray()
        while len(data) <= found.st_size and (piece := file.read(min(1 << 26, found.st_size + 1 - len(data)))):
            data += piece
    limits.check_memory(len(data), str(path))
    return bytes(data)


def memory_of_json(text: bytes) -> int:
    """Bytes of memory that a JSON text takes once it is read, at the most."""
    return len(text) + _PER_VALUE * sum(map(text.count, (b",", b"[", b"{")))


def check_planning(programs: Iterable[Any], limits: Limits, where: str) -> None:
    """Before programs are built: whether planning their memory is too much. Raises TooMuch; what is malformed stays."""
    limits.check_work(sum(_planning(program) for program in programs if isinstance(program, dict)), where)


def _planning(program: Mapping[str, Any]) -> float:
    size = sum(len(part) for part in (program.get("buffers"), program.get("calls")) if isinstance(part, list))
    return float(_PER_PAIR) * size * size


def check(file: TraceFile, limits: Limits, where: str) -> None:
    """Whether a file, as it was read, takes too much to be executed. Raises TooMuch, KernelError."""
    element_bytes: dict[str, int] = dict(ELEMENT_BYTES.items())
    sizes = {slot.name: math.prod(slot.shape) for slot in file.slots}
    memory = sum(sizes[slot.name] * element_bytes[slot.dtype] for slot in file.slots)
    limits.check_memory(memory, where)
    costs = [cost_of(program, limits.threads) for program in file.programs]
    memory += sum(cost.temporary + cost.scratch for cost in costs)
    work = sum(float(_PER_PAIR) * (len(p.buffers) + len(p.calls)) ** 2 for p in file.programs)
    committed = [_elements_of(commitment["tensors"]) for commitment in file.commitments]
    for action in file.actions:
        if "run" in action:
            cost = costs[action["run"]]
            work += _PER_RUN + cost.work
            memory += _PER_LEAF * cost.outputs + _PER_CHUNK * cost.chunks
        elif "commit" in action:
            work += committed[action["commit"]]
        else:
            slot = action.get("load") or action.get("zero") or action["chunk"]
            work += _PER_PART + _PER_ELEMENT * sizes[slot]
    limits.check_memory(memory, where)
    limits.check_work(work, where)


def _elements_of(tensors: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(_PER_PART + _PER_ELEMENT * math.prod(tensor["shape"]) for tensor in tensors))
