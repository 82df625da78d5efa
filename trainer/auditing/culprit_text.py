"""A difference between two traces, named as people name things: layer, tensor, element, values, what to do next."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bitwitness.kernels.capturing.graph_rules import is_call
from bitwitness.kernels.program import Program
from bitwitness.kernels.tracing.culprit import Difference, Element
from bitwitness.kernels.tracing.trace_record import TraceRecord, operand_name

Json = dict[str, Any]

_LAYER = re.compile(r"(?:layers?|blocks?)[._]?([0-9]+)")
_FLAT = {"params": "", "grads": " (gradient)", "m": " (first moment)", "v": " (second moment)"}
_SCALARS = (
    "gradient scale",
    "1 - beta1",
    "beta2",
    "1 - beta2",
    "decay",
    "step size",
    "1/sqrt(bias correction 2)",
    "epsilon",
)


@dataclass(frozen=True)
class Located:
    """Where a difference lies, in the words of the model."""

    tensor: str
    layer: int | None
    index: tuple[int, ...]  # of the element, () where it is not known
    shape: tuple[int, ...]
    operator: int | None = None  # counted from 1 over the calls of the step
    operators: int = 0
    part: str = ""  # of the step
    module: str = ""  # that the operator belongs to, in a model of the user's


def locate(found: Difference, record: TraceRecord) -> Located:
    """Name the buffer, or the model's tensor inside it, and the element."""
    place, layout = found.place, record.about.get("layout", {})
    counted: tuple[int | None, int, str] = (None, 0, "")
    module = ""
    if place is not None and place.view is not None:
        name, offset, shape = place.view.name, place.view.offset, place.view.shape
        calls = [(p.run, p.call) for p in record.places if p is not None and p.view is not None]
        order = list(dict.fromkeys(calls))
        number = record.script.actions[place.action]["run"]
        program, module = record.script.programs[number], module_of(record, number, place.call)
        counted = (order.index((place.run, place.call)) + 1, len(order), part_of_step(program))
    else:
        name, offset = found.slot, 0
        slot = next((slot for slot in record.script.slots if slot.name == name), None)
        shape = slot.shape if slot is not None else ()
    index = None if found.element is None else found.element.index
    tensor, index, shape = _tensor(name, offset, shape, index, layout)
    at = () if index is None else unravel(index, shape)
    layer = layer_of(tensor) if layer_of(module) is None else layer_of(module)
    return Located(tensor, layer, at, shape, *counted, module)


def module_of(record: TraceRecord, program: int, call: int) -> str:
    """The module that a call of a program belongs to, as the party says whose record it is; "" where it says none."""
    said = record.about.get("modules")
    calls = said.get(str(program)) if isinstance(said, dict) else None
    name = calls[call] if isinstance(calls, list) and call < len(calls) else ""
    return name if is_call(name) else ""


def layer_of(name: str) -> int | None:
    """The layer that a tensor's or buffer's name tells, None where it tells none."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _tensor(
    name: str, offset: int, shape: tuple[int, ...], index: int | None, layout: Mapping[str, Any]
) -> tuple[str, int | None, tuple[int, ...]]:
    """A place in a flat buffer is a place in one of the model's tensors."""
    kind = name.partition(".")[0]
    if kind not in _FLAT or not layout:
        return name, index, shape
    at = offset + (index or 0)
    for tensor, slot in layout.items():
        size = math.prod(slot["shape"])
        if slot["offset"] <= at < slot["offset"] + size:
            inside = None if index is None else at - slot["offset"]
            return tensor + _FLAT[kind], inside, tuple(slot["shape"])
    return name, index, shape


def unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The place in a row-major array of its element number `index`."""
    at = []
    for extent in reversed(shape):
        index, inside = divmod(index, extent)
        at.append(inside)
    return tuple(reversed(at))


def part_of_step(program: Program) -> str:
    """What a program of a step does, told by what it is given."""
    names = {buffer.name for buffer in program.external}
    if "ids" in names:
        return "forward and backward of a shard"
    if {"m", "v"} <= names:
        return "update"
    if "squares" in names:
        return "gradient norm"
    if {"left", "right"} <= names:
        return "fold of two shards"
    return "end of a shard" if "grads" in names else "quantised weights"


def lines(found: Difference, record: TraceRecord, names: tuple[str, str]) -> Iterator[str]:
    """What was found, for people."""
    located = locate(found, record)
    if found.kind == "operator":
        assert found.place is not None
        yield (
            f"first difference: operator {located.operator} of {located.operators}, {found.place.op}, "
            f"which writes {operand_name(found.place)} ({located.part}; run {found.place.run}, call {found.place.call})"
        )
    else:
        yield f"first difference: {found.what}"
    if located.module:
        yield f"  module    {located.module}"
    if found.kind != "program":
        layer = "" if located.layer is None else f", layer {located.layer}"
        yield f"  tensor    {located.tensor}{layer}, shape {list(located.shape)}"
    if located.index:
        scalar = f" ({_SCALARS[located.index[-1]]})" if located.tensor == "scalars" else ""
        yield f"  element   {list(located.index)}{scalar}"
    if found.element is not None:
        yield from element_lines(found.element, names)
    for name in found.missing:
        yield f"  {name}: the values are not in this trace" + _ask(found, record)
    yield f"  found with {found.questions} of {record.trace.size} hashes"


def _ask(found: Difference, record: TraceRecord) -> str:
    if found.kind != "operator" or found.place is None:
        return "; ask for the whole folder"
    call = f"{found.place.run}.{found.place.call}"
    return f"; ask for `ledger trace {record.about.get('name')} --step {record.about.get('step')} --call {call}`"


def element_lines(element: Element, names: tuple[str, str]) -> Iterator[str]:
    """Both values in hex and as numbers, and how far apart they are."""
    width = max(9, *map(len, names))
    for name, value in zip(names, (element.ours, element.theirs), strict=True):
        yield f"  {name:<{width}} {value}  {_decimal(value, element.floating)}"
    unit = " ULP" if element.floating else ""
    distance = "one is not a number" if element.ulp is None else f"{element.ulp:,}{unit}"
    yield f"  {'distance':<{width}} {distance}"


def _decimal(value: str, floating: bool) -> str:
    data = bytes.fromhex(value)
    return f"{struct.unpack('>f', data)[0]:.9g}" if floating else str(int.from_bytes(data, "big", signed=True))


def difference_json(found: Difference | None, record: TraceRecord) -> Json:
    """The same for programs."""
    if found is None:
        return {"same": True, "root": record.trace.root, "size": record.trace.size}
    located = locate(found, record)
    result: Json = {
        "same": False,
        "kind": found.kind,
        "leaf": found.leaf,
        "size": record.trace.size,
        "hashes": found.questions,
        "what": found.what,
        "tensor": located.tensor,
        "layer": located.layer,
        "index": list(located.index),
        "shape": list(located.shape),
        "missing": list(found.missing),
    }
    if found.place is not None and found.place.view is not None:
        result |= {
            "operator": located.operator,
            "operators": located.operators,
            "op": found.place.op,
            "operand": operand_name(found.place),
            "run": found.place.run,
            "call": found.place.call,
            "part": located.part,
        }
    if located.module:
        result["module"] = located.module
    if found.element is not None:
        result |= {"ours": found.element.ours, "theirs": found.element.theirs, "ulp": found.element.ulp}
    return result
