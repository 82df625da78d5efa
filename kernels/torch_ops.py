"""The operators as torch operators, `torch.ops.bitwitness.NAME`, made from the operator table.

    torch_ops.register()
    y, r = torch.ops.bitwitness.rmsnorm(x, gain, epsilon=1e-5)
    torch.ops.bitwitness.matmul_nt(x, w, y, accumulate=0)       writes y

Operands keep their order. An `out` operand is returned as a new tensor where the other shapes and the attributes fix
its shape; otherwise, and for every `inout` one, the caller gives the tensor that is written. Attributes are keywords.
Autograd does not see through them: gradients are operators of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from bitwitness.kernels import _native
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS, Operator
from bitwitness.kernels.program import call

NAMESPACE = "bitwitness"
DTYPES = {"F32": torch.float32, "I32": torch.int32, "I16": torch.int16}


@cache
def register() -> torch.library.Library:
    """Register every operator; further calls do nothing."""
    library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    for operator in OPERATORS.values():
        library.define(schema(operator))  # type: ignore[no-untyped-call]
        library.impl(operator.name, _implementation(operator), "CPU")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{NAMESPACE}::{operator.name}", _allocate_only(operator), lib=library)
    return library


def schema(operator: Operator) -> str:
    """The operator's schema in torch's notation."""
    names = returned(operator)
    arguments = []
    for number, spec in enumerate(operator.operands):
        if spec.name not in names:
            written = f"({chr(ord('a') + number)}!)" if spec.direction != "in" else ""
            arguments.append(f"Tensor{written} {spec.name}")
    kinds = {name: "float" if kind == "real" else "int" for name, kind in operator.attributes.items()}
    keywords = [f"{kind} {name}" for name, kind in kinds.items()]
    results = ", ".join("Tensor" for _ in names)
    return f"{operator.name}({', '.join(arguments + ['*'] * bool(keywords) + keywords)}) -> " + (
        results if len(names) == 1 else f"({results})"
    )


def returned(operator: Operator) -> tuple[str, ...]:
    """The `out` operands whose shapes follow from the rest: whose symbols all occur in operands that are given."""
    known = set(operator.attributes)
    for spec in operator.operands:
        if spec.direction != "out":
            known |= {word for expression in spec.shape for word in _words(expression)}
    return tuple(
        spec.name
        for spec in operator.operands
        if spec.direction == "out" and all(word in known for expression in spec.shape for word in _words(expression))
    )


def _words(expression: str) -> list[str]:
    """The symbols of a dimension."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in expression).split()
    return [word for word in words if not word.isdigit() and word != "ceil"]


def _all_operands(operator: Operator, given: Sequence[torch.Tensor], attributes: dict[str, Any]) -> list[torch.Tensor]:
    """The operands in declared order, the returned ones made new. Raises ShapeError."""
    names = returned(operator)
    rest = iter(given)
    found: list[torch.Tensor | None] = [None if spec.name in names else next(rest) for spec in operator.operands]
    values = [
        (0, float(attributes[n])) if k == "real" else (int(attributes[n]), 0.0) for n, k in operator.attributes.items()
    ]
    shapes = _native.operand_shapes(operator.name, [None if t is None else list(t.shape) for t in found], values)
    operands = []
    for spec, tensor, shape in zip(operator.operands, found, shapes, strict=True):
        operands.append(
            torch.empty(shape, dtype=DTYPES[spec.dtype], device=given[0].device) if tensor is None else tensor
        )
    return operands


def _results(operator: Operator, operands: Sequence[torch.Tensor]) -> Any:
    names = returned(operator)
    results = [t for t, spec in zip(operands, operator.operands, strict=True) if spec.name in names]
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def _implementation(operator: Operator) -> Callable[..., Any]:
    def run(*given: torch.Tensor, **attributes: Any) -> Any:
        if any(not tensor.is_contiguous() for tensor in given):
            raise KernelError(f"{operator.name}: every operand must be contiguous; call .contiguous() on it")
        operands = _all_operands(operator, given, attributes)
        call(operator.name, *operands, threads=torch.get_num_threads(), **attributes)
        return _results(operator, operands)

    return run


def _allocate_only(operator: Operator) -> Callable[..., Any]:
    """What torch calls to learn shapes and dtypes without computing."""

    def shapes(*given: torch.Tensor, **attributes: Any) -> Any:
        return _results(operator, _all_operands(operator, given, attributes))

    return shapes
