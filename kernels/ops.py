"""The operator table, as data: what the C++ declarations (csrc/ops/*.cpp) say, and digests of it.

A digest over the operators and functions that a run uses names the arithmetic of that run: it stands in the genesis,
and two builds with the same digest promise the same bits. One that a run does not use is no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from bitwitness.kernels import _native

ARITHMETIC = "arith/1"


@dataclass(frozen=True, slots=True)
class Function:
    """A function of docs/arithmetic.md. A changed definition takes a new version; `uses` are those that it names."""

    version: int
    uses: tuple[str, ...] = ()


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "cos2pi": Function(1),
        "erf": Function(1, ("exp",)),
        "exp": Function(1),
        "log": Function(1),
        "normal": Function(1, ("cos2pi", "log", "philox4x32-10", "sin2pi")),
        "permutation": Function(1, ("philox4x32-10",)),
        "philox4x32-10": Function(1),
        "sigmoid": Function(1, ("exp",)),
        "sin2pi": Function(1),
        "trunc_normal": Function(1, ("normal",)),
        "uniform": Function(1, ("philox4x32-10",)),
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
    footprint: str  # kernels/tracing/footprint.py
    functions: tuple[str, ...]  # of FUNCTIONS, that its definition names


def _read_table() -> Mapping[str, Operator]:
    table = {}
    for name, version, operands, attributes, signature, kinds, rules, footprint, functions in _native.operators():
        specs = tuple(Operand(n, d, t, tuple(s), tuple(m), r) for n, d, t, s, m, r in operands)
        declaration = (signature, kinds, rules)
        uses = tuple(filter(None, functions.split(", ")))
        table[name] = Operator(name, version, specs, MappingProxyType(dict(attributes)), declaration, footprint, uses)
    return MappingProxyType(table)


OPERATORS: Mapping[str, Operator] = _read_table()


def functions_of(operators: Iterable[str], functions: Iterable[str] = ()) -> list[str]:
    """Every function that these operators and functions reach, in order of names."""
    due = [*functions, *(name for op in operators for name in OPERATORS[op].functions)]
    found: set[str] = set()
    while due:
        name = due.pop()
        if name not in found:
            found.add(name)
            due.extend(FUNCTIONS[name].uses)
    return sorted(found)


def arithmetic_table(operators: Iterable[str] = OPERATORS, functions: Iterable[str] = FUNCTIONS) -> dict[str, Any]:
    """The rows of these operators and functions: names, versions and declarations, strings and integers only."""
    rows = [OPERATORS[name] for name in sorted(operators)]
    return {
        "arithmetic": ARITHMETIC,
        "functions": {name: FUNCTIONS[name].version for name in sorted(functions)},
        "operators": [
            {
                "attributes": op.declaration[1],
                "name": op.name,
                "operands": op.declaration[0],
                "rules": op.declaration[2],
                "version": op.version,
            }
            for op in rows
        ],
    }


def arithmetic_digest(operators: Iterable[str] = OPERATORS, functions: Iterable[str] = FUNCTIONS) -> str:
    """SHA-256, in hex, of those rows as canonical JSON (RFC 8785: ASCII strings and integers, sorted keys)."""
    table = arithmetic_table(operators, functions)
    text = json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
