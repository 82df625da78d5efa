"""A captured model as data: the operator calls of its step and of its loss, over values, for any number of windows.

A value is written once, by the call that makes it, and has a number. A slot of a call says what is read and which value
is written:

    {"read": 7, "shape": ["24W", 32]}                     value 7, with 24 rows for each window
    {"read": ["q.weight", "k.weight"], "shape": [64, 32]} parameters, one under the other
    {"read": "ids", "shape": ["24W"]}                     an input of the step
    {"read": 7, "shape": ["24W", 64], "write": 8}         read and written: value 8 is value 7, changed

The gradient of a parameter is the sum of terms, each a value that a call summed over rows, from an element of it on. A
call names the module that it belongs to, and what a block gave is a value with the name of a module. No code is in it:
`Graph.from_json` takes it from anyone.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwitness.kernels.capturing.graph_rules import SUMS, GraphError, check_rules
from bitwitness.kernels.initial import Initial
from bitwitness.kernels.ops import OPERATORS

Json = dict[str, Any]
Source = int | str | tuple[str, ...]
"""A value, an input, or parameters one under the other."""
Dim = int | str
"""A number, or one for each window: "24W"."""
Attribute = int | float

FORMAT = "captured/1"
INPUTS = ("ids", "targets", "positions", "start", "places")
OUTPUTS = ("loss", "nll")
_MOST = 1 << 20  # calls, parameters


@dataclass(frozen=True, slots=True)
class Slot:
    """One operand of a call."""

    shape: tuple[Dim, ...]
    read: Source | None = None
    write: int | str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call; attributes in the order of the declaration, real ones binary32.

    `module` is the module that it was made in, forward or backward, "" for the model itself. It is no part of what is
    computed.
    """

    op: str
    slots: tuple[Slot, ...]
    attributes: Mapping[str, Attribute]
    module: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the gradient of a parameter: the elements of `value` from `offset` on, as many as the parameter has."""

    value: int
    offset: int


@dataclass(frozen=True, slots=True)
class Table:
    """Rotary tables: inputs cos.N and sin.N, N their place in the list, [window, head_width / 2] each."""

    head_width: int
    theta: float


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a block gave: a value of the step, and the value that is its gradient, if it has one."""

    module: str
    value: int
    gradient: int | None


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    shape: tuple[int, ...]
    initial: Initial


@dataclass(frozen=True)
class Recording:
    """What one run of a module's forward pass gave, at one number of windows."""

    nodes: tuple[Node, ...]
    gradients: Mapping[str, tuple[Term, ...]]
    tables: tuple[Table, ...]
    windows: int
    boundaries: tuple[Boundary, ...] = ()


@dataclass(frozen=True)
class Graph:
    """A captured model: `step` makes losses and gradients, `loss` the losses of held-out windows."""

    window: int
    vocabulary: int
    parameters: tuple[Parameter, ...]
    tables: tuple[Table, ...]
    step: tuple[Node, ...]
    gradients: Mapping[str, tuple[Term, ...]]
    loss: tuple[Node, ...]
    boundaries: tuple[Boundary, ...] = ()

    def to_json(self) -> Json:
        """Integers and strings only: real attributes as 8 hex digits of their bits, theta and std as 16."""
        return {
            "boundaries": [_boundary_json(boundary) for boundary in self.boundaries],
            "format": FORMAT,
            "gradients": {
                name: [{"offset": t.offset, "value": t.value} for t in terms] for name, terms in self.gradients.items()
            },
            "loss": [_node_json(node) for node in self.loss],
            "parameters": [
                {"initial": _initial_json(p.initial), "name": p.name, "shape": list(p.shape)} for p in self.parameters
            ],
            "step": [_node_json(node) for node in self.step],
            "tables": [{"head_width": t.head_width, "theta": _f64_hex(t.theta)} for t in self.tables],
            "vocabulary": self.vocabulary,
            "window": self.window,
        }

    @classmethod
    def from_json(cls, data: Any) -> Graph:
        """Read what `to_json` wrote. Raises GraphError."""
        try:
            graph = _graph(data)
            same = _text_of(graph.to_json()) == _text_of(data)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, struct.error) as error:
            raise GraphError(f"not a captured model: {type(error).__name__} {error}") from None
        if not same:
            raise GraphError("not a captured model: it holds more than this form has")
        _check(graph)
        check_rules(graph)
        return graph


def size(shape: Sequence[Dim], windows: int) -> tuple[int, ...]:
    """The shape at a number of windows."""
    return tuple(dim if isinstance(dim, int) else int(dim[:-1]) * windows for dim in shape)


def general(few: Recording, more: Recording) -> tuple[Node, ...]:
    """The calls of two recordings at different numbers of windows as those of any number.

    Raises GraphError where the two differ in more than the number of rows.
    """
    if len(few.nodes) != len(more.nodes) or (few.gradients, few.tables, few.boundaries) != (
        more.gradients,
        more.tables,
        more.boundaries,
    ):
        raise GraphError("forward does other things at another number of windows, or at another time; it must not")
    return tuple(_general(a, b, few.windows, more.windows) for a, b in zip(few.nodes, more.nodes, strict=True))


def _general(a: Node, b: Node, few: int, more: int) -> Node:
    alike = a.op == b.op and a.attributes == b.attributes and a.module == b.module
    slots = []
    for s, t in zip(a.slots, b.slots, strict=True):
        alike = alike and s.read == t.read and s.write == t.write and len(s.shape) == len(t.shape)
        slots.append(Slot(tuple(_dim(m, n, few, more) for m, n in zip(s.shape, t.shape, strict=True)), s.read, s.write))
    if not alike:
        raise GraphError(f"forward does {a.op} where it does {b.op} at another number of windows; it must not")
    return Node(a.op, tuple(slots), a.attributes, a.module)


def _dim(m: Dim, n: Dim, few: int, more: int) -> Dim:
    if m == n:
        return m
    if not (isinstance(m, int) and isinstance(n, int)) or m % few or m // few * more != n:
        raise GraphError(f"a tensor has {m} elements for {few} windows and {n} for {more}; it must grow with them")
    return f"{m // few}W"


# -- JSON -------------------------------------------------------------------------------------------------------------


def _node_json(node: Node) -> Json:
    return {
        "attributes": {
            name: _f32_hex(value) if isinstance(value, float) else value for name, value in node.attributes.items()
        },
        "op": node.op,
        "operands": [
            {"shape": list(slot.shape)}
            | ({} if slot.read is None else {"read": list(slot.read) if isinstance(slot.read, tuple) else slot.read})
            | ({} if slot.write is None else {"write": slot.write})
            for slot in node.slots
        ],
        "version": OPERATORS[node.op].version,
    } | ({"module": node.module} if node.module else {})


def _boundary_json(boundary: Boundary) -> Json:
    gradient = {} if boundary.gradient is None else {"gradient": boundary.gradient}
    return {**gradient, "module": boundary.module, "value": boundary.value}


def _initial_json(initial: Initial) -> Json:
    return {"std": _f64_hex(initial.std)} if initial.std else {"value": _f64_hex(initial.value)}


def _graph(data: Any) -> Graph:
    if data["format"] != FORMAT:
        raise GraphError(f"a captured model of the form {data['format']!r}; this program reads {FORMAT}")
    return Graph(
        window=_count(data["window"]),
        vocabulary=_count(data["vocabulary"]),
        parameters=tuple(
            Parameter(_text(p["name"]), tuple(_count(n) for n in p["shape"]), _initial(p["initial"]))
            for p in _items(data["parameters"])
        ),
        tables=tuple(Table(_count(t["head_width"]), _f64(t["theta"])) for t in _items(data["tables"])),
        step=tuple(_node(node) for node in _items(data["step"])),
        gradients={
            _text(name): tuple(Term(_natural(t["value"]), _natural(t["offset"])) for t in _items(terms))
            for name, terms in data["gradients"].items()
        },
        loss=tuple(_node(node) for node in _items(data["loss"])),
        boundaries=tuple(
            Boundary(b["module"], _natural(b["value"]), None if "gradient" not in b else _natural(b["gradient"]))
            for b in _items(data["boundaries"])
        ),
    )


def _node(data: Any) -> Node:
    operator = OPERATORS.get(data["op"])
    if operator is None or data["version"] != operator.version:
        raise GraphError(f"operator {data['op']!r}, version {data['version']!r}, is not one of this build")
    attributes = {
        name: _f32(data["attributes"][name]) if kind == "real" else _natural(data["attributes"][name], -1)
        for name, kind in operator.attributes.items()
    }
    slots = tuple(
        Slot(tuple(_shape(dim) for dim in _items(s["shape"])), _source(s.get("read")), _target(s.get("write")))
        for s in _items(data["operands"])
    )
    if len(slots) != len(operator.operands):
        raise GraphError(f"{operator.name} takes {len(operator.operands)} operands, not {len(slots)}")
    return Node(operator.name, slots, attributes, data.get("module", ""))


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST:
        raise TypeError("a list is due")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is due")
    return value


def _natural(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 53:
        raise ValueError(f"{value!r} is not a whole number from {least}")
    return value


def _count(value: Any) -> int:
    return _natural(value, 1)


def _shape(dim: Any) -> Dim:
    if isinstance(dim, str) and re.fullmatch(r"[1-9][0-9]{0,14}W", dim):
        return dim
    return _count(dim)


def _source(value: Any) -> Source | None:
    if isinstance(value, list):
        return tuple(_text(name) for name in value)
    return value if value is None or isinstance(value, str) else _natural(value)


def _target(value: Any) -> int | str | None:
    return value if value is None or isinstance(value, str) else _natural(value)


def _text_of(data: Any) -> str:
    """JSON as text: true is not 1 there."""
    return json.dumps(data, sort_keys=True)


def _initial(data: Any) -> Initial:
    return Initial(std=_f64(data["std"])) if "std" in data else Initial(value=_f64(data["value"]))


def _f32_hex(value: float) -> str:
    return struct.pack(">f", value).hex()


def _f32(text: str) -> float:
    return float(struct.unpack(">f", bytes.fromhex(text))[0])


def _f64_hex(value: float) -> str:
    return struct.pack(">d", value).hex()


def _f64(text: str) -> float:
    value = float(struct.unpack(">d", bytes.fromhex(text))[0])
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


# -- what holds between the parts -------------------------------------------------------------------------------------


def _check(graph: Graph) -> None:
    """Values are read after they are written, and written once; gradients are sums of the right sizes."""
    shapes = {p.name: p.shape for p in graph.parameters}
    if len(shapes) != len(graph.parameters) or list(graph.gradients) != sorted(shapes):
        raise GraphError("not a captured model: parameters and gradients have other names")
    for name, p in shapes.items():
        if not graph.gradients[name]:
            raise GraphError(f"not a captured model: parameter {name} has no gradient")
        if len(p) < 1:
            raise GraphError(f"not a captured model: parameter {name} has no shape")
    for nodes in (graph.step, graph.loss):
        sums = dict(_written(graph, nodes, shapes))
        if nodes is graph.step:
            for name, terms in graph.gradients.items():
                for term in terms:
                    if term.offset + math.prod(shapes[name]) > sums.get(term.value, 0):
                        raise GraphError(f"not a captured model: the gradient of {name} is not a sum of its step")


def _written(graph: Graph, nodes: Sequence[Node], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Check every slot; yields each value that is a sum over rows, with its size."""
    tables = {f"{part}.{number}" for number in range(len(graph.tables)) for part in ("cos", "sin")}
    known: set[int] = set()
    outputs: set[str] = set()
    for node in nodes:
        specs = OPERATORS[node.op].operands
        for slot, spec in zip(node.slots, specs, strict=True):
            read = slot.read
            if (spec.direction == "out" and read is not None) or (spec.direction == "in") != (slot.write is None):
                raise GraphError(f"not a captured model: {node.op} does not write {spec.name} as it does")
            if isinstance(read, int) and read not in known:
                raise GraphError(f"not a captured model: {node.op} reads value {read} before it is written")
            if isinstance(read, str) and read not in INPUTS and read not in tables:
                raise GraphError(f"not a captured model: there is no input {read!r}")
            if isinstance(read, tuple) and (not read or any(name not in shapes for name in read)):
                raise GraphError(f"not a captured model: {node.op} reads parameters that there are not")
        for slot, spec in zip(node.slots, specs, strict=True):
            if slot.write is None:
                continue
            if isinstance(slot.write, str):
                if slot.write not in OUTPUTS or slot.write in outputs:
                    raise GraphError(f"not a captured model: there is no output {slot.write!r}, or it is written twice")
                outputs.add(slot.write)
            elif slot.write in known:
                raise GraphError(f"not a captured model: value {slot.write} is written twice")
            else:
                known.add(slot.write)
                if spec.direction == "inout" and node.op in SUMS and all(isinstance(d, int) for d in slot.shape):
                    yield slot.write, math.prod(size(slot.shape, 1))
    if outputs != set(OUTPUTS):
        raise GraphError("not a captured model: it does not write loss and nll")
