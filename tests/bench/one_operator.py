"""One operator as a contestant: a program of a single call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import Buffer, Executor, ProgramBuilder

Attributes = dict[str, int | float]
Case = tuple[list[torch.Tensor], Attributes, Callable[[], object]]
"""Our operands and attributes, and PyTorch's call."""


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def int16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int16)


def leaf(x: torch.Tensor) -> torch.Tensor:
    """A copy that autograd differentiates by."""
    return x.clone().requires_grad_()


def executor(op: str, operands: list[torch.Tensor], attributes: Attributes, threads: int) -> Callable[[], None]:
    """Run the operator once per call; an operand that stands there twice is one buffer."""
    b = ProgramBuilder()
    buffers: dict[int, Buffer] = {}
    bound = {}
    for spec, array in zip(OPERATORS[op].operands, operands, strict=True):
        if id(array) in buffers:
            continue
        directions = {s.direction for s, a in zip(OPERATORS[op].operands, operands, strict=True) if a is array}
        kind: Any = {"in": "input", "out": "output"}.get(directions.pop() if len(directions) == 1 else "", "inout")
        dtype: Any = spec.dtype
        buffers[id(array)] = b.buffer(spec.name, tuple(array.shape), dtype, kind)
        bound[spec.name] = array
    b.call(op, *(buffers[id(array)] for array in operands), **attributes)
    executor = Executor(b.build(), threads)
    return lambda: executor.run(bound)
