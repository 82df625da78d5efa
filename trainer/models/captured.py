"""The programs of a captured model (kernels/capturing/graph.py): its calls over values, placed in buffers.

Nothing of the user's file is needed, only the graph, and the graph is checked call by call as it is placed: a program
is made of what anyone may have written. A value that is changed in place keeps its buffer where nobody reads it again,
and is copied where somebody does; a gradient is summed right in its place. Which of these happens is not in the bits.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

from bitwitness.kernels.buffers import F32
from bitwitness.kernels.capturing.graph import Dim, Graph, Node, Slot, Table, size
from bitwitness.kernels.capturing.graph_rules import SUMS, GraphError
from bitwitness.kernels.dropout_rule import dropout_attributes, dropout_key
from bitwitness.kernels.host import round_f32
from bitwitness.kernels.initial import Initial
from bitwitness.kernels.ops import OPERATORS, Operand
from bitwitness.kernels.program import Buffer, DType, Program, ProgramBuilder

from ..config import RunConfig
from .layout import Layout
from .layout import Slot as Place
from .model import flat
from .products import Products, products, weights_program
from .programs import rotary_tables

_INPUTS: Mapping[str, tuple[int, ...]] = {"ids": (), "targets": (), "positions": (), "start": (), "places": (3,)}
_MOST = 1 << 40  # elements of a tensor


class NotConfigured(GraphError):
    """A captured model that is not the one that a run's configuration and seed give, whoever captured it."""


class CapturedModel:
    """A captured model as programs; what it is shared with in the trainer is `programs.StepPrograms`."""

    def __init__(self, config: RunConfig, graph: Graph) -> None:
        """Raises NotConfigured where the graph does not fit the configuration, GraphError where not itself."""
        if graph.window != config.data.window:
            raise NotConfigured(
                f"the model was captured for windows of {graph.window} tokens, not {config.data.window}"
            )
        _check_loss(config, graph)
        _check_dropout(config, graph)
        self.config, self.graph = config, graph
        self.layout = _layout(graph)
        self.gradients = _Gradients(graph, self.layout)
        self.products = _products(graph.step)
        """Every product with a matrix of parameters: name -> the parameters."""

    @cached_property
    def boundaries(self) -> Mapping[str, int]:
        """What blocks gave, in the order of forward, then their gradients in the same order."""
        widths = _widths(self.graph)
        return {name: widths[value] for value, name in self.tapped.items()}

    @cached_property
    def tapped(self) -> Mapping[int, str]:
        """Value -> name, of the outputs of blocks and of their gradients."""
        found = {b.value: f"module/{b.module}/output" for b in self.graph.boundaries}
        return found | {
            b.gradient: f"module/{b.module}/gradient" for b in self.graph.boundaries if b.gradient is not None
        }

    @property
    def vocabulary(self) -> int:
        return self.graph.vocabulary

    @property
    def apart(self) -> Mapping[str, tuple[int, ...]]:
        return {name: (layout.size,) for name, layout in self.gradients.apart.items()}

    @cached_property
    def tables(self) -> Mapping[str, F32]:
        found: dict[str, F32] = {}
        for number, t in enumerate(self.graph.tables):
            names = f"cos.{number}", f"sin.{number}"
            found |= rotary_tables(self.graph.window, t.head_width, t.theta, *names)
        return found

    def shard(self, windows: int, *, taps: bool = False) -> Program:
        return _Placing(self, self.graph.step, windows, gradients=True, taps=taps).build()

    def loss(self, windows: int) -> Program:
        return _Placing(self, self.graph.loss, windows, gradients=False).build()

    def finish(self) -> Program | None:
        """Add what was summed apart, use after use in the order of the backward pass, to the first use's sum."""
        if not self.gradients.apart:
            return None
        b = ProgramBuilder()
        grads = b.buffer("grads", (self.layout.size,), kind="inout")
        for buffer, layout in self.gradients.apart.items():
            more = b.buffer(buffer, (layout.size,), kind="input")
            for name, place in layout.slots.items():
                total = b.view(grads, self.layout.slots[name].offset, (place.size,))
                b.call("add", total, b.view(more, place.offset, (place.size,)), total)
        return b.build()

    def weights(self) -> Program | None:
        return weights_program(self.config, self.layout, self.matrices)

    @cached_property
    def matrices(self) -> dict[str, Place]:
        return {name: _span(self.layout, names) for name, names in self.products.items()}


def _widths(graph: Graph) -> dict[int, int]:
    """The elements that each value of the step has for a token."""
    written = ((s.write, s.shape) for node in graph.step for s in node.slots if isinstance(s.write, int))
    return {value: max(1, math.prod(size(shape, 1)) // graph.window) for value, shape in written}


def _check_loss(config: RunConfig, graph: Graph) -> None:
    """The losses are weighed as the configuration has it."""
    wanted = round_f32(config.loss.z_loss)
    for node in (*graph.step, *graph.loss):
        if node.op.startswith("cross_entropy") and node.attributes["z_loss"] != wanted:
            raise NotConfigured(f"the model was captured with z_loss = {node.attributes['z_loss']}, not {wanted}")


def _check_dropout(config: RunConfig, graph: Graph) -> None:
    """Every call of dropout has the key and p that seed and configuration give a layer, and every layer is called."""
    due, called = {}, set()
    for layer, p in config.dropout.items():
        key = dropout_key(config.run.seed, layer)
        attributes = dropout_attributes(p, key).items()
        due[key] = {name: round_f32(value) if isinstance(value, float) else value for name, value in attributes}
    for node in (node for node in graph.step if node.op == "dropout"):
        key = int(node.attributes["key0"]), int(node.attributes["key1"])
        if key not in due:
            raise NotConfigured("the model drops by a key that the seed gives no layer in model.dropout")
        if node.attributes != due[key]:
            raise NotConfigured(
                f"the model drops with p = {node.attributes['p']} where model.dropout gives the layer {due[key]['p']}"
            )
        called.add(key)
    if called != due.keys():
        layer = next(name for name in config.dropout if dropout_key(config.run.seed, name) not in called)
        raise NotConfigured(f"the model does not drop in layer {layer}, which model.dropout names")
    if any(node.op == "dropout" for node in graph.loss):
        raise NotConfigured("the model drops where it is evaluated")


def _layout(graph: Graph) -> Layout:
    """Parameters in the order of the model; those that are read as one stand together, at the first one's place."""
    together: dict[str, tuple[str, ...]] = {}
    for node in (*graph.step, *graph.loss):
        for slot in node.slots:
            if isinstance(slot.read, tuple) and len(slot.read) > 1:
                for name in slot.read:
                    if together.setdefault(name, slot.read) != slot.read:
                        raise GraphError(f"parameter {name} is stacked with other parameters in two ways")
    known = {p.name: p for p in graph.parameters}
    order = dict.fromkeys(name for p in graph.parameters for name in together.get(p.name, (p.name,)))
    if sum(math.prod(p.shape) for p in graph.parameters) > _MOST:
        raise GraphError("the model has more parameters than any machine holds")
    return Layout.of((name, known[name].shape, known[name].initial) for name in order)


def _span(layout: Layout, names: tuple[str, ...]) -> Place:
    try:
        return layout.span(*names)
    except ValueError as error:
        raise GraphError(str(error)) from None


class _Gradients:
    """Where each sum over rows belongs: `grads` for the first use of a parameter, buffers of their own for more."""

    def __init__(self, graph: Graph, layout: Layout) -> None:
        self.layout = layout
        self.apart: dict[str, Layout] = {}
        self.targets: dict[int, tuple[str, int, int]] = {}
        """Value -> buffer, offset and size there."""
        most = max(len(terms) for terms in graph.gradients.values())
        for use in range(1, most):
            names = [name for name in layout.slots if len(graph.gradients[name]) > use]
            self.apart[f"grads.{use}"] = Layout.of((name, layout.slots[name].shape, Initial()) for name in names)
        parts: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        for name, terms in graph.gradients.items():
            for use, term in enumerate(terms):
                parts[term.value].append((term.offset, use, name))
        for value, found in parts.items():
            found.sort()
            use, names = found[0][1], [name for _, _, name in found]
            there = self.apart[f"grads.{use}"] if use else layout
            first, at = there.slots[names[0]].offset, 0
            for offset, other, name in found:
                if offset != at or other != use or there.slots[name].offset != first + at:
                    raise GraphError(f"parameter {name} is read with others in one product, and not as often as they")
                at += there.slots[name].size
            self.targets[value] = (f"grads.{use}" if use else "grads", first, at)


def _products(nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """The parameters of every product x Wᵀ, in order, by a name for each use; `head` is what makes the logits."""
    logits = {node.slots[0].read for node in nodes if node.op.startswith("cross_entropy")}
    found: dict[str, tuple[str, ...]] = {}
    uses: Counter[tuple[str, ...]] = Counter()
    for node in nodes:
        if (names := _matrix(node)) is not None:
            head = node.slots[2].write in logits and "head" not in found
            found["head" if head else f"{names[0]}.{uses[names]}"] = names
            uses[names] += 1
    return found


def _matrix(node: Node) -> tuple[str, ...] | None:
    """The parameters of a product x Wᵀ."""
    names = node.slots[1].read if node.op == "matmul_nt" else None
    return names if isinstance(names, tuple) else None


class _Placing:
    """One program being made of the calls of a graph."""

    def __init__(
        self, model: CapturedModel, nodes: Sequence[Node], windows: int, *, gradients: bool, taps: bool = False
    ) -> None:
        self.model, self.nodes, self.windows = model, nodes, windows
        self.tapped: Mapping[int, str] = model.tapped if taps else {}
        self.b = ProgramBuilder()
        self.targets = model.gradients.targets if gradients else {}
        self.params = self.b.buffer("params", (model.layout.size,), kind="input")
        self.external: dict[str, Buffer] = {"params": self.params}
        self.values: dict[int, Buffer] = {}
        self.last = {
            slot.read: at for at, node in enumerate(nodes) for slot in node.slots if isinstance(slot.read, int)
        }
        self.products: Products = products(model.config, self.b, self.params, model.matrices)
        self.names = self._product_names()
        self.inputs: dict[tuple[object, tuple[str, ...]], str] = {}
        self.partners = self._input_gradients()
        self.skipped: set[int] = set()

    def build(self) -> Program:
        for at, node in enumerate(self.nodes):
            if at not in self.skipped and not self._is_zero(node):
                self.b.module = node.module
                self._place(at, node)
        return self.b.build()

    # -- products, which depend on the run's precision -------------------------------------------------------------

    def _product_names(self) -> dict[int, str]:
        """The name of the product that each call x Wᵀ is. Raises GraphError for one that the step does not have."""
        calls = [at for at, node in enumerate(self.nodes) if _matrix(node) is not None]
        found = _products(self.nodes)
        for name, matrix in found.items():
            if self.model.products.get(name) != matrix:
                raise GraphError(f"{matrix[0]} is multiplied with in evaluation, and not so in training")
        return dict(zip(calls, found, strict=True))

    def _forward(self, at: int, node: Node) -> None:
        x, matrix, _ = node.slots
        assert isinstance(matrix.read, tuple)
        self.inputs[x.read, matrix.read] = self.names[at]
        given = self._in(x, OPERATORS[node.op].operands[0])
        self.products.forward(self.names[at], given, self._out(at, node, 2))

    def _backward(self, at: int, node: Node) -> bool:
        """Emit the two products of a gradient as one; False where this call is not the first of such a pair."""
        dy, x, dw = node.slots
        partners = self.partners.get(dy.read, ())
        partner = next((i for i in partners if i > at), None)
        if partner is None or not isinstance(dw.write, int) or dw.write not in self.targets:
            return False
        matrix = self.nodes[partner].slots[1].read
        name = self.inputs.get((x.read, matrix)) if isinstance(matrix, tuple) else None
        if name is None or dict(node.attributes) != {"accumulate": 1, "segment": self.model.graph.window}:
            return False
        specs = OPERATORS[node.op].operands
        left, right = self._in(dy, specs[0]), self._in(x, specs[1])
        dx = self._out(partner, self.nodes[partner], 2)
        self.products.backward(name, left, right, dx, self._target(dw))
        self.skipped.add(partner)
        return True

    def _input_gradients(self) -> dict[object, list[int]]:
        """The products dy·W, each the partner of a sum dyᵀ·x: which calls make them, by the value that dy is."""
        found: dict[object, list[int]] = defaultdict(list)
        for at, node in enumerate(self.nodes):
            weighed = node.op == "matmul_nn" and isinstance(node.slots[1].read, tuple)
            if weighed and node.attributes["accumulate"] == 0:
                found[node.slots[0].read].append(at)
        return found

    # -- calls -----------------------------------------------------------------------------------------------------

    def _is_zero(self, node: Node) -> bool:
        """Whether a call only fills what a gradient is summed into: the buffer of the gradient holds its +0 or more."""
        value = node.slots[0].write
        return (
            node.op == "fill"
            and node.attributes["value"] == 0.0
            and math.copysign(1.0, node.attributes["value"]) == 1.0
            and isinstance(value, int)
            and value in self.last
            and any(s.read == value and s.write in self.targets for s in self.nodes[self.last[value]].slots)
        )

    def _place(self, at: int, node: Node) -> None:
        if _matrix(node) is not None and node.attributes["accumulate"] == 0:
            return self._forward(at, node)
        if node.op == "matmul_tn" and self._backward(at, node):
            return None
        operands = []
        for position, (slot, spec) in enumerate(zip(node.slots, OPERATORS[node.op].operands, strict=True)):
            if spec.direction == "in":
                operands.append(self._in(slot, spec))
            elif spec.direction == "out" or slot.read is None:
                operands.append(self._out(at, node, position))
            else:
                operands.append(self._inout(at, node, position))
        self.b.call(node.op, *operands, **node.attributes)
        return None

    def _in(self, slot: Slot, spec: Operand) -> Buffer:
        shape = self._size(slot.shape)
        if isinstance(slot.read, tuple):
            place = _span(self.model.layout, slot.read)
            return self._seen(self.params, place.offset, shape, place.size, spec)
        if isinstance(slot.read, str):
            buffer = self._input(slot.read)
            return self._seen(buffer, 0, shape, buffer.size, spec)
        if slot.read is None or slot.read not in self.values:
            raise GraphError(f"operand {spec.name} is read before it is written")
        buffer = self.values[slot.read]
        return self._seen(buffer, 0, shape, buffer.size, spec)

    def _out(self, at: int, node: Node, position: int) -> Buffer:
        """A new value: where an operand that nobody reads again may be the very same memory, there."""
        slot, spec = node.slots[position], OPERATORS[node.op].operands[position]
        shape = self._size(slot.shape)
        if isinstance(slot.write, str):
            if slot.write in self.external:
                raise GraphError(f"output {slot.write} is written twice")
            self.external[slot.write] = self.b.buffer(slot.write, shape, kind="output")
            return self.external[slot.write]
        assert slot.write is not None
        if slot.write in self.tapped:
            return self._tapped(slot.write, shape)
        names: dict[object, set[str]] = defaultdict(set)
        for other, named in zip(node.slots, OPERATORS[node.op].operands, strict=True):
            names[other.read].add(named.name)
        for read, roles in names.items():
            if isinstance(read, int) and roles <= set(spec.may_be) and self.last[read] == at and read in self.values:
                buffer = self.values[read]
                if buffer.kind == "temp" and buffer.size == math.prod(shape) and buffer.dtype == spec.dtype:
                    self.values[slot.write] = buffer
                    return self.b.view(buffer, 0, shape)
        self.values[slot.write] = self.b.buffer(f"v{slot.write}", shape, _dtype(spec))
        return self.values[slot.write]

    def _inout(self, at: int, node: Node, position: int) -> Buffer:
        """A value that is changed: the gradient of a parameter in its place, any other in a buffer of its own."""
        slot, spec = node.slots[position], OPERATORS[node.op].operands[position]
        if node.op in SUMS and isinstance(slot.write, int) and slot.write in self.targets:
            return self._target(slot)
        assert isinstance(slot.write, int)
        now = self._in(slot, spec)
        if slot.write in self.tapped:
            kept = self._tapped(slot.write, now.shape)
            self.b.call("copy", flat(self.b, now), flat(self.b, kept))
            return kept
        if now.kind == "temp" and isinstance(slot.read, int) and self.last[slot.read] == at:
            self.values[slot.write] = self.values[slot.read]
            return now
        self.values[slot.write] = self.b.buffer(f"v{slot.write}", now.shape, _dtype(spec))
        self.b.call("copy", flat(self.b, now), flat(self.b, self.values[slot.write]))
        return self.values[slot.write]

    def _tapped(self, value: int, shape: tuple[int, ...]) -> Buffer:
        """A buffer that is left to the caller: nothing overwrites it."""
        name = self.tapped[value]
        rows = self.windows * self.model.graph.window
        self.values[value] = self.b.buffer(name, (rows, self.model.boundaries[name]), kind="output")
        return self.b.view(self.values[value], 0, shape)

    def _target(self, slot: Slot) -> Buffer:
        assert isinstance(slot.write, int)
        name, offset, elements = self.targets[slot.write]
        if name not in self.external:
            layout = self.model.gradients.apart[name] if name != "grads" else self.model.layout
            self.external[name] = self.b.buffer(name, (layout.size,), kind="inout")
        shape = self._size(slot.shape)
        if math.prod(shape) != elements:
            raise GraphError("a gradient does not have the size of its parameters")
        zero = slot.read
        if not isinstance(zero, int) or zero in self.values:
            raise GraphError("the sum of a gradient does not begin at 0")
        return self.b.view(self.external[name], offset, shape)

    def _input(self, name: str) -> Buffer:
        if name not in self.external:
            if name in _INPUTS:
                rows = self.windows * self.model.graph.window
                self.external[name] = self.b.buffer(name, (rows, *_INPUTS[name]), dtype="I32", kind="input")
            else:
                table: Table = self.model.graph.tables[int(name.partition(".")[2])]
                shape = (self.model.graph.window, table.head_width // 2)
                self.external[name] = self.b.buffer(name, shape, kind="input")
        return self.external[name]

    def _seen(self, buffer: Buffer, offset: int, shape: tuple[int, ...], elements: int, spec: Operand) -> Buffer:
        """A buffer, or a part of one, with a shape of as many elements."""
        if math.prod(shape) != elements or buffer.dtype != spec.dtype:
            raise GraphError(f"operand {spec.name} is {list(shape)} {spec.dtype}, which its value is not")
        return self.b.view(buffer, offset, shape)

    def _size(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        extents = size(shape, self.windows)
        if math.prod(extents) > _MOST:
            raise GraphError(f"a tensor of {list(extents)} is larger than any machine holds")
        return extents


def _dtype(spec: Operand) -> DType:
    return spec.dtype  # type: ignore[return-value]
