"""Which part of its operands a part of an operator's output depends on, and the smaller call that computes it.

A footprint is declared with the operator (csrc/operator.h), in clauses separated by "; ":

    y r: R              rows of y and r that differ in the dimension R are independent of each other
    C: M, N             C may be cut along M and, inside one row, along N
    y: n by 16384       cuts must lie at multiples of 16,384; a step may be an attribute
    start counts R      the values of `start` are positions along R, and move with the cut

The smaller call is the same operator on shorter operands. What else it writes has no meaning. An output without a
clause needs the whole call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS, Operator
from bitwitness.kernels.trace_file import Array


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


def clauses(operator: Operator) -> tuple[dict[str, Clause], dict[str, str]]:
    """Parse a footprint: the clause of each output that has one, and operand -> symbol that its values count."""
    outputs: dict[str, Clause] = {}
    counts: dict[str, str] = {}
    for clause in filter(None, operator.footprint.split("; ")):
        if match := re.fullmatch(r"(\w+) counts (\w+)", clause):
            counts[match[1]] = match[2]
            continue
        names, _, symbols = clause.partition(": ")
        parts = [symbol.partition(" by ") for symbol in symbols.split(", ")]
        for name in names.split():
            outputs[name] = Clause(tuple((symbol, step or "1") for symbol, _, step in parts))
    return outputs, counts


def cuts(
    op: str, shapes: Sequence[tuple[int, ...]], output: str, begin: int, end: int, **attributes: float
) -> list[Cut]:
    """The part of each dimension that elements begin … end − 1 of an output (row-major) depend on."""
    operator = OPERATORS[op]
    position = next(i for i, spec in enumerate(operator.operands) if spec.name == output)
    clause = clauses(operator)[0].get(output)
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
    """Copies of the operands of the smaller call. An array that occurs twice becomes one array."""
    operator = OPERATORS[op]
    counts = clauses(operator)[1]
    made: dict[int, Array] = {}
    for spec, array in zip(operator.operands, operands, strict=True):
        if id(array) in made:
            continue
        part = array
        for axis, expression in enumerate(spec.shape):
            for cut in found:
                symbol, per = _symbol_of(expression)
                if symbol == cut.symbol:
                    part = part.take(range(cut.begin // per, -(-cut.end // per)), axis)
        for cut in found:
            if counts.get(spec.name) == cut.symbol:
                part = part - np.array(cut.begin, part.dtype)
        made[id(array)] = np.array(part, order="C")
    return [made[id(array)] for array in operands]


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
