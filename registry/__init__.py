"""Models, versions, bundles, trust policy, the gate, and loading what was verified."""

from __future__ import annotations

from typing import Any

__all__ = ["load_verified", "verify_model"]


def __getattr__(name: str) -> Any:
    # The command line asks for one module of many; none pays for the others.
    if name == "load_verified":
        from .load import load_verified

        return load_verified
    if name == "verify_model":
        from .gate import verify_model

        return verify_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
