"""The exact definition of every operator, in slow plain Python: docs/arithmetic.md, executable.

Numbers are binary32 bit patterns in Python integers, computed in exact integer arithmetic (`binary32`), so
this package shares nothing with the C++ operators that it judges: no float unit, no compiler.

    binary32     add, sub, mul, div, sqrt, fma: one rounding each
    sums         the block sum of contractions, the row sum
    functions    exp, log, sin2pi, cos2pi, sigmoid, erf
    philox       random words, uniform, normal, truncated normal, permutation
    elementwise, matmul, bfp, norm, attention, loss    the operators
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from bitwitness.kernels import host
from bitwitness.kernels.errors import KernelError, ShapeError
from bitwitness.kernels.reference import attention as _attention
from bitwitness.kernels.reference import bfp, elementwise, loss, matmul, norm

OPERATORS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "fill": elementwise.fill,
        "copy": elementwise.copy,
        "add": elementwise.add,
        "mul": elementwise.mul,
        "add_bias": elementwise.add_bias,
        "bias_backward": elementwise.bias_backward,
        "matmul_nn": matmul.matmul_nn,
        "matmul_nt": matmul.matmul_nt,
        "matmul_tn": matmul.matmul_tn,
        "bfp_exponents": bfp.bfp_exponents,
        "bfp_balance": bfp.bfp_balance,
        "bfp_rows": bfp.bfp_rows,
        "bfp_columns": bfp.bfp_columns,
        "matmul_bfp": bfp.matmul_bfp,
        "embed": matmul.embed,
        "embed_backward": matmul.embed_backward,
        "rmsnorm": norm.rmsnorm,
        "add_rmsnorm": norm.add_rmsnorm,
        "rmsnorm_backward": norm.rmsnorm_backward,
        "layernorm": norm.layernorm,
        "layernorm_backward": norm.layernorm_backward,
        "rope": norm.rope,
        "attention": _attention.attention,
        "attention_backward": _attention.attention_backward,
        "swiglu": elementwise.swiglu,
        "swiglu_backward": elementwise.swiglu_backward,
        "silu": elementwise.silu,
        "silu_backward": elementwise.silu_backward,
        "gelu": elementwise.gelu,
        "gelu_backward": elementwise.gelu_backward,
        "gelu_tanh": elementwise.gelu_tanh,
        "gelu_tanh_backward": elementwise.gelu_tanh_backward,
        "dropout": elementwise.dropout,
        "cross_entropy": loss.cross_entropy,
        "cross_entropy_loss": loss.cross_entropy_loss,
        "sum_squares": elementwise.sum_squares,
        "adamw": elementwise.adamw,
    }
)
"""Operator name -> definition, operands and attributes as in docs/arithmetic.md."""

FLOAT_ATTRIBUTES = frozenset({"value", "epsilon", "scale", "z_loss", "p"})


def call(name: str, *arrays: "np.ndarray[Any, Any]", **attributes: float) -> None:
    """Run one operator on float32, int32 and int16 arrays, outputs in place (the face of `program.call`).

    An array given twice is one operand in two roles. Float attributes are rounded to binary32.
    Raises KernelError for an unknown operator, ShapeError for an array of another dtype.
    """
    if name not in OPERATORS:
        raise KernelError(f"no operator {name!r}; the operators are {', '.join(OPERATORS)}")
    lists: dict[int, Any] = {}
    for array in arrays:
        if array.dtype == np.float32:
            lists[id(array)] = array.view(np.uint32).tolist()
        elif array.dtype in (np.int32, np.int16):
            lists[id(array)] = array.tolist()
        else:
            raise ShapeError(f"{name} takes float32, int32 and int16 arrays, not {array.dtype}")
    values = {
        key: host.bits_f32(float(value)) if key in FLOAT_ATTRIBUTES else int(value) for key, value in attributes.items()
    }
    OPERATORS[name](*(lists[id(array)] for array in arrays), **values)
    for array in arrays:
        if array.dtype == np.float32:
            array.view(np.uint32)[...] = np.array(lists[id(array)], dtype=np.uint32).reshape(array.shape)
        else:
            array[...] = np.array(lists[id(array)], dtype=array.dtype).reshape(array.shape)
