"""What a dropout layer calls its operator with, a pure function of the run's seed, the layer's name, and p.

Whoever captures a model makes its calls by this rule, and whoever audits a captured model holds them to it.
"""

from __future__ import annotations

from . import philox
from .philox import Key


def dropout_key(seed: int, layer: str) -> Key:
    """The key of a layer's masks. Raises KernelError for a name that is not ASCII."""
    return philox.derive_key(seed, "dropout", layer)


def dropout_attributes(p: float, key: Key) -> dict[str, float | int]:
    """The attributes of `dropout`, real ones in binary64: what is kept is scaled by 1/(1 − p), 0 ≤ p < 1."""
    return {"p": p, "scale": 1.0 / (1.0 - p), "key0": key[0], "key1": key[1]}
