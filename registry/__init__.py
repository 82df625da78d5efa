"""Models, versions, bundles, trust policy, the gate, and loading what was verified.

register, derive, words, status    what publishers sign: releases, casts and merges, words on them, the log's status
bundles/                           the proof that travels with a model
policy, verify, gating/            whether a model passes, and why not
load, interop/                     what passed, for this program and for others
"""

from __future__ import annotations

from typing import Any

__all__ = ["from_pretrained", "load_file", "load_verified", "verify_model"]


def __getattr__(name: str) -> Any:
    # The command line asks for one module of many; none pays for the others.
    if name == "from_pretrained":
        from .interop.pretrained import from_pretrained

        return from_pretrained
    if name in ("load_file", "load_verified"):
        from . import load

        return getattr(load, name)
    if name == "verify_model":
        from .gating.gate import verify_model

        return verify_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
