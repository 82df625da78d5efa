"""A cut call gives the bits of the whole one, for every operator, output and place; and the referee judges claims."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import call
from bitwitness.kernels.tracing import dispute, footprint, trace, trace_file
from bitwitness.kernels.tracing.recorder import Recorder

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
        read = footprint.footprint(operator.name)
        written = {spec.name for spec in operator.operands if spec.direction != "in"}
        integers = {spec.name for spec in operator.operands if spec.dtype == "I32"}
        assert read.outputs.keys() == written, "an output without a clause is disputed with the whole call"
        assert read.counts.keys() | read.names.keys() <= integers


def test_a_looked_up_chunk_needs_only_the_rows_that_its_ids_name() -> None:
    """A table of 50,304 rows, of which three outputs name two."""
    table, ids = files.normal("E", 50304, 4), np.array([9, 50303, 7, 50303, 5], np.int32)
    y = np.zeros((5, 4), np.float32)
    found = footprint.cuts("embed", [ids.shape, table.shape, y.shape], "y", 4, 16)
    small = footprint.restrict("embed", [ids, table, y], found)
    assert [array.tolist() for array in small[:2]] == [[1, 0, 1], table[[7, 50303]].tolist()]
    (part,) = footprint.cuts("embed", [ids.shape, table.shape, y.shape], "y", 13, 15)[1:]
    assert part == footprint.Cut("D", 1, 3)


@pytest.mark.parametrize(("begin", "rows", "ids"), [(7, [2], [0]), (50303, [1, 3], [0, 0]), (100, [0], [1])])
def test_a_chunk_of_a_table_gradient_needs_only_the_rows_that_add_to_it(
    begin: int, rows: list[int], ids: list[int]
) -> None:
    """One row of the table; where no id names it, the call keeps one row that writes beside it."""
    given = np.array([9, 50303, 7, 50303, 5], np.int32)
    dy, grad = files.normal("dy", 5, 4), files.normal("E", 50304, 4)
    shapes = [given.shape, dy.shape, grad.shape]
    found = footprint.cuts("embed_backward", shapes, "dE", 4 * begin, 4 * begin + 4)
    small = footprint.restrict("embed_backward", [given, dy, grad], found)
    assert small[0].tolist() == ids and small[1].tolist() == dy[rows].tolist()
    assert len(small[2]) <= 2 and small[2][0].tolist() == grad[begin].tolist()
    assert footprint.where("embed_backward", shapes, "dE", 4 * begin + 1, found) == 1
    call("embed_backward", given, dy, grad)
    call("embed_backward", *small)
    assert bits(small[2][0]) == bits(grad[begin])


def test_an_id_outside_its_table_has_no_output_to_dispute() -> None:
    operands = [np.array([3], np.int32), np.zeros((3, 2), np.float32), np.zeros((1, 2), np.float32)]
    found = footprint.cuts("embed", [array.shape for array in operands], "y", 0, 2)
    with pytest.raises(KernelError, match="embed: a value is not in 0 … 2"):
        footprint.restrict("embed", operands, found)


def test_rotated_rows_need_only_their_positions() -> None:
    positions, cos = np.array([0, 5, 3, 5], np.int32), files.normal("cos", 9, 2)
    operands = [files.normal("q", 4, 4), positions, cos, cos.copy()]
    found = footprint.cuts("rope", [array.shape for array in operands], "q", 4, 12)
    small = footprint.restrict("rope", operands, found)
    assert small[1].tolist() == [1, 0] and small[2].tolist() == cos[[3, 5]].tolist()


def test_the_file_of_a_disputed_lookup_is_small(tmp_path: Path, referee: Referee) -> None:
    """A chunk of 64 KiB of embed and of its gradient, over a table of 40 MB: the file holds a few hundred KiB."""
    ids = (np.arange(512, dtype=np.int32) ** 2) % 10000
    table, y = files.normal("E", 10000, 1024), np.zeros((512, 1024), np.float32)
    recorder = Recorder()
    backward = ("embed_backward", [ids, files.normal("dy", 512, 1024), table.copy()], {})
    for case in (("embed", [ids, table, y], {}), backward):
        program, arrays = files.program_of_case(case)
        recorder.executor(program, 2).run(arrays)
    file = recorder.finish()
    for run, (operand, written) in enumerate([("y", y), ("dE", backward[1][2])]):
        claims = {"right": trace.chunk_hashes(written)[3].hex()}
        path = tmp_path / f"{operand}.safetensors"
        trace_file.write(path, dispute.extract(file, run, 0, operand, 3, claims))
        assert path.stat().st_size < 300_000
        assert referee(path).one("chunk")["right"] == "right"


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
