"""Which part of its operands a part of an operator's output depends on, and the smaller call that computes it.

A footprint is declared with the operator (csrc/operator.h), in clauses separated by "; ":

    y r: R              rows of y and r that differ in the dimension R are independent of each other
    C: M, N             C may be cut along M and, inside one row, along N
    y: n by 16384       cuts must lie at multiples of 16,384; a step may be an attribute
    start counts R      the values of `start` are positions along R, and move with the cut
    ids name V          the values of `ids`, one for each of their own dimension, say which positions along V are used

The smaller call is the same operator on shorter operands. What else it writes has no meaning. An output without a
clause needs the whole call.

Where values name positions, the data decide: a cut along V keeps only what names a position in it, and where V is not
cut, only the positions that are named stay, in their order, and the values are numbered anew.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS, Operator
from bitwitness.kernels.tracing.trace_file import Array


@dataclass(frozen=True, slots=True)
class Cut:
    """Elements begin … end − 1 of the dimension `symbol`, both multiples of `step` (or the dimension's end)."""

    symbol: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Clause:
    """An output may be cut along these symbols, outermost first; each with its step."""

    symbols: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """A footprint, parsed: by output the clause, by operand the symbol that its values count or name."""

    outputs: Mapping[str, Clause]
    counts: Mapping[str, str]
    names: Mapping[str, str]


@cache
def footprint(op: str) -> Footprint:
    """The footprint of an operator."""
    return parse(OPERATORS[op].footprint)


def parse(text: str) -> Footprint:
    """Parse the footprint of a declaration."""
    outputs: dict[str, Clause] = {}
    values: dict[str, dict[str, str]] = {"counts": {}, "name": {}}
    for clause in filter(None, text.split("; ")):
        if match := re.fullmatch(r"(\w+) (counts|name) (\w+)", clause):
            values[match[2]][match[1]] = match[3]
            continue
        names, _, symbols = clause.partition(": ")
        parts = [symbol.partition(" by ") for symbol in symbols.split(", ")]
        for name in names.split():
            outputs[name] = Clause(tuple((symbol, step or "1") for symbol, _, step in parts))
    return Footprint(outputs, values["counts"], values["name"])


def cuts(
    op: str, shapes: Sequence[tuple[int, ...]], output: str, begin: int, end: int, **attributes: float
) -> list[Cut]:
    """The part of each dimension that elements begin … end − 1 of an output (row-major) depend on."""
    operator = OPERATORS[op]
    position = next(i for i, spec in enumerate(operator.operands) if spec.name == output)
    clause = footprint(op).outputs.get(output)
    shape = shapes[position]
    if not 0 <= begin < end <= math.prod(shape):
        raise KernelError(f"elements {begin} … {end} are not in {output}, which has {math.prod(shape)}")
    found: list[Cut] = []
    for axis, extent in enumerate(shape):
        below = math.prod(shape[axis + 1 :])
        first, last = begin // below, -(-end // below)
        symbol, per = _symbol_of(operator.operands[position].shape[axis])
        step = next((s for name, s in clause.symbols if name == symbol), None) if clause else None
        if step is not None:
            size = _extent(operator, shapes, symbol)
            unit = int(attributes[step]) if step in attributes else int(step)
            low, high = first * per // unit * unit, -(-last * per // unit) * unit
            found.append(Cut(symbol, low, min(high, size)))
        if last - first > 1 or extent == 0:
            break  # several rows: all of each
        begin, end = begin - first * below, end - first * below
    return found


def restrict(op: str, operands: Sequence[Array], found: Sequence[Cut]) -> list[Array]:
    """Copies of the operands of the smaller call. An array that occurs twice becomes one array.

    Raises KernelError where a value names a position that is not there.
    """
    operator, clauses = OPERATORS[op], footprint(op)
    kept: dict[str, Array] = {cut.symbol: np.arange(cut.begin, cut.end) for cut in found}
    named: dict[str, Array] = {}  # operand -> its values, numbered anew
    for name, symbol in clauses.names.items():
        position = next(i for i, spec in enumerate(operator.operands) if spec.name == name)
        own = operator.operands[position].shape[0]
        extent = _extent(operator, [array.shape for array in operands], symbol)
        named[name] = _keep_named(kept, own, symbol, operands[position], extent, op)
    made: dict[int, Array] = {}
    for spec, array in zip(operator.operands, operands, strict=True):
        if id(array) in made:
            continue
        part = array
        for axis, expression in enumerate(spec.shape):
            symbol, per = _symbol_of(expression)
            if symbol in kept:
                part = part.take(kept[symbol] if per == 1 else np.unique(kept[symbol] // per), axis)
        if clauses.counts.get(spec.name) in kept:
            part = part - np.array(kept[clauses.counts[spec.name]][0], part.dtype)
        made[id(array)] = np.array(named.get(spec.name, part), part.dtype, order="C")
    return [made[id(array)] for array in operands]


def _keep_named(kept: dict[str, Array], own: str, symbol: str, values: Array, extent: int, op: str) -> Array:
    """Keep, of the dimension `own` of `values` and of the one that they name, what the cut needs; number them anew."""
    if ((values < 0) | (values >= extent)).any():
        raise KernelError(f"{op}: a value is not in 0 … {extent - 1}, so the call has no output to dispute")
    rows = kept.get(own, np.arange(len(values)))
    if symbol in kept:
        inside = rows[np.isin(values[rows], kept[symbol])]
        if len(inside) == 0:  # a call has one row at least: one that writes beside the cut
            inside = rows[:1]
            kept[symbol] = np.append(kept[symbol], values[inside])
        kept[own] = rows = inside
    else:
        kept[symbol] = np.unique(values[rows])
    number = {int(position): at for at, position in enumerate(kept[symbol])}
    return np.array([number[int(value)] for value in values[rows]], values.dtype)


def where(op: str, shapes: Sequence[tuple[int, ...]], output: str, begin: int, found: Sequence[Cut]) -> int:
    """Where element `begin` of an output lies in that output of the smaller call."""
    operator = OPERATORS[op]
    position = next(i for i, spec in enumerate(operator.operands) if spec.name == output)
    index = np.unravel_index(begin, shapes[position])
    at = 0
    for axis, expression in enumerate(operator.operands[position].shape):
        symbol, per = _symbol_of(expression)
        cut = next((cut for cut in found if cut.symbol == symbol), None)
        low, high = (cut.begin // per, -(-cut.end // per)) if cut else (0, shapes[position][axis])
        at = at * (high - low) + int(index[axis]) - low
    return at


def _symbol_of(expression: str) -> tuple[str, int]:
    """The symbol that a dimension is, and how many of it make one: "R" -> ("R", 1), "ceil(n/16384)" -> ("n", 16384)."""
    if match := re.fullmatch(r"ceil\((\w+)/(\d+)\)", expression):
        return match[1], int(match[2])
    return expression, 1


def _extent(operator: Operator, shapes: Sequence[tuple[int, ...]], symbol: str) -> int:
    for spec, shape in zip(operator.operands, shapes, strict=True):
        if symbol in spec.shape:
            return shape[spec.shape.index(symbol)]
    raise KernelError(f"{operator.name}: no operand has the dimension {symbol}")
