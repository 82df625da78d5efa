"""Capture: a module's forward pass, and its gradient through autograd, as the operator calls of a step.

The module is run on tensors without memory, and every operation that torch dispatches on the way passes by the guard
(capture_guard.py). What comes out is data (graph.py): it is stored, committed and replayed without the user's file.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from bitwitness.kernels import nn
from bitwitness.kernels.capturing.capture_guard import (
    CaptureError,
    Guard,
    Tape,
    is_interrupt,
    is_whole,
    memory_of,
    told,
)
from bitwitness.kernels.capturing.capture_state import unchanged
from bitwitness.kernels.capturing.graph import Boundary, Graph, Node, Parameter, Recording, Slot, Table, Term, general
from bitwitness.kernels.capturing.graph_rules import MOST_BOUNDARIES, is_name
from bitwitness.kernels.capturing.module_calls import ModuleCalls, Output
from bitwitness.kernels.nn.declared import rules

__all__ = ["CaptureError", "capture", "declaring", "file_of"]


def file_of(model: type[torch.nn.Module]) -> str:
    """The file that defines a class of modules."""
    return inspect.getsourcefile(model) or model.__module__


@contextmanager
def declaring(file: str) -> Iterator[None]:
    """Inside, modules are built without memory, and building them may compute nothing. Raises CaptureError."""
    try:
        with torch.device("meta"), Guard("constructor", file, Tape()):
            yield
    except CaptureError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise told(file, error, "constructor") from None


@dataclass(frozen=True, eq=False)
class _Rows(nn.Tokens):
    """Rows of a capture: its tables are inputs of the program."""

    tape: Tape = field(default_factory=Tape)

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
    first = runs[0][0]
    gradients = dict(sorted(first.gradients.items()))
    return Graph(window, vocabulary, parameters, tables, step, gradients, loss, first.boundaries)


def _vocabulary(nodes: tuple[Node, ...]) -> int:
    """The token ids that both the embedding and the logits have."""
    logits = [node.slots[0].shape[1] for node in nodes if node.op == "cross_entropy"]
    tables = [node.slots[1].shape[0] for node in nodes if node.op == "embed" and node.slots[0].read == "ids"]
    return min(extent for extent in [*logits, *tables] if isinstance(extent, int))


def _record(
    model: torch.nn.Module, windows: int, window: int, seed: int, z_loss: float, training: bool, file: str
) -> Recording:
    tape, rows = Tape(), windows * window
    parameters = _bound(model, tape)

    def given(name: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=torch.int32, device="meta")
        tape.bind(tensor, name)
        return tensor

    ids, targets = given("ids", rows), given("targets", rows)
    places = given("places", rows, 3)
    tokens = _Rows(window, given("positions", rows), given("start", rows), places, seed, tape)
    calls = ModuleCalls(model)
    guard = Guard("forward", file, tape, calls)
    nn.named(model).train(training)
    gradients: dict[str, tuple[Term, ...]] = {}
    with unchanged(model), nn.tokens(tokens), torch.set_grad_enabled(training), calls.watched(), guard:
        try:
            logits = model(ids.view(windows, window))
            seeds = _loss(tape, _checked(logits, rows, training), targets, z_loss, training)
            if training:
                guard.phase = "backward"
                found = torch.autograd.grad(logits, list(parameters.values()), seeds, allow_unused=True)
                gradients = {n: _gradient(guard, n, g) for n, g in zip(parameters, found, strict=True)}
        except CaptureError as error:
            raise guard.refusal or error from None
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise guard.refusal or told(file, error, guard.phase) from None
    if guard.refusal is not None:
        raise guard.refusal
    if training:
        _check_sums(tape, gradients)
    boundaries = tuple(_boundaries(calls.outputs, tape, rows)) if training else ()
    return Recording(tuple(tape.nodes), gradients, tuple(tape.tables), windows, boundaries)


def _bound(model: torch.nn.Module, tape: Tape) -> dict[str, torch.nn.Parameter]:
    """The parameters by name, each with memory of its own that can train."""
    parameters: dict[str, torch.nn.Parameter] = {}
    places: dict[int, str] = {}
    for name, module in model.named_modules():
        if name and not is_name(name):
            raise CaptureError(f"module {name[:80]!a}: names are made of A-Z a-z 0-9 _ - and dots, at most 150 of them")
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"module {name or type(model).__name__} was compiled by torch.jit; use the module itself"
            )
    for name, parameter, _ in rules(model):
        if not is_name(name):
            raise CaptureError(
                f"parameter {name[:80]!a}: names are made of A-Z a-z 0-9 _ - and dots, at most 150 of them"
            )
        if parameter.dtype != torch.float32:
            raise CaptureError(f"parameter {name} is {parameter.dtype}; all of a model is float32")
        if not parameter.requires_grad:
            raise CaptureError(f"parameter {name} does not require a gradient; optimizer.frozen keeps it as it begins")
        other = places.setdefault(memory_of(parameter), name)
        if other != name:
            raise CaptureError(
                f"parameters {other} and {name} share memory and are two; tie modules by giving both one Parameter, "
                "as in self.head.weight = self.tokens.weight"
            )
        tape.bind(parameter, (name,))
        parameters[name] = parameter
    return parameters


def _boundaries(outputs: list[Output], tape: Tape, rows: int) -> Iterator[Boundary]:
    """What blocks gave, in the order in which the step makes it: values with a row for each token, each told once.

    Where two blocks gave the same value, the outer one names it. From the outermost on, as many levels of blocks are
    taken as make no more than are kept, or else the first ones.
    """
    logits = {slot.read for node in tape.nodes if node.op == "cross_entropy" for slot in node.slots[:1]}
    found: dict[int, Output] = {}
    for output in outputs:
        tensor, value = output.tensor, tape.sources.get(memory_of(output.tensor))
        if not isinstance(value, int) or value in logits or not is_whole(tensor) or tensor.numel() % rows:
            continue
        if value not in found or output.depth < found[value].depth:
            found[value] = output
    depth = max((output.depth for output in found.values()), default=0)
    while depth and sum(output.depth <= depth for output in found.values()) > MOST_BOUNDARIES:
        depth -= 1
    chosen = [(value, output) for value, output in sorted(found.items()) if output.depth <= depth][:MOST_BOUNDARIES]
    gradients: dict[int, int] = {}
    named = {value for value, _ in chosen}
    for value, output in sorted(chosen, key=lambda pair: pair[1].depth):
        if output.gradient is None or not is_whole(output.gradient):
            continue
        source = tape.sources.get(memory_of(output.gradient))
        if isinstance(source, int) and source not in named:
            named.add(source)
            gradients[value] = source
    for value, output in chosen:
        yield Boundary(output.module, value, gradients.get(value))


def _checked(logits: Any, rows: int, training: bool) -> torch.Tensor:
    if (
        not isinstance(logits, torch.Tensor)
        or logits.dtype != torch.float32
        or logits.dim() < 2
        or logits.numel() != rows * logits.shape[-1]
    ):
        raise CaptureError("forward(ids [B, T]) must return logits [B, T, V], float32, one row for each token")
    if not logits.is_contiguous():
        raise CaptureError("forward returns logits that a view has turned; they must lie as [B, T, V]")
    if training and not logits.requires_grad:
        raise CaptureError("no parameter has a gradient: forward runs under torch.no_grad, or detaches its logits")
    return logits


def _loss(tape: Tape, logits: torch.Tensor, targets: torch.Tensor, z_loss: float, training: bool) -> torch.Tensor:
    """Emit the losses of all tokens; return the gradient of their sum towards the logits."""
    flat = logits.detach().reshape(-1, logits.shape[-1])
    if training:
        flat = flat.clone()
        loss, nll = torch.ops.bitwitness.cross_entropy(flat, targets, z_loss=z_loss)
    else:
        loss, nll = torch.ops.bitwitness.cross_entropy_loss(flat, targets, z_loss=z_loss)
    node = tape.nodes[-1]
    named = {tape.sources[memory_of(loss)]: "loss", tape.sources[memory_of(nll)]: "nll"}
    slots = tuple(
        Slot(s.shape, s.read, s.write if s.write is None else named.get(s.write, s.write)) for s in node.slots
    )
    tape.nodes[-1] = Node(node.op, slots, node.attributes, node.module)
    return flat.view(logits.shape)


def _check_sums(tape: Tape, gradients: Mapping[str, tuple[Term, ...]]) -> None:
    """Every sum over rows is a part of a gradient."""
    known = {term.value for terms in gradients.values() for term in terms}
    for node in tape.nodes:
        if any(slot.write in tape.sums and slot.write not in known for slot in node.slots):
            raise CaptureError(
                f"{node.module or 'forward'} makes the gradient of a parameter that is none of the model's: modules "
                "are used as they are, not as copies"
            )


def _gradient(guard: Guard, name: str, gradient: torch.Tensor | None) -> tuple[Term, ...]:
    """The terms of a parameter's gradient, in the order in which the backward pass makes them."""
    if gradient is None:
        raise CaptureError(
            f"parameter {name} is not used by forward, or only under torch.no_grad or detach; leave it out of the model"
        )
    terms = guard.terms(gradient)
    if terms is None:
        raise CaptureError(
            f"parameter {name} is used otherwise than as the weight of a module; it has no gradient here"
        )
    if len(set(terms)) < len(terms):
        raise CaptureError(f"the gradient of parameter {name} is added to itself; a hook must not change it")
    return tuple(sorted(terms, key=lambda term: (term.value, term.offset)))
