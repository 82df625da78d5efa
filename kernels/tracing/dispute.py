"""One disputed chunk as a file of its own: what an operator read, what it wrote, and who claims what.

When two traces differ, the first leaf that differs names an operator's output, and the chunk hashes behind it name 64
KiB of that. `extract` computes everything before that call here and writes the smallest call that yields the chunk
(footprint.py). The referee then recomputes it alone and says whose claim is right. Everything that the call reads was
agreed upon by then: no earlier leaf differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import Buffer, Call, ProgramBuilder
from bitwitness.kernels.tracing import footprint, trace
from bitwitness.kernels.tracing.stepwise import all_buffers, run_calls
from bitwitness.kernels.tracing.trace_file import CHUNK_BYTES, DTYPES, Array, Slot, TraceFile, bits


def extract(
    file: TraceFile, run: int, call: int, operand: str, chunk: int, claims: Mapping[str, str], threads: int = 1
) -> TraceFile:
    """The dispute over chunk `chunk` of what call `call` of run `run` writes to `operand`.

    `claims` maps a party's name to the hash (64 hex digits) that it has for the chunk. Raises KernelError where the
    file has no such call or chunk.
    """
    program, arrays = _before(file, run, call, threads)
    try:
        disputed = program[call]
        position = [spec.name for spec in OPERATORS[disputed.op].operands].index(operand)
    except (IndexError, ValueError):
        raise KernelError(f"run {run} has no call {call} that writes {operand}") from None
    shapes = [view.shape for view in disputed.operands]
    per_chunk = CHUNK_BYTES // DTYPES[disputed.operands[position].dtype].itemsize
    begin = chunk * per_chunk
    end = min(begin + per_chunk, disputed.operands[position].size)
    found = footprint.cuts(disputed.op, shapes, operand, begin, end, **disputed.attributes)
    small = footprint.restrict(disputed.op, _operands(disputed, arrays), found)
    at = footprint.where(disputed.op, shapes, operand, begin, found)
    return _file(disputed, small, position, at, at + end - begin, claims)


def _before(file: TraceFile, run: int, call: int, threads: int) -> tuple[tuple[Call, ...], dict[str, Array]]:
    """The calls of a run, and all buffers of its program as they are before one of them."""
    executors = trace.executors(file, threads)
    slots = trace.empty_slots(file)
    runs = 0
    for action in file.actions:
        if "run" not in action:
            trace.apply_action(file, action, slots)
            continue
        program = file.programs[action["run"]]
        arrays = {b.name: slots[name] for b, name in zip(program.external, action["with"], strict=True)}
        if runs < run:
            executors[action["run"]].run(arrays)
            runs += 1
            continue
        memory = all_buffers(program, arrays)
        run_calls(program.calls[:call], memory, threads)
        return program.calls, memory
    raise KernelError(f"the file has {runs} runs; there is no run {run}")


def _operands(call: Call, arrays: Mapping[str, Array]) -> list[Array]:
    """The arrays of a call's operands. Operands that are the same memory are the same array."""
    made: dict[tuple[str, int, int], Array] = {}
    for view in call.operands:
        flat = arrays[view.name].reshape(-1)[view.offset : view.offset + view.size]
        made.setdefault((view.name, view.offset, view.size), flat.reshape(view.shape))
    return [made[v.name, v.offset, v.size] for v in call.operands]


def _file(
    call: Call, operands: list[Array], position: int, begin: int, end: int, claims: Mapping[str, str]
) -> TraceFile:
    """A trace file of one call: operand NAME is slot NAME, loaded with what the call reads."""
    out = TraceFile()
    builder = ProgramBuilder()
    buffers: dict[int, Buffer] = {}
    specs = OPERATORS[call.op].operands
    for spec, array in zip(specs, operands, strict=True):
        if id(array) in buffers:
            continue
        directions = {s.direction for s, other in zip(specs, operands, strict=True) if other is array}
        dtype: Any = spec.dtype
        kind: Any = "input" if directions == {"in"} else "output" if directions == {"out"} else "inout"
        buffers[id(array)] = builder.buffer(spec.name, array.shape, dtype, kind)
        out.slots.append(Slot(spec.name, dtype, array.shape))
        if kind != "output" and bits(array).any():
            out.tensors[spec.name] = array
            out.actions.append({"load": spec.name, "tensor": spec.name})
    builder.call(call.op, *(buffers[id(array)] for array in operands), **call.attributes)
    out.programs.append(builder.build())
    out.actions.append({"run": 0, "with": [slot.name for slot in out.slots]})
    chunk = {"begin": begin, "chunk": buffers[id(operands[position])].name, "claims": dict(claims), "end": end}
    out.actions.append(chunk)
    return out
