"""torch.ops.bitwitness: what the operator table says, and the bits of kernels.program.call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bitwitness.kernels import torch_ops
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import call

from . import files

CASES = files.run_cases(files.normal, 600)


def arguments(case: files.Case) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Copies of (the operands that a torch operator is given, all operands) as torch tensors."""
    op, operands, _ = case
    tensors = [torch.from_numpy(np.array(array)) for array in operands]
    returned = torch_ops.returned(OPERATORS[op])
    names = [spec.name for spec in OPERATORS[op].operands]
    return [t.clone() for t, name in zip(tensors, names, strict=True) if name not in returned], tensors


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_same_bits_as_a_call(case: files.Case) -> None:
    torch_ops.register()
    op, _, attributes = case
    given, expected = arguments(case)
    call(op, *expected, **attributes)
    results = getattr(torch.ops.bitwitness, op)(*given, **attributes)
    results = () if results is None else results if isinstance(results, (tuple, list)) else (results,)
    returned = torch_ops.returned(OPERATORS[op])
    written, made = iter(given), iter(results)
    for spec, tensor in zip(OPERATORS[op].operands, expected, strict=True):
        found = next(made) if spec.name in returned else next(written)
        assert found.shape == tensor.shape and torch.equal(found.view(torch.uint8), tensor.view(torch.uint8)), spec.name


def test_every_operator_is_registered_and_tested() -> None:
    torch_ops.register()
    assert {case[0] for case in CASES} == set(OPERATORS)
    assert all(hasattr(torch.ops.bitwitness, name) for name in OPERATORS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_torch_finds_schema_and_shapes_right(case: files.Case) -> None:
    torch_ops.register()
    op, _, attributes = case
    given, _ = arguments(case)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.bitwitness, op).default, tuple(given), attributes, test_utils=checks)


def test_schemas() -> None:
    assert torch_ops.schema(OPERATORS["rmsnorm"]) == "rmsnorm(Tensor x, Tensor g, *, float epsilon) -> (Tensor, Tensor)"
    assert torch_ops.schema(OPERATORS["fill"]) == "fill(Tensor(a!) y, *, float value) -> ()"
    assert torch_ops.schema(OPERATORS["add"]) == "add(Tensor a, Tensor b) -> Tensor"


def test_a_wrong_shape_and_a_transposed_tensor_are_refused() -> None:
    torch_ops.register()
    with pytest.raises(KernelError, match=r"add: operand b has shape \[4\], expected \[n\] where n=3"):
        torch.ops.bitwitness.add(torch.zeros(3), torch.zeros(4))
    with pytest.raises(KernelError, match="contiguous"):
        torch.ops.bitwitness.swiglu(torch.zeros(4, 4).T)
