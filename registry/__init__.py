"""Models, versions, bundles, trust policy, the gate, and loading what was verified."""

from __future__ import annotations

from typing import Any

__all__ = ["from_pretrained", "load_file", "load_verified", "verify_model"]


def __getattr__(name: str) -> Any:
    # The command line asks for one module of many; none pays for the others.
    if name == "from_pretrained":
        from .pretrained import from_pretrained

        return from_pretrained
    if name in ("load_file", "load_verified"):
        from . import load

        return getattr(load, name)
    if name == "verify_model":
        from .gate import verify_model

        return verify_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
