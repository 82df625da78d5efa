"""What the host does to whole float32 buffers (numpy or torch, contiguous, CPU): sums and checks, in C++."""

from __future__ import annotations

from typing import Any

from bitwitness.kernels import _native


def sum_f64(values: Any) -> float:
    """x[0] + x[1] + … in binary64, ascending, from +0."""
    return _native.sum_f64(values)


def has_nonfinite(values: Any) -> bool:
    """Whether any element is NaN or infinite."""
    return _native.has_nonfinite(values)


def canonicalise_nan(values: Any) -> int:
    """Write every NaN as 7FC00000, in place; return how many there were."""
    return _native.canonicalise_nan(values)
