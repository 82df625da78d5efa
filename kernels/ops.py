"""The operator table, as data: what the C++ declarations (csrc/ops/*.cpp) say, and its digest.

The digest names the arithmetic of a run: it stands in the run's genesis, and two builds with the same digest
promise the same bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from bitwitness.kernels import _native

ARITHMETIC = "arith/1"

# What docs/arithmetic.md defines beside the operators; a changed definition takes a new version here.
FUNCTIONS = MappingProxyType(
    {
        "cos2pi": 1,
        "exp": 1,
        "log": 1,
        "normal": 1,
        "permutation": 1,
        "philox4x32-10": 1,
        "sigmoid": 1,
        "sin2pi": 1,
        "trunc_normal": 1,
        "uniform": 1,
    }
)


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an operator. `shape` holds expressions over symbols and attributes."""

    name: str
    direction: str  # "in", "out" or "inout"
    dtype: str  # "F32", "I32" or "I16"
    shape: tuple[str, ...]
    may_be: tuple[str, ...]  # operands that may be the very same memory
    read_where: str  # a flag without which an inout operand is only written; "" where it is always read


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: attributes maps a name to its kind (flag, natural, count, sign or real)."""

    name: str
    version: int
    operands: tuple[Operand, ...]
    attributes: Mapping[str, str]
    declaration: tuple[str, str, str]  # operands, attributes and rules, as written in C++
    footprint: str  # kernels/footprint.py


def _read_table() -> Mapping[str, Operator]:
    table = {}
    for name, version, operands, attributes, signature, kinds, rules, footprint in _native.operators():
        specs = tuple(Operand(n, d, t, tuple(s), tuple(m), r) for n, d, t, s, m, r in operands)
        declaration = (signature, kinds, rules)
        table[name] = Operator(name, version, specs, MappingProxyType(dict(attributes)), declaration, footprint)
    return MappingProxyType(table)


OPERATORS: Mapping[str, Operator] = _read_table()


def arithmetic_table() -> dict[str, Any]:
    """The table whose digest is the arithmetic: names, versions and declarations, strings and integers only."""
    return {
        "arithmetic": ARITHMETIC,
        "functions": dict(FUNCTIONS),
        "operators": [
            {
                "attributes": op.declaration[1],
                "name": op.name,
                "operands": op.declaration[0],
                "rules": op.declaration[2],
                "version": op.version,
            }
            for op in OPERATORS.values()
        ],
    }


@cache
def arithmetic_digest() -> str:
    """SHA-256, in hex, of the table as canonical JSON (RFC 8785: ASCII strings and integers, sorted keys)."""
    text = json.dumps(arithmetic_table(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
