"""The guard of a capture: sees every operation that torch dispatches, writes down ours, and refuses the rest.

an operator of ours              is written down, operands as values: nothing is ever overwritten
x + y, x * y of one shape        become `add` and `mul`, as the additions of autograd do
views, copies, fresh memory      move no number: followed, not written down
anything else                    is refused, with the line of the user's file
"""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bitwitness.kernels import host, torch_ops
from bitwitness.kernels.capturing.graph import Attribute, Node, Slot, Source, Table, Term
from bitwitness.kernels.capturing.graph_rules import SUMS
from bitwitness.kernels.capturing.module_calls import ModuleCalls
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS

FRESH = frozenset({"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"})
RANDOM = frozenset(
    {"native_dropout", "bernoulli", "bernoulli_", "rand", "randn", "rand_like", "randn_like", "uniform_", "normal_"}
)
HINTS = {
    **dict.fromkeys(("mm", "addmm", "bmm", "matmul", "linear"), "nn.Linear"),
    **dict.fromkeys(("_softmax", "_scaled_dot_product_flash_attention_for_cpu"), "nn.CausalSelfAttention"),
    "embedding": "nn.Embedding",
    "gelu": "nn.GELU",
    "silu": "nn.SiLU",
    "native_layer_norm": "nn.LayerNorm",
    "_fused_rms_norm": "nn.RMSNorm",
}
"""What there is in the place of an operation of torch."""
_NO_NUMBERS = ("Cannot copy out of meta tensor", "can't convert meta device type tensor")
DATA = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero"})


class CaptureError(KernelError):
    """A module does something whose bits are not defined. The message names the line."""


@dataclass(eq=False)
class Tape:
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
        self.sources[memory_of(tensor)] = source
        self.kept.append(tensor)

    def fresh(self, tensor: torch.Tensor) -> int:
        self.values += 1
        self.bind(tensor, self.values - 1)
        return self.values - 1


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation; `phase` is constructor, forward or backward; `file` is the user's."""

    def __init__(self, phase: str, file: str, tape: Tape, calls: ModuleCalls | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase, self.file, self.tape = phase, file, tape
        self.refusal: CaptureError | None = None
        """The first one: the user's file may have caught it, and gone on with something else."""
        self._calls = calls

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
            if out and not is_whole(tensor):
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
                self._module(),
            )
        )

    def _read(self, tensor: torch.Tensor, operator: str, operand: str) -> Source:
        source = self.tape.sources.get(memory_of(tensor))
        if source is None:
            self._fail(
                f"{operator} reads {operand}, a tensor that is neither input, parameter nor a result: perhaps "
                "a buffer, or a constant"
            )
        if not is_whole(tensor):
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
        if name == "add" and (terms := self.terms(a)) and (others := self.terms(b)):
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
            Node(name, (Slot(size, sources[0]), Slot(size, sources[1]), Slot(size, None, value)), {}, self._module())
        )
        return result

    def terms(self, tensor: torch.Tensor) -> tuple[Term, ...] | None:
        """The sums over rows whose total this is, as the gradient of a parameter; None for any other value."""
        if (known := self.tape.totals.get(_place(tensor))) is not None:
            return known
        source = self.tape.sources.get(memory_of(tensor))
        if isinstance(source, int) and source in self.tape.sums:
            return (Term(source, int(tensor.storage_offset())),)
        return None

    def _stack(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Parameters one under the other: no copy, they lie so in memory."""
        tensors, axis = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
        names: list[str] = []
        for tensor in tensors:
            source = self.tape.sources.get(memory_of(tensor))
            if axis != 0 or not is_whole(tensor) or not isinstance(source, tuple):
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
            self._refuse(f"cast to {dtype}".replace("torch.", ""))
        if not tensor.is_contiguous():
            self._fail("a copy of a tensor that a view has turned is not an operator of ours")
        terms, source = self.terms(tensor), self.tape.sources.get(memory_of(tensor))
        if terms is None and (source is None or not is_whole(tensor)):
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
        known = {memory_of(tensor) for tensor in tensors}
        if not isinstance(views, (list, tuple)) or any(
            not isinstance(v, torch.Tensor) or memory_of(v) not in known for v in views
        ):
            self._refuse(name)
        whole = tensors[0]
        if any(v.dtype != whole.dtype or v.is_neg() for v in views):
            self._refuse(name)  # the same memory, read as other numbers
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
        elif name in HINTS:
            why = f"bitwitness.kernels has {HINTS[name]} for it"
        elif name.startswith("cast to"):
            why = "all numbers are float32, and token ids stay as they come"
        else:
            why = "use the modules of bitwitness.kernels.nn, + and * of tensors of one shape, and views"
        self._fail(f"torch's {name} has no defined bits: {why}")

    def _fail(self, message: str) -> NoReturn:
        error = CaptureError(f"{_on_stack(self.file, sys._getframe(1)) or self.phase}: {message}")
        self.refusal = self.refusal or error
        raise error

    def _module(self) -> str:
        """The module that the call being made belongs to."""
        if self._calls is None:
            return ""
        return self._calls.running or (self._calls.of_backward() if self.phase == "backward" else "")

    def _by_autograd(self) -> bool:
        return self.phase == "backward" and _on_stack(self.file, sys._getframe(1)) is None


def _attribute(value: Any, kind: str) -> Attribute:
    return host.round_f32(float(value)) if kind == "real" else int(value)


def memory_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _place(tensor: torch.Tensor) -> tuple[int, int, int]:
    return memory_of(tensor), int(tensor.storage_offset()), tensor.numel()


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory."""
    return tensor.storage_offset() == 0 and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _on_stack(file: str, frame: FrameType | None) -> str | None:
    """The innermost line of `file` that is being executed, with its text."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return _line(file, frame.f_lineno)
        frame = frame.f_back
    return None


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is none of the user's file, which may raise whatever there is, but a Ctrl-C."""
    return isinstance(error, KeyboardInterrupt)


def told(file: str, error: BaseException, phase: str) -> CaptureError:
    """An error of the user's code, or of torch under it, as one line that names the user's line."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = _line(file, trace.tb_lineno)
        trace = trace.tb_next
    return CaptureError(f"{line or phase}: {said_of(error)}")


def said_of(error: BaseException) -> str:
    """What an error of the user's file says, in one line."""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # a class of the user's own
        text = "it does not say why"
    if isinstance(error, SystemExit):
        return "it ends the program that reads it (sys.exit); take that out"
    if any(said in text for said in _NO_NUMBERS):
        return "forward asks for the numbers in a tensor: what a program does cannot depend on them"
    return text if isinstance(error, KernelError) else f"{type(error).__name__}: {text}"


def _line(file: str, number: int) -> str:
    linecache.checkcache(file)
    text = linecache.getline(file, number).strip()
    return f"{os.path.basename(file)}:{number}" + (f" ({text})" if text else "")
