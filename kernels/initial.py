"""How a tensor of a model begins: a rule, drawn from the seed and the tensor's name alone."""

from __future__ import annotations

from dataclasses import dataclass

from bitwitness.kernels import philox
from bitwitness.kernels.buffers import F32

BOUND = 3.0


@dataclass(frozen=True)
class Initial:
    """A normal distribution of deviation `std`, cut at ±3 std; or `value` everywhere where std is 0."""

    std: float = 0.0
    value: float = 0.0


def fill(tensor: F32, rule: Initial, seed: int, name: str) -> None:
    """Fill a contiguous float32 tensor of that name."""
    if rule.std == 0.0:
        tensor.fill(rule.value)
    else:
        philox.trunc_normal(tensor.reshape(-1), philox.derive_key(seed, "init", name), std=rule.std, bound=BOUND)
