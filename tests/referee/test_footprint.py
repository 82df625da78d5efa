"""A cut call gives the bits of the whole one, for every operator, output and place; and the referee judges claims."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwitness.kernels import dispute, footprint, trace, trace_file
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import call

from . import files
from .conftest import Referee

# Sizes at which cuts fall inside rows, windows and chunks.
CASES = files.run_cases(files.awkward, 600)
OUTPUTS = [
    (number, spec.name)
    for number, (op, _, _) in enumerate(CASES)
    for spec in OPERATORS[op].operands
    if spec.direction != "in"
]


def copies(arrays: list[Any]) -> list[Any]:
    made = {id(array): array.copy() for array in arrays}
    return [made[id(array)] for array in arrays]


def bits(array: Any) -> Any:
    """The bits, every NaN as 7FC00000."""
    if array.dtype != np.float32:
        return array.tolist()
    return np.where(np.isnan(array), np.uint32(0x7FC00000), array.view(np.uint32)).tolist()


def run_case(op: str, operands: list[Any], attributes: dict[str, float]) -> list[Any]:
    call(op, *operands, **attributes)
    return operands


@pytest.mark.parametrize(("number", "output"), OUTPUTS, ids=lambda v: v if isinstance(v, str) else CASES[v][0])
def test_a_cut_call_gives_the_bits_of_the_whole(number: int, output: str) -> None:
    op, operands, attributes = CASES[number]
    position = [spec.name for spec in OPERATORS[op].operands].index(output)
    whole = run_case(op, copies(operands), attributes)
    shapes = [array.shape for array in operands]
    size = math.prod(shapes[position])
    flat = whole[position].reshape(-1)
    for begin, end in {(0, size), (0, 1), (size - 1, size), (size // 3, size // 2 + 1), (size // 2, size // 2 + 1)}:
        found = footprint.cuts(op, shapes, output, begin, end, **attributes)
        small = run_case(op, footprint.restrict(op, operands, found), attributes)
        at = footprint.where(op, shapes, output, begin, found)
        assert bits(small[position].reshape(-1)[at : at + end - begin]) == bits(flat[begin:end]), (begin, end, found)


def test_long_sums_of_squares_are_cut_at_their_chunks() -> None:
    """A step of 16,384, which the small cases do not reach."""
    x = files.normal("x", 16384 * 3 + 5)
    (_, y) = run_case("sum_squares", [x, np.zeros(4, np.float32)], {})
    shapes = [x.shape, y.shape]
    found = footprint.cuts("sum_squares", shapes, "y", 3, 4)
    assert found == [footprint.Cut("n", 49152, 49157)]
    small = run_case("sum_squares", footprint.restrict("sum_squares", [x, y], found), {})
    assert bits(small[1]) == bits(y[3:])
    (cut,) = footprint.cuts("sum_squares", shapes, "y", 1, 3)
    assert (cut.begin, cut.end) == (16384, 49152)


def test_a_cut_is_much_smaller_than_the_call() -> None:
    """One row of attention needs its window, one element of a product a row and a column."""
    cuts = footprint.cuts("matmul_nt", [(96, 300), (500, 300), (96, 500)], "C", 7 * 500 + 3, 7 * 500 + 9)
    assert cuts == [footprint.Cut("M", 7, 8), footprint.Cut("N", 3, 9)]
    shapes = [(96, 8), (96,), (96, 4), (96, 2), (96, 2)]
    (window,) = footprint.cuts("attention", shapes, "l", 60, 70, heads=2, kv_heads=1, window=24, scale=1.0)
    assert (window.begin, window.end) == (24, 48)


def test_every_footprint_can_be_read() -> None:
    for operator in OPERATORS.values():
        outputs, counts = footprint.clauses(operator)
        names = {spec.name for spec in operator.operands if spec.direction != "in"}
        assert outputs.keys() <= names and counts.keys() <= {spec.name for spec in operator.operands}


def test_two_traces_are_bisected_and_the_referee_says_who_is_right(tmp_path: Path, referee: Referee) -> None:
    """One party's trace has one wrong bit in one operator's output: bisected to it, then judged alone."""
    file = files.steps(2)
    honest = trace.run(file, 2)
    at = 300 + next(i for i, leaf in enumerate(honest.leaves[300:]) if leaf.get("op") == "attention_backward")
    leaf = honest.leaves[at]
    wrong = trace.Trace(
        [*honest.leaves[:at], {**leaf, "digest": "00" * 32}, *honest.leaves[at + 1 :]], {}, {}, honest.slots
    )
    asked = []

    def node(level: int, index: int) -> bytes:
        asked.append((level, index))
        return wrong.node(level, index)

    assert trace.first_difference(honest, wrong.size, node) == at
    assert len(asked) <= 1 + math.ceil(math.log2(honest.size))
    assert trace.first_difference(honest, honest.size, honest.node) is None

    claims = {"auditor": honest.chunks[at][0].hex(), "trainer": "00" * 32}
    small = dispute.extract(file, leaf["run"], leaf["call"], leaf["operand"], 0, claims)
    path = tmp_path / "dispute.safetensors"
    trace_file.write(path, small)
    verdict = referee(path)
    assert (verdict.status, verdict.one("chunk")["right"]) == (0, "auditor")
    trace_file.write(path, dispute.extract(file, leaf["run"], leaf["call"], leaf["operand"], 0, {"trainer": "00" * 32}))
    verdict = referee(path)
    assert (verdict.status, verdict.one("chunk")["right"]) == (1, "nobody")


def test_every_leaf_of_a_step_can_be_disputed(tmp_path: Path, referee: Referee) -> None:
    """The file of one call meets the trace of the whole step, whichever call it is."""
    file = files.steps(1)
    whole = trace.run(file, 2)
    calls = [(i, leaf) for i, leaf in enumerate(whole.leaves) if "op" in leaf]
    for i, leaf in calls[:60:3] + calls[-30::4]:
        claims = {"right": whole.chunks[i][-1].hex()}
        chunk = len(whole.chunks[i]) - 1
        small = dispute.extract(file, leaf["run"], leaf["call"], leaf["operand"], chunk, claims)
        trace_file.write(tmp_path / "one.safetensors", small)
        assert referee(tmp_path / "one.safetensors").status == 0, leaf
