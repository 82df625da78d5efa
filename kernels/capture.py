"""Capture: a module's forward pass, and its gradient through autograd, as the operator calls of a step.

The module is run on tensors without memory. Every operation that torch dispatches on the way passes by here:

    an operator of ours              is written down, operands as values: nothing is ever overwritten
    x + y, x * y of one shape        become `add` and `mul`, as the additions of autograd do
    views, copies, fresh memory      move no number: followed, not written down
    anything else                    is refused, with the line of the user's file

What comes out is data (graph.py): it is stored, committed and replayed without the user's file.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bitwitness.kernels import host, nn, torch_ops
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.graph import (
    Attribute,
    Graph,
    Node,
    Parameter,
    Recording,
    Slot,
    Source,
    Table,
    Term,
    general,
)
from bitwitness.kernels.graph_rules import SUMS
from bitwitness.kernels.nn.declared import rules
from bitwitness.kernels.ops import OPERATORS

FRESH = frozenset({"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"})
RANDOM = frozenset(
    {"native_dropout", "bernoulli", "bernoulli_", "rand", "randn", "rand_like", "randn_like", "uniform_", "normal_"}
)
DATA = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero"})


class CaptureError(KernelError):
    """A module does something whose bits are not defined. The message names the line."""


@dataclass(eq=False)
class _Tape:
    """What was recorded so far. Memory is known by its address; `kept` keeps each alive, so that none comes back."""

    sources: dict[int, Source] = field(default_factory=dict)
    kept: list[torch.Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    totals: dict[tuple[int, int, int], tuple[Term, ...]] = field(default_factory=dict)
    """Gradients of parameters that are sums of several terms: by address, offset and size."""
    sums: set[int] = field(default_factory=set)
    """The values that a call summed over rows."""
    values: int = 0

    def bind(self, tensor: torch.Tensor, source: Source) -> None:
        self.sources[_memory(tensor)] = source
        self.kept.append(tensor)

    def fresh(self, tensor: torch.Tensor) -> int:
        self.values += 1
        self.bind(tensor, self.values - 1)
        return self.values - 1


class _Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation; `phase` is constructor, forward or backward; `file` is the user's."""

    def __init__(self, phase: str, file: str, tape: _Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase, self.file, self.tape = phase, file, tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        namespace, _, name = func._schema.name.partition("::")
        if namespace == torch_ops.NAMESPACE:
            result = func(*args, **kwargs)
            self._operator(name, args, kwargs, result)
            return result
        if name in FRESH or (name == "detach" and self.phase == "constructor"):
            return func(*args, **kwargs)
        if self.phase == "constructor":
            self._refuse(name)
        if name in ("add", "mul", "add_") and (name != "add_" or self._by_autograd()):
            return self._pointwise(func, name, args, kwargs)
        if name == "cat":
            return self._stack(func, args, kwargs)
        if name in ("clone", "_to_copy"):
            return self._clone(func, name, args, kwargs)
        return self._view(func, name, args, kwargs)

    def _operator(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Write down a call of one of our operators."""
        operator = OPERATORS[name]
        made = torch_ops.returned(operator)
        results = iter([result] if isinstance(result, torch.Tensor) else result or ())
        given = iter(args)
        slots = []
        for spec in operator.operands:
            tensor = next(results) if spec.name in made else next(given)
            read = spec.direction == "in" or (
                spec.direction == "inout" and (not spec.read_where or bool(kwargs[spec.read_where]))
            )
            source = self._read(tensor, name, spec.name) if read else None
            slots.append((tensor, spec.direction != "in", source))
        if any(not tensor.is_contiguous() for tensor, _, _ in slots):
            self._fail(f"{name} got a tensor that a view has turned; operators take rows as they lie")
        for tensor, out, _ in slots:
            if out and not _whole(tensor):
                self._fail(f"{name} writes a part of a tensor")
        values = [self.tape.fresh(tensor) if out else None for tensor, out, _ in slots]
        for value, spec in zip(values, operator.operands, strict=True):
            if value is not None and spec.direction == "inout" and name in SUMS:
                self.tape.sums.add(value)
        self.tape.nodes.append(
            Node(
                name,
                tuple(Slot(tuple(t.shape), source, value) for (t, _, source), value in zip(slots, values, strict=True)),
                {key: _attribute(kwargs[key], kind) for key, kind in operator.attributes.items()},
            )
        )

    def _read(self, tensor: torch.Tensor, operator: str, operand: str) -> Source:
        source = self.tape.sources.get(_memory(tensor))
        if source is None:
            self._fail(f"{operator} reads {operand}, a tensor that is neither input, parameter nor a result")
        if not _whole(tensor):
            self._fail(f"{operator} reads a part of a tensor; operators take whole ones")
        return source

    def _pointwise(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """x + y and x * y, and the additions of autograd."""
        name = name.rstrip("_")
        a, b = args
        for other in (a, b):
            if not isinstance(other, torch.Tensor) or other.dim() == 0:
                self._fail(f"a number in {name} is not an operator of ours; build the factor into a module")
        if kwargs.get("alpha", 1) != 1 or a.shape != b.shape or not a.dtype == b.dtype == torch.float32:
            self._fail(f"{name} takes two float32 tensors of one shape, not {list(a.shape)} and {list(b.shape)}")
        if not (a.is_contiguous() and b.is_contiguous()):
            self._fail(f"{name} got a tensor that a view has turned; operators take rows as they lie")
        if name == "add" and (terms := self._terms(a)) and (others := self._terms(b)):
            # Two terms of one parameter's gradient: each is summed on its own, and they meet once in a shard.
            result = func(*args, **kwargs)
            self.tape.kept.append(result)
            self.tape.totals[_place(result)] = (*terms, *others)
            return result
        sources = self._read(a, name, "a"), self._read(b, name, "b")
        result = func(*args, **kwargs)
        size = (a.numel(),)
        value = self.tape.fresh(result)
        self.tape.nodes.append(
            Node(name, (Slot(size, sources[0]), Slot(size, sources[1]), Slot(size, None, value)), {})
        )
        return result

    def _terms(self, tensor: torch.Tensor) -> tuple[Term, ...] | None:
        """The sums over rows whose total this is, as the gradient of a parameter; None for any other value."""
        if (known := self.tape.totals.get(_place(tensor))) is not None:
            return known
        source = self.tape.sources.get(_memory(tensor))
        if isinstance(source, int) and source in self.tape.sums:
            return (Term(source, int(tensor.storage_offset())),)
        return None

    def _stack(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Parameters one under the other: no copy, they lie so in memory."""
        tensors, axis = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
        names: list[str] = []
        for tensor in tensors:
            source = self.tape.sources.get(_memory(tensor))
            if axis != 0 or not _whole(tensor) or not isinstance(source, tuple):
                self._refuse("cat")
            names.extend(source)
        result = func(*args, **kwargs)
        self.tape.bind(result, tuple(names))
        return result

    def _clone(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A copy is the same value: nothing is overwritten here."""
        tensor = args[0]
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype != tensor.dtype:
            self._refuse(f"{name} to {dtype}")
        if not tensor.is_contiguous():
            self._fail("a copy of a tensor that a view has turned is not an operator of ours")
        terms, source = self._terms(tensor), self.tape.sources.get(_memory(tensor))
        if terms is None and (source is None or not _whole(tensor)):
            self._refuse(name)
        result = func(*args, **kwargs)
        if terms is not None:
            self.tape.kept.append(result)
            self.tape.totals[_place(result)] = terms
        elif source is not None:
            self.tape.bind(result, source)
        return result

    def _view(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Other shapes of the same memory pass; whatever makes or changes numbers is refused."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if not tensors or any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
            self._refuse(name)
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            self._refuse(name)
        views = [result] if isinstance(result, torch.Tensor) else result
        known = {_memory(tensor) for tensor in tensors}
        if not isinstance(views, (list, tuple)) or any(
            not isinstance(v, torch.Tensor) or _memory(v) not in known for v in views
        ):
            self._refuse(name)
        whole = tensors[0]
        if self.phase == "forward" and whole.requires_grad and any(v.numel() != whole.numel() for v in views):
            self._fail(f"{name} takes a part of a tensor, or repeats it: that has no gradient here")
        return result

    def _refuse(self, name: str) -> NoReturn:
        if name in DATA:
            why = "what a program does cannot depend on the numbers in it"
        elif self.phase == "constructor":
            why = "a constructor only declares; parameters begin as modules of bitwitness.kernels.nn say"
        elif name in RANDOM:
            why = "random numbers come from nn.Dropout alone"
        elif name.endswith("_"):
            why = "nothing is changed in place"
        elif self.phase == "backward":
            why = "the gradient of forward needs it"
        else:
            why = "use the modules of bitwitness.kernels.nn, + and * of tensors of one shape, and views"
        self._fail(f"torch's {name} has no defined bits: {why}")

    def _fail(self, message: str) -> NoReturn:
        raise CaptureError(f"{_on_stack(self.file, sys._getframe(1)) or self.phase}: {message}")

    def _by_autograd(self) -> bool:
        return self.phase == "backward" and _on_stack(self.file, sys._getframe(1)) is None


def file_of(model: type[torch.nn.Module]) -> str:
    """The file that defines a class of modules."""
    return inspect.getsourcefile(model) or model.__module__


@contextmanager
def declaring(file: str) -> Iterator[None]:
    """Inside, modules are built without memory, and building them may compute nothing. Raises CaptureError."""
    try:
        with torch.device("meta"), _Guard("constructor", file, _Tape()):
            yield
    except KernelError:
        raise
    except Exception as error:
        raise _told(file, error, "constructor") from None


@dataclass(frozen=True, eq=False)
class _Rows(nn.Tokens):
    """Rows of a capture: its tables are inputs of the program."""

    tape: _Tape = field(default_factory=_Tape)

    def rotary(self, head_width: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        table = Table(head_width, theta)
        if table not in self.tape.tables:
            self.tape.tables.append(table)
        number = self.tape.tables.index(table)
        cos, sin = (torch.empty((self.window, head_width // 2), device="meta") for _ in range(2))
        self.tape.bind(cos, f"cos.{number}")
        self.tape.bind(sin, f"sin.{number}")
        return cos, sin


def capture(model: torch.nn.Module, *, window: int, seed: int, z_loss: float, file: str | None = None) -> Graph:
    """The step and the loss of a model that was built inside `declaring`, in windows of `window` tokens.

    `model(ids)` takes token ids, int32 [B, window], and returns logits, float32 [B, window, V]; the loss is the
    cross-entropy of the next token. It is run for 2 and for 3 windows, and must do the same. Raises CaptureError.
    """
    named = file or file_of(type(model))
    runs = [
        [_record(model, windows, window, seed, z_loss, training, named) for windows in (2, 3)]
        for training in (True, False)
    ]
    step, loss = (general(few, more) for few, more in runs)
    tables = max((recording.tables for pair in runs for recording in pair), key=len)
    vocabulary = _vocabulary(step)
    parameters = tuple(Parameter(name, tuple(p.shape), initial) for name, p, initial in rules(model))
    gradients = runs[0][0].gradients
    return Graph(window, vocabulary, parameters, tables, step, dict(sorted(gradients.items())), loss)


def _vocabulary(nodes: tuple[Node, ...]) -> int:
    """The token ids that both the embedding and the logits have."""
    logits = [node.slots[0].shape[1] for node in nodes if node.op == "cross_entropy"]
    tables = [node.slots[1].shape[0] for node in nodes if node.op == "embed" and node.slots[0].read == "ids"]
    return min(extent for extent in [*logits, *tables] if isinstance(extent, int))


def _record(
    model: torch.nn.Module, windows: int, window: int, seed: int, z_loss: float, training: bool, file: str
) -> Recording:
    tape, rows = _Tape(), windows * window
    parameters = {}
    for name, parameter, _ in rules(model):
        tape.bind(parameter, (name,))
        parameters[name] = parameter

    def given(name: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=torch.int32, device="meta")
        tape.bind(tensor, name)
        return tensor

    ids, targets = given("ids", rows), given("targets", rows)
    places = given("places", rows, 3)
    tokens = _Rows(window, given("positions", rows), given("start", rows), places, seed, tape)
    guard = _Guard("forward", file, tape)
    nn.named(model).train(training)
    gradients: dict[str, tuple[Term, ...]] = {}
    with nn.tokens(tokens), torch.set_grad_enabled(training), guard:
        try:
            logits = model(ids.view(windows, window))
            seeds = _loss(tape, _checked(logits, rows), targets, z_loss, training)
            if training:
                guard.phase = "backward"
                found = torch.autograd.grad(logits, list(parameters.values()), seeds, allow_unused=True)
                gradients = {n: _gradient(guard, n, g) for n, g in zip(parameters, found, strict=True)}
        except KernelError:
            raise
        except Exception as error:
            raise _told(file, error, guard.phase) from None
    return Recording(tuple(tape.nodes), gradients, tuple(tape.tables), windows)


def _checked(logits: Any, rows: int) -> torch.Tensor:
    if (
        not isinstance(logits, torch.Tensor)
        or logits.dtype != torch.float32
        or logits.dim() < 2
        or logits.numel() != rows * logits.shape[-1]
    ):
        raise CaptureError("forward(ids [B, T]) must return logits [B, T, V], float32, one row for each token")
    return logits


def _loss(tape: _Tape, logits: torch.Tensor, targets: torch.Tensor, z_loss: float, training: bool) -> torch.Tensor:
    """Emit the losses of all tokens; return the gradient of their sum towards the logits."""
    flat = logits.detach().reshape(-1, logits.shape[-1])
    if training:
        flat = flat.clone()
        loss, nll = torch.ops.bitwitness.cross_entropy(flat, targets, z_loss=z_loss)
    else:
        loss, nll = torch.ops.bitwitness.cross_entropy_loss(flat, targets, z_loss=z_loss)
    node = tape.nodes[-1]
    named = {tape.sources[_memory(loss)]: "loss", tape.sources[_memory(nll)]: "nll"}
    slots = tuple(
        Slot(s.shape, s.read, s.write if s.write is None else named.get(s.write, s.write)) for s in node.slots
    )
    tape.nodes[-1] = Node(node.op, slots, node.attributes)
    return flat.view(logits.shape)


def _gradient(guard: _Guard, name: str, gradient: torch.Tensor | None) -> tuple[Term, ...]:
    """The terms of a parameter's gradient, in the order in which the backward pass makes them."""
    if gradient is None:
        raise CaptureError(f"parameter {name} is not used by forward; leave it out of the model")
    terms = guard._terms(gradient)
    if terms is None:
        raise CaptureError(
            f"parameter {name} is used otherwise than as the weight of a module; it has no gradient here"
        )
    return tuple(sorted(terms, key=lambda term: (term.value, term.offset)))


def _attribute(value: Any, kind: str) -> Attribute:
    return host.round_f32(float(value)) if kind == "real" else int(value)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _place(tensor: torch.Tensor) -> tuple[int, int, int]:
    return _memory(tensor), int(tensor.storage_offset()), tensor.numel()


def _whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory."""
    return tensor.storage_offset() == 0 and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _on_stack(file: str, frame: FrameType | None) -> str | None:
    """The innermost line of `file` that is being executed, with its text."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return _line(file, frame.f_lineno)
        frame = frame.f_back
    return None


def _told(file: str, error: Exception, phase: str) -> CaptureError:
    """An error of the user's code, or of torch under it, as one line that names the user's line."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = _line(file, trace.tb_lineno)
        trace = trace.tb_next
    text = str(error).strip().partition("\n")[0]
    return CaptureError(f"{line or phase}: {type(error).__name__}: {text}")


def _line(file: str, number: int) -> str:
    text = linecache.getline(file, number).strip()
    return f"{os.path.basename(file)}:{number}" + (f" ({text})" if text else "")
