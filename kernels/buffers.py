"""Memory for operators: numpy arrays that begin at a cache line, so that no vector lies across two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Array = NDArray[Any]

_DTYPES: Mapping[str, type[np.generic]] = {"F32": np.float32, "I32": np.int32, "I16": np.int16}
_LINE = 64


def zeros(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An array of zeros, of a dtype as programs name it. What is never written takes no memory."""
    kind = np.dtype(_DTYPES[dtype])
    size = math.prod(shape) * kind.itemsize
    block = np.zeros(size + _LINE, np.uint8)
    begin = -block.ctypes.data % _LINE
    return block[begin : begin + size].view(kind).reshape(shape)


def floats(*shape: int) -> F32:
    """A float32 array of +0."""
    return zeros(shape, "F32")
