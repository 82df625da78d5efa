"""What the calls of a captured model must be for its step to be a step, whoever wrote them (graph.py).

A call does to every window what it does to one: it goes along rows, and the rows are those of whole windows; or it
knows nothing of windows. What is summed over rows starts again at every window and is a gradient. So the number of
windows computed at a time is not in the bits. The losses are those of the logits against the targets, which nothing
else reads, and every rotary table is one that a call turns by. Names are names, and what a block gave is a row for each
token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS, Operand

if TYPE_CHECKING:
    from bitwitness.kernels.capturing.graph import Dim, Graph, Node, Slot

SUMS = frozenset({"matmul_tn", "bias_backward", "embed_backward", "rmsnorm_backward", "layernorm_backward"})
"""The operators whose inout operand is a sum over rows, as the gradient of a parameter is."""
_BY_ELEMENT = (
    *("fill", "copy", "add", "mul", "silu", "silu_backward", "gelu", "gelu_backward", "gelu_tanh"),
    "gelu_tanh_backward",
)
_BY_ROW = (
    *("add_bias", "attention", "attention_backward", "bias_backward", "cross_entropy", "cross_entropy_loss", "dropout"),
    *("embed", "embed_backward", "layernorm", "layernorm_backward", "rmsnorm", "rmsnorm_backward", "rope", "swiglu"),
    "swiglu_backward",
)
ALONG: Mapping[str, str] = {
    **dict.fromkeys(_BY_ELEMENT, "n"),
    **dict.fromkeys(_BY_ROW, "R"),
    **dict.fromkeys(("matmul_nn", "matmul_nt"), "M"),
    "matmul_tn": "K",
}
"""The operators that a captured model may call, and the dimension of each along which its rows lie."""
_INTEGERS: Mapping[str, tuple[str, ...]] = {
    "at": ("places",),
    "ids": ("ids", "positions"),
    "pos": ("positions",),
    "start": ("start",),
    "target": ("targets",),
}
"""What each operand of integers may be."""
_WIDEST_HEAD = 1 << 14
MOST_CALLS = 1 << 13
"""Calls of a step or an evaluation: some 200 layers. To plan their memory takes time by the square of their number."""

MOST_BOUNDARIES = 256
"""Blocks whose outputs an audit witnesses, each with its gradient."""
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_CALL = re.compile(_NAME.pattern + "(?:/[1-9][0-9]{0,5})?")
_LONGEST = 150  # what is made of a name must be one of a trace, which has 200 characters

_Size = tuple[int, int]
"""Elements: so many, for each window where the second number is 1."""


class GraphError(KernelError):
    """A captured model that is not one: not the form of `graph`, or two runs of forward differ."""


def is_name(text: object) -> bool:
    """Whether a module or parameter can be called so in files: parts of A-Z a-z 0-9 _ -, with dots between."""
    return isinstance(text, str) and len(text) <= _LONGEST and _NAME.fullmatch(text) is not None


def is_call(text: object) -> bool:
    """Whether this names a call of a module: its name and, from the second one of a step on, `/2` and so on."""
    return isinstance(text, str) and len(text) <= _LONGEST and _CALL.fullmatch(text) is not None


def check_rules(graph: Graph) -> None:
    """Raise GraphError unless the graph is as above. What is read before it is written was refused before."""
    for parameter in graph.parameters:
        if not is_name(parameter.name):
            raise GraphError(f"{parameter.name[:60]!a} is no name of a parameter: A-Z a-z 0-9 _ - and dots make one")
    sizes = _Rules(graph, graph.step, "cross_entropy").check()
    _Rules(graph, graph.loss, "cross_entropy_loss").check()
    _check_boundaries(graph, sizes)
    read = {slot.read for nodes in (graph.step, graph.loss) for node in nodes for slot in node.slots}
    for number, table in enumerate(graph.tables):
        if not (2 <= table.head_width <= _WIDEST_HEAD and table.head_width % 2 == 0 and table.theta > 0.0):
            raise GraphError(f"table {number} is for a head {table.head_width} wide; 2 to {_WIDEST_HEAD} will do, even")
        if not {f"cos.{number}", f"sin.{number}"} <= read:
            raise GraphError(f"table {number} is one that no call turns by")


def _check_boundaries(graph: Graph, sizes: Mapping[int, _Size]) -> None:
    """They are of modules, each of its own; and of values of the step, each of its own, a row for each token."""
    if len(graph.boundaries) > MOST_BOUNDARIES:
        raise GraphError(f"it names {len(graph.boundaries)} boundaries of blocks; at most {MOST_BOUNDARIES} are kept")
    names = [boundary.module for boundary in graph.boundaries]
    if not all(is_call(name) for name in names) or len(set(names)) < len(names):
        raise GraphError("a boundary is of a module that has no name, or is named twice")
    values = [v for b in graph.boundaries for v in (b.value, b.gradient) if v is not None]
    for value in values:
        elements, windows = sizes.get(value, (0, 0))
        if windows != 1 or elements % graph.window:
            raise GraphError(f"value {value} is no boundary of a block: it has no row for each token")
    if len(set(values)) < len(values):
        raise GraphError("a value is the boundary of two blocks")


@dataclass
class _Rules:
    """One list of calls; `loss` is the operator that makes its losses."""

    graph: Graph
    nodes: Sequence[Node]
    loss: str

    def check(self) -> dict[int, _Size]:
        """Returns the size of every value."""
        sizes: dict[int, _Size] = {}
        if len(self.nodes) > MOST_CALLS:
            raise GraphError(f"its step has {len(self.nodes)} operator calls; at most {MOST_CALLS} are planned")
        # The gradient of one tells the targets to another.
        if [node.op for node in self.nodes if node.op.startswith("cross_entropy")] != [self.loss]:
            raise GraphError(f"its losses are not those of one {self.loss}")
        for node in self.nodes:
            if node.op not in ALONG:
                raise GraphError(f"{node.op} is no operator of a captured model")
            if node.module != "" and not is_call(node.module):
                raise GraphError(f"{node.op} is made in {str(node.module)[:60]!a}, which is no name of a module")
            rows = self._rows(node)
            for slot, spec in zip(node.slots, OPERATORS[node.op].operands, strict=True):
                self._check_slot(node, slot, spec, sizes)
            if rows is not None:
                self._check_windowed(node, rows)
            for slot in node.slots:
                if isinstance(slot.write, int):
                    sizes[slot.write] = _size(slot.shape)
        self._check_sums()
        return sizes

    def _rows(self, node: Node) -> str | None:
        """The rows of a call, `24W`; None for a call that knows nothing of windows."""
        found: set[Dim] = set()
        for slot, spec in zip(node.slots, OPERATORS[node.op].operands, strict=True):
            if len(slot.shape) != len(spec.shape):
                raise GraphError(f"{node.op}: operand {spec.name} has {len(slot.shape)} dimensions")
            for dim, named in zip(slot.shape, spec.shape, strict=True):
                if named == ALONG[node.op]:
                    found.add(dim)
                elif isinstance(dim, str):
                    raise GraphError(f"{node.op}: operand {spec.name} holds windows along {named}, not as rows")
        if len(found) != 1:
            raise GraphError(f"{node.op} goes along operands of different lengths")
        rows = found.pop()
        return rows if isinstance(rows, str) else None

    def _check_slot(self, node: Node, slot: Slot, spec: Operand, sizes: Mapping[int, _Size]) -> None:
        read, size = slot.read, _size(slot.shape)
        if isinstance(read, int) and sizes[read] != size:
            raise GraphError(f"{node.op}: operand {spec.name} is not as large as the value that it reads")
        if (spec.dtype == "I32") != (isinstance(read, str) and not read.startswith(("cos.", "sin."))) or (
            spec.dtype == "I32" and read not in _INTEGERS.get(spec.name, ())
        ):
            raise GraphError(f"{node.op}: operand {spec.name} reads {read!r}, which it may not be")
        if isinstance(read, str) and size != self._input(read):
            raise GraphError(f"{node.op}: operand {spec.name} is not as large as {read}")
        if isinstance(slot.write, str) and (node.op != self.loss or spec.name != slot.write):
            raise GraphError(f"{slot.write} is written by {node.op} where {self.loss} writes its own")
        if node.op == self.loss and spec.name == "x":
            logits = slot.shape[1]
            if isinstance(logits, str) or logits < self.graph.vocabulary:
                raise GraphError(f"{node.op} is of fewer logits than the model has token ids")

    def _input(self, name: str) -> _Size:
        window = self.graph.window
        if name.startswith(("cos.", "sin.")):
            return window * (self.graph.tables[int(name.partition(".")[2])].head_width // 2), 0
        return (3 * window if name == "places" else window), 1

    def _check_windowed(self, node: Node, rows: str) -> None:
        """What looks beyond its row looks no further than its window."""
        window = self.graph.window
        for name in ("segment", "window"):
            if name in node.attributes and (node.attributes[name] != window or rows != f"{window}W"):
                raise GraphError(f"{node.op}: {name} is not the window of {window} tokens, along rows of tokens")

    def _check_sums(self) -> None:
        """Gradients are sums over the rows of windows, added to what was there, and such sums are nothing else."""
        terms = {term.value for terms in self.graph.gradients.values() for term in terms}
        gradients = terms if self.nodes is self.graph.step else set()
        read = {slot.read for node in self.nodes for slot in node.slots if isinstance(slot.read, int)}
        for node in self.nodes:
            if node.op not in SUMS:
                continue
            summed = next(s for s, spec in zip(node.slots, _operands(node), strict=True) if spec.direction == "inout")
            windowed = self._rows(node) is not None
            if windowed != (summed.write in gradients):
                raise GraphError(f"{node.op} sums over rows of windows where that is no gradient, or the reverse")
            if windowed and (summed.write in read or node.attributes.get("accumulate", 1) != 1):
                raise GraphError(f"{node.op} makes a gradient that is read, or that begins anew with every call")


def _operands(node: Node) -> tuple[Operand, ...]:
    return OPERATORS[node.op].operands


def _size(shape: Sequence[Dim]) -> _Size:
    windows = [dim for dim in shape if isinstance(dim, str)]
    if len(windows) > 1:
        raise GraphError(f"a tensor of {list(shape)} grows with more than the number of windows")
    return math.prod(dim if isinstance(dim, int) else int(dim[:-1]) for dim in shape), len(windows)
