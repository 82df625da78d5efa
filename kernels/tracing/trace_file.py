"""A trace file: step programs, what they work on and what is done in which order, in one self-contained file.

docs/formats/trace.md defines it byte by byte. It is a safetensors file whose metadata holds one key, the script:
canonical JSON that `kernels/referee` executes on any machine.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import Buffer, Program, ProgramBuilder
from bitwitness.kernels.tracing.trace_limits import Limits, check, check_planning, memory_of_json, read_given

SCRIPT_KEY = "bitwitness.trace/1"
DTYPES: Mapping[str, Any] = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2")}
NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}")
_HASH = re.compile(r"[0-9a-f]{64}")
CHUNK_BYTES = 65536
MOST_HEADER = 1 << 26
MOST_ELEMENTS = 1 << 40

Array = npt.NDArray[Any]


class TraceFileError(KernelError):
    """A file that is not, byte for byte, what docs/formats/trace.md says."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory that programs are run on, zero at first."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "name": self.name, "shape": list(self.shape)}


@dataclass
class TraceFile:
    """Tensors by name, and the script: see docs/formats/trace.md for `commitments` and `actions`."""

    tensors: dict[str, Array] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    commitments: list[dict[str, Any]] = field(default_factory=list)
    actions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def script(self) -> str:
        """The canonical JSON that the referee reads."""
        return canonical(
            {
                "actions": self.actions,
                "commitments": self.commitments,
                "programs": [program_json(program) for program in self.programs],
                "slots": [slot.to_json() for slot in self.slots],
            }
        )


def canonical(value: object) -> str:
    """JSON as RFC 8785 writes it, for objects, arrays, ASCII strings and integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def program_json(program: Program) -> dict[str, Any]:
    """Program.to_json() without its plan of memory, which a trace does not depend on."""
    whole = program.to_json()
    buffers = [{key: value for key, value in buffer.items() if key != "offset"} for buffer in whole["buffers"]]
    return {"buffers": buffers, "calls": whole["calls"]}


def program_of(value: Mapping[str, Any]) -> Program:
    """Build the program again, with every check. Raises KernelError for one that this build would not make."""
    builder = ProgramBuilder()
    buffers: dict[str, Buffer] = {}
    try:
        for item in value["buffers"]:
            shape = _shape_of(item["shape"])
            buffers[item["name"]] = builder.buffer(item["name"], shape, item["dtype"], item["kind"])
        for item in value["calls"]:
            operator = OPERATORS.get(item["op"])
            if operator is None or operator.version != item["version"]:
                raise TraceFileError(f"operator {item['op']!r} of version {item['version']!r} is not in this build")
            views = [builder.view(buffers[v["buffer"]], v["offset"], _shape_of(v["shape"])) for v in item["operands"]]
            attributes = {
                name: f32_of_hex(attribute) if operator.attributes.get(name) == "real" else attribute
                for name, attribute in item["attributes"].items()
            }
            builder.call(item["op"], *views, **attributes)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise TraceFileError(f"a program is malformed: {error!r}") from error
    program = builder.build()
    if canonical(program_json(program)) != canonical(value):  # 1 is not true
        raise TraceFileError("a program is not in the form that it would be written in")
    return program


def _shape_of(value: object) -> tuple[int, ...]:
    if not _is_shape(value):
        raise TraceFileError(f"a shape has at most 4 dimensions of 1 and more, and {MOST_ELEMENTS} elements")
    return tuple(value)


def bits(array: Array) -> Array:
    """The bits of an array as unsigned integers, so that comparing is exact."""
    return array.view(np.dtype(f"<u{array.itemsize}"))


def f32_of_hex(text: str) -> float:
    """The binary32 number of 8 hex digits."""
    if not re.fullmatch(r"[0-9a-f]{8}", text):
        raise ValueError(f"{text!r} is not 8 lower-case hex digits")
    return float(np.array([int(text, 16)], np.uint32).view(np.float32)[0])


def write(path: Path, file: TraceFile) -> None:
    """Write the file. Raises TraceFileError for a tensor that it cannot hold."""
    header: dict[str, Any] = {"__metadata__": {SCRIPT_KEY: file.script}}
    at = 0
    parts = []
    for name in sorted(file.tensors):
        array = file.tensors[name]
        dtype = next((key for key, known in DTYPES.items() if array.dtype == known), None)
        if dtype is None or not NAME.fullmatch(name):
            raise TraceFileError(f"tensor {name!r} of {array.dtype} does not fit a trace file")
        header[name] = {"data_offsets": [at, at + array.nbytes], "dtype": dtype, "shape": list(array.shape)}
        at += array.nbytes
        parts.append(np.ascontiguousarray(array))
    text = canonical(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER:
        raise TraceFileError(f"the script is too long: {len(text)} bytes of header, {MOST_HEADER} at most")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for part in parts:
                out.write(part.data)
        temporary.replace(path)  # whole or not at all
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path, limits: Limits | None = None) -> TraceFile:
    """Read a file and check every byte of its header. Raises TraceFileError, or TooMuch for one beyond ``limits``."""
    limits = limits or Limits()
    data = read_given(path, limits)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length % 8 or length > min(len(data) - 8, MOST_HEADER):
        raise TraceFileError(f"{path}: the length of the header is no multiple of 8, or beyond the file or 64 MiB")
    taken = len(data) + memory_of_json(data[8 : 8 + length])
    limits.check_memory(taken, str(path))
    header = parse_canonical(data[8 : 8 + length].decode("latin-1").rstrip(" "), str(path))
    if not isinstance(header, dict):
        raise TraceFileError(f"{path}: the header must be an object")
    if canonical(header).encode("ascii").ljust(length) != data[8 : 8 + length] or length - len(canonical(header)) >= 8:
        raise TraceFileError(f"{path}: the header is not padded to a multiple of 8 with blanks")
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.keys() != {SCRIPT_KEY} or not isinstance(metadata[SCRIPT_KEY], str):
        raise TraceFileError(f"{path}: the metadata must hold {SCRIPT_KEY} and nothing else")
    tensors = dict(_tensors(header, memoryview(data)[8 + length :], str(path)))
    return _with_script(tensors, metadata[SCRIPT_KEY], str(path), limits.holding(taken))


def parse_canonical(text: str, where: str) -> Any:
    """Parse JSON that must be its own canonical form. Raises TraceFileError."""
    try:
        value = json.loads(text)
        same = canonical(value) == text and _is_plain(value)
    except (ValueError, RecursionError) as error:
        raise TraceFileError(f"{where}: the JSON cannot be read: {error}") from error
    if not same:
        raise TraceFileError(
            f"{where}: the JSON is not in canonical form, or holds more than printable ASCII and integers below 2^53"
        )
    return value


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return value.isascii() and value.isprintable()
    return type(value) is int and -(1 << 53) < value < 1 << 53


def of_script(script: str, where: str, limits: Limits) -> TraceFile:
    """A file of this script alone, without the tensors that it loads. Raises TraceFileError, TooMuch."""
    return _with_script({}, script, where, limits)


def _tensors(header: Mapping[str, Any], data: memoryview, where: str) -> Iterator[tuple[str, Array]]:
    at = 0
    for name, entry in header.items():
        if not isinstance(entry, dict) or entry.keys() != {"data_offsets", "dtype", "shape"}:
            raise TraceFileError(f"{where}: tensor {name!r} must have data_offsets, dtype and shape")
        shape, dtype = entry["shape"], DTYPES.get(str(entry["dtype"]))
        if dtype is None or not _is_shape(shape) or not NAME.fullmatch(name):
            raise TraceFileError(f"{where}: tensor {name!r} has a name, dtype or shape that no trace file holds")
        end = at + math.prod(shape) * dtype.itemsize
        if entry["data_offsets"] != [at, end] or end > len(data):
            raise TraceFileError(f"{where}: tensor {name!r} does not lie where the ones before it end")
        yield name, np.frombuffer(data[at:end], dtype).reshape(shape)
        at = end
    if at != len(data):
        raise TraceFileError(f"{where}: {len(data) - at} bytes after the last tensor")


def _is_shape(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list) or not all(type(extent) is int and extent >= 1 for extent in value):
        return False
    return len(value) <= 4 and math.prod(value) <= MOST_ELEMENTS


def _with_script(tensors: dict[str, Array], script: str, where: str, limits: Limits) -> TraceFile:
    value = parse_canonical(script, where)
    if not isinstance(value, dict) or value.keys() != {"actions", "commitments", "programs", "slots"}:
        raise TraceFileError(f"{where}: the script must have actions, commitments, programs and slots")
    if not all(isinstance(part, list) for part in value.values()):
        raise TraceFileError(f"{where}: the parts of the script must be arrays")
    slots = []
    for slot in value["slots"]:
        if not isinstance(slot, dict) or slot.keys() != {"dtype", "name", "shape"} or not _is_shape(slot["shape"]):
            raise TraceFileError(f"{where}: a slot must have dtype, name and shape")
        if not isinstance(slot["dtype"], str) or slot["dtype"] not in DTYPES:
            raise TraceFileError(f"{where}: a slot is F32, I32 or I16")
        slots.append(Slot(str(slot["name"]), slot["dtype"], tuple(slot["shape"])))
    if len({slot.name for slot in slots}) < len(slots) or not all(NAME.fullmatch(slot.name) for slot in slots):
        raise TraceFileError(f"{where}: every slot has a name of its own, of A-Z a-z 0-9 . _ / -")
    check_planning(value["programs"], limits, where)
    programs = [program_of(program) for program in value["programs"]]
    file = TraceFile(tensors, slots, programs, value["commitments"], value["actions"])
    memory = {slot.name: slot for slot in slots}
    for number, commitment in enumerate(file.commitments):
        if not _is_commitment(commitment, memory):
            raise TraceFileError(f"{where}: commitment {number} is not one of tensors that lie in slots")
    for number, action in enumerate(file.actions):
        if not _is_action(action, file, memory):
            raise TraceFileError(f"{where}: action {number} is not one that docs/formats/trace.md has")
    check(file, limits, where)
    return file


def _is_commitment(value: object, memory: Mapping[str, Slot]) -> bool:
    if not isinstance(value, dict) or value.keys() != {"tensors", "type"} or not isinstance(value["type"], str):
        return False
    return isinstance(value["tensors"], list) and all(_is_part(tensor, memory) for tensor in value["tensors"])


def _is_part(value: object, memory: Mapping[str, Slot]) -> bool:
    """Whether a tensor of a commitment has a name, and lies in a slot."""
    if not isinstance(value, dict) or value.keys() != {"name", "offset", "shape", "slot"}:
        return False
    if not isinstance(value["name"], str) or not NAME.fullmatch(value["name"]) or not _is_shape(value["shape"]):
        return False
    slot = _named(memory, value["slot"])
    return slot is not None and _is_count(value["offset"], 0, math.prod(slot.shape) - math.prod(value["shape"]))


def _is_action(value: object, file: TraceFile, memory: Mapping[str, Slot]) -> bool:
    if not isinstance(value, dict):
        return False
    keys = value.keys()
    if keys == {"load", "tensor"}:
        return _named(memory, value["load"]) is not None and isinstance(value["tensor"], str)
    if keys == {"zero"}:
        return _named(memory, value["zero"]) is not None
    if keys == {"run", "with"}:
        slots = value["with"]
        return (
            _is_count(value["run"], 0, len(file.programs) - 1)
            and isinstance(slots, list)
            and (all(_named(memory, slot) is not None for slot in slots))
        )
    if keys in ({"commit", "label"}, {"commit", "expected", "label"}):
        return (
            _is_count(value["commit"], 0, len(file.commitments) - 1)
            and isinstance(value["label"], str)
            and ("expected" not in keys or _is_hash(value["expected"]))
        )
    if keys != {"begin", "chunk", "claims", "end"}:
        return False
    slot, claims = _named(memory, value["chunk"]), value["claims"]
    if slot is None or not isinstance(claims, dict) or not all(map(_is_hash, claims.values())):
        return False
    size, most = math.prod(slot.shape), CHUNK_BYTES // DTYPES[slot.dtype].itemsize
    begin, end = value["begin"], value["end"]
    return _is_count(begin, 0, size - 1) and _is_count(end, begin + 1, min(size, begin + most))


def _named(memory: Mapping[str, Slot], name: object) -> Slot | None:
    return memory.get(name) if isinstance(name, str) else None


def _is_count(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None
