"""Step programs: operator calls over static buffers, checked and planned once, run by one C++ executor.

Training, replay and audit run the same program. Shapes are static, memory is planned when the program is built,
and nothing is allocated while it runs.

    b = ProgramBuilder()
    x = b.buffer("x", (4, 8), kind="input")
    w = b.buffer("w", (16, 8), kind="input")
    y = b.buffer("y", (4, 16), kind="output")
    b.call("matmul_nt", x, w, y, accumulate=0)
    Executor(b.build(), threads=2).run({"x": x_array, "w": w_array, "y": y_array})
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from bitwitness.kernels import _native, arena
from bitwitness.kernels.errors import KernelError, ShapeError
from bitwitness.kernels.ops import OPERATORS, Operator
from bitwitness.kernels.written import Ranges

Kind = Literal["input", "output", "inout", "temp"]
DType = Literal["F32", "I32", "I16"]
ELEMENT_BYTES: Mapping[DType, int] = MappingProxyType({"F32": 4, "I32": 4, "I16": 2})


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of a program, or a contiguous range of one, `offset` elements in, seen with its own shape."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    kind: Kind
    offset: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Call:
    """One operator call: operands and attributes in the order of the operator's declaration.

    `module` names the part of a model that it belongs to, for people; it is no part of the program's form.
    """

    op: str
    operands: tuple[Buffer, ...]
    attributes: Mapping[str, int | float]
    module: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Program:
    """A checked program with its buffer plan. Immutable; may be shared by executors."""

    buffers: Mapping[str, Buffer]
    calls: tuple[Call, ...]
    plan: arena.Plan

    @property
    def external(self) -> tuple[Buffer, ...]:
        """The buffers that a run must be given, in order of declaration."""
        return tuple(buffer for buffer in self.buffers.values() if buffer.kind != "temp")

    def to_json(self) -> dict[str, Any]:
        """The program as JSON: integers and strings only, binary32 attributes as 8 hex digits of their bits."""
        return {
            "arena": self.plan.size,
            "buffers": [
                {"dtype": b.dtype, "kind": b.kind, "name": b.name, "shape": list(b.shape)}
                | ({"offset": self.plan.offsets[b.name]} if b.kind == "temp" else {})
                for b in self.buffers.values()
            ],
            "calls": [
                {
                    "attributes": {
                        name: _f32_hex(value) if isinstance(value, float) else value
                        for name, value in call.attributes.items()
                    },
                    "op": call.op,
                    "operands": [{"buffer": v.name, "offset": v.offset, "shape": list(v.shape)} for v in call.operands],
                    "version": OPERATORS[call.op].version,
                }
                for call in self.calls
            ],
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program takes, as its shapes tell. `work` is a float, since shapes may ask for any."""

    work: float
    """Multiply-adds of a run."""
    temporary: int
    """Bytes of its temporary buffers, each with memory of its own."""
    scratch: int
    """Bytes."""
    outputs: int
    """Operands that its calls write."""
    chunks: int
    """Of 64 KiB, in these."""


def cost_of(program: Program, threads: int) -> Cost:
    """The cost of a program on so many threads; nothing is allocated for it."""
    index = {name: i for i, name in enumerate(program.buffers)}
    buffers = _native_buffers(program.buffers, program.plan.offsets)
    calls = [_native_call(call, index) for call in program.calls]
    work, scratch, outputs, chunks = _native.program_cost(buffers, calls, threads)
    temporary = sum(b.size * ELEMENT_BYTES[b.dtype] for b in program.buffers.values() if b.kind == "temp")
    return Cost(work, temporary, scratch, outputs, chunks)


class ProgramBuilder:
    """Collects buffers and calls; every call is checked when it is added."""

    def __init__(self) -> None:
        self._buffers: dict[str, Buffer] = {}
        self._calls: list[Call] = []
        self.module = ""
        """The part of a model that the calls to come belong to."""

    def buffer(self, name: str, shape: tuple[int, ...], dtype: DType = "F32", kind: Kind = "temp") -> Buffer:
        """Declare a row-major buffer. Input, output and inout buffers are bound to arrays at every run.

        Raises KernelError if the name is taken, ShapeError for a dimension below 1.
        """
        if name in self._buffers:
            raise KernelError(f"buffer {name!r} is declared twice; give each its own name")
        if kind not in get_args(Kind):
            raise KernelError(f"buffer {name!r}: kind must be one of {', '.join(get_args(Kind))}, not {kind!r}")
        if dtype not in get_args(DType):
            raise KernelError(f"buffer {name!r}: dtype must be F32, I32 or I16, not {dtype!r}")
        buffer = Buffer(name, _checked_shape(name, shape), dtype, kind)
        self._buffers[name] = buffer
        return buffer

    def view(self, buffer: Buffer, offset: int, shape: tuple[int, ...]) -> Buffer:
        """View the elements from `offset` of a buffer, or of a view, with a shape of their own.

        Raises ShapeError if the range reaches beyond it.
        """
        shape = _checked_shape(buffer.name, shape)
        view = Buffer(buffer.name, shape, buffer.dtype, buffer.kind, buffer.offset + offset)
        if offset < 0 or offset + view.size > buffer.size:
            raise ShapeError(
                f"view of {buffer.name}: elements {offset} … {offset + view.size} reach beyond its {buffer.size}"
            )
        return view

    def call(self, op: str, *operands: Buffer, **attributes: int | float) -> None:
        """Add an operator call. Real attributes are rounded once to binary32.

        Raises KernelError or ShapeError, naming operator and operand, if the call does not fit the declaration.
        """
        operator = _operator(op)
        for operand in operands:
            declared = self._buffers.get(operand.name)
            if declared is None or declared.dtype != operand.dtype or declared.kind != operand.kind:
                raise KernelError(f"{op}: buffer {operand.name!r} belongs to another program")
        call = Call(op, operands, MappingProxyType(_checked_attributes(operator, attributes)), self.module)
        used = {operand.name: self._buffers[operand.name] for operand in operands}
        _native.check_call(_native_buffers(used, {}), _native_call(call, {name: i for i, name in enumerate(used)}))
        self._calls.append(call)

    def build(self) -> Program:
        """Check what is read against what was written, plan the memory, and return the program.

        Raises KernelError if a temp or output is read before it is written, or an output never is.
        """
        _check_written(self._buffers, self._calls)
        lifetimes: dict[str, arena.Lifetime] = {}
        for index, call in enumerate(self._calls):
            for operand in call.operands:
                if operand.kind == "temp":
                    first = lifetimes[operand.name].first if operand.name in lifetimes else index
                    size = self._buffers[operand.name].size * ELEMENT_BYTES[operand.dtype]
                    lifetimes[operand.name] = arena.Lifetime(size, first, index)
        used = {name: b for name, b in self._buffers.items() if b.kind != "temp" or name in lifetimes}
        return Program(MappingProxyType(used), tuple(self._calls), arena.plan(lifetimes))


class Executor:
    """A program made ready to run on `threads` threads (the calling one included).

    The arena and all scratch memory are allocated here, once. One run at a time: a second caller waits.
    """

    def __init__(self, program: Program, threads: int) -> None:
        self.program = program
        self.threads = threads
        self._external = [buffer.name for buffer in program.external]
        index = {name: i for i, name in enumerate(program.buffers)}
        self._native = _native.Executor(
            _native_buffers(program.buffers, program.plan.offsets),
            [_native_call(call, index) for call in program.calls],
            program.plan.size,
            threads,
        )

    def run(self, arrays: Mapping[str, Any]) -> None:
        """Run the program on contiguous CPU arrays (torch tensors or numpy arrays), outputs written in place.

        The GIL is released. Raises KernelError for a missing or unknown name, arrays that share memory, or an index
        (token, target, position, start) outside its range; ShapeError for another dtype or shape.
        """
        self._native.run(self._bound(arrays))

    def trace(self, arrays: Mapping[str, Any]) -> list[tuple[int, int, bytes]]:
        """As run; return (call, operand, hashes) of all that was written, 32 bytes for each 64 KiB chunk."""
        return self._native.trace(self._bound(arrays))

    def _bound(self, arrays: Mapping[str, Any]) -> list[Any]:
        if len(arrays) != len(self._external) or any(name not in arrays for name in self._external):
            missing = [name for name in self._external if name not in arrays]
            unknown = [name for name in arrays if name not in self._external]
            raise KernelError(
                "; ".join(
                    f"{what} {', '.join(names)}"
                    for what, names in (("no array for buffer", missing), ("no buffer is named", unknown))
                    if names
                )
            )
        return [arrays[name] for name in self._external]

    def timings(self) -> list[tuple[str, float]]:
        """(operator, seconds) of every call of the last run, as the calling thread saw it."""
        times = self._native.nanoseconds()
        return [(call.op, ns * 1e-9) for call, ns in zip(self.program.calls, times, strict=True)]


def call(op: str, *arrays: Any, threads: int = 1, **attributes: int | float) -> None:
    """Run one operator on arrays, outputs written in place: a program of one call, for tests and scripts.

    An array given twice is one operand in two roles, where the operator allows it. Raises as Executor.run.
    """
    operator = _operator(op)
    if len(arrays) != len(operator.operands):
        raise KernelError(f"{op} takes {len(operator.operands)} operands, not {len(arrays)}")
    builder = ProgramBuilder()
    buffers: dict[int, Buffer] = {}
    bound: dict[str, Any] = {}
    for array, spec in zip(arrays, operator.operands, strict=True):
        if id(array) in buffers:
            continue
        directions = {s.direction for a, s in zip(arrays, operator.operands, strict=True) if a is array}
        kind: Kind = "input" if directions == {"in"} else "output" if directions == {"out"} else "inout"
        buffers[id(array)] = builder.buffer(spec.name, tuple(array.shape), spec.dtype, kind)  # type: ignore[arg-type]
        bound[spec.name] = array
    builder.call(op, *(buffers[id(array)] for array in arrays), **attributes)
    Executor(builder.build(), threads).run(bound)


def _operator(name: str) -> Operator:
    try:
        return OPERATORS[name]
    except KeyError:
        raise KernelError(f"no operator {name!r}; the operators are {', '.join(OPERATORS)}") from None


def _checked_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    shape = tuple(int(extent) for extent in shape)
    if any(extent < 1 for extent in shape):
        raise ShapeError(f"buffer {name!r}: every dimension of {list(shape)} must be at least 1")
    return shape


def _checked_attributes(operator: Operator, given: Mapping[str, int | float]) -> dict[str, int | float]:
    """The attributes in declared order, real ones rounded to binary32."""
    if given.keys() != operator.attributes.keys():
        expected = ", ".join(operator.attributes) or "none"
        raise KernelError(f"{operator.name} takes the attributes {expected}; got {', '.join(given) or 'none'}")
    checked: dict[str, int | float] = {}
    for name, kind in operator.attributes.items():
        value = given[name]
        if kind == "real":
            checked[name] = _round_f32(operator.name, name, float(value))
        elif isinstance(value, int):
            checked[name] = int(value)
        else:
            raise KernelError(f"{operator.name}: attribute {name} must be an integer, not {value!r}")
    return checked


def _round_f32(op: str, name: str, value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        raise KernelError(f"{op}: attribute {name} = {value} does not fit a float32") from None


def _f32_hex(value: float) -> str:
    return struct.pack(">f", value).hex()


def _check_written(buffers: Mapping[str, Buffer], calls: list[Call]) -> None:
    """Every element of a temp or output is written before it is read; outputs are written whole."""
    written = {name: Ranges() for name, b in buffers.items() if b.kind in ("temp", "output")}
    for index, call in enumerate(calls):
        specs = OPERATORS[call.op].operands
        for operand, spec in zip(call.operands, specs, strict=True):
            reads = spec.direction == "in" or (
                spec.direction == "inout" and (not spec.read_where or bool(call.attributes[spec.read_where]))
            )
            known = written.get(operand.name)
            if reads and known is not None and not known.cover(operand.offset, operand.offset + operand.size):
                raise KernelError(
                    f"call {index}, {call.op}: operand {spec.name} reads buffer {operand.name} before it is written"
                )
        for operand, spec in zip(call.operands, specs, strict=True):
            if spec.direction != "in" and operand.name in written:
                written[operand.name].add(operand.offset, operand.offset + operand.size)
    for name, ranges in written.items():
        if buffers[name].kind == "output" and not ranges.cover(0, buffers[name].size):
            raise KernelError(f"output buffer {name} is not written whole; call an operator that writes it")


def _native_buffers(buffers: Mapping[str, Buffer], offsets: Mapping[str, int]) -> list[Any]:
    return [(b.name, b.kind, b.dtype, list(b.shape), offsets.get(b.name, 0)) for b in buffers.values()]


def _native_call(call: Call, index: Mapping[str, int]) -> Any:
    operands = [(index[view.name], view.offset, list(view.shape)) for view in call.operands]
    attributes = [(v, 0.0) if isinstance(v, int) else (0, v) for v in call.attributes.values()]
    return (call.op, operands, attributes)
