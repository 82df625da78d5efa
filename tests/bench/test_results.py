"""The file that `make bench` writes: parts are merged, bounds judged, and no operator of a step is left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bitwitness.kernels.ops import OPERATORS

from . import results
from .__main__ import BEGIN, END, PAGE
from .audited import config_for
from .captured import bench_captured
from .module_cases import module_cases
from .one_operator import executor
from .operators import cases, table


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "circumstances", lambda: {"commit": "c0"})


def test_a_part_replaces_its_own_keys_alone() -> None:
    first: dict[str, Any] = results.merge({}, "gemm", {"gemm_fp32_vs_torch": 0.9, "gemm_old": 1.0}, {"rounds": 3})
    both = results.merge(first, "rss", {"step_rss_vs_eager": 1.2}, None)
    assert both["bounds"] == {
        "gemm_fp32_vs_torch": {"at_most": 1.0, "pass": True},
        "step_rss_vs_eager": {"at_most": 1.0, "pass": False},
    }
    again = results.merge(both, "gemm", {"gemm_fp32_vs_torch": 1.1}, None)
    assert (again["gemm_fp32_vs_torch"], again["step_rss_vs_eager"]) == (1.1, 1.2)
    assert "gemm_old" not in again and again["parts"]["rss"] == both["parts"]["rss"]
    assert again["parts"]["gemm"] == {"commit": "c0", "details": None, "keys": ["gemm_fp32_vs_torch"]}


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("gemm_fp32_vs_torch", 1.0, None),
        ("gemm_fp32_vs_torch", 1.001, "gemm_fp32_vs_torch is 1.001; at most 1.0 is promised"),
        ("append_batch_per_s", 8000.0, None),
        ("append_batch_per_s", 7999.0, "append_batch_per_s is 7999.0; at least 8000.0 is promised"),
        ("audit_overhead_fp32", float("nan"), "audit_overhead_fp32 is nan; at most 0.06 is promised"),
        ("step_fp32_vs_eager_base", 9.0, None),
    ],
)
def test_a_missed_bound_is_told(key: str, value: float, line: str | None) -> None:
    found = results.merge({}, "part", {key: value}, None)
    assert results.missed(found, {key: value}) == ([line] if line else [])


def test_every_operator_has_a_counterpart() -> None:
    assert cases(config_for("small", window=512, windows=1)).keys() == OPERATORS.keys()


def test_the_operators_of_modules_compute_what_their_counterparts_do() -> None:
    for op, make in module_cases(config_for("nano", window=16, windows=2)).items():
        operands, attributes, theirs = make()
        executor(op, operands, attributes, 1)()
        written = next(i for i, operand in enumerate(OPERATORS[op].operands) if operand.direction != "in")
        found, expected = operands[written], theirs()
        if op == "dropout":
            assert isinstance(expected, torch.Tensor)
            assert abs((found == 0.0).float().mean() - (expected == 0.0).float().mean()) < 0.05
        elif expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_captured_model_is_held_against_the_built_in_one() -> None:
    found = bench_captured("nano", windows=1, rounds=1, rest=0.0)
    assert found["ratios"].keys() == {"step_captured_vs_builtin", "step_captured_rss_vs_builtin"}
    assert all(value > 0.0 for value in found["ratios"].values())


def test_the_page_has_a_place_for_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1 and page.index(BEGIN) < page.index(END)
    assert "| `add` | 0.50 | 0.25 | 1.00 |" in table({"add": {"ratio": 0.5, "cpu_ratio": 0.25, "ms": 1.0}})
