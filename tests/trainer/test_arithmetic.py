"""What a genesis says of the arithmetic: the operators of this run, no others, and what a later build makes of it."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

import pytest

from bitwitness.kernels import ops, selftest
from bitwitness.kernels.program import Executor, Program
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.config import RunConfig
from bitwitness.trainer.data import Dataset, WindowStream
from bitwitness.trainer.models.arithmetic import arithmetic, difference, this_builds
from bitwitness.trainer.run import train
from bitwitness.trainer.state import initial_state
from bitwitness.trainer.step import Workspace, step

from .conftest import small_config


class _Noting(Workspace):
    """A workspace that notes the operators of all its programs."""

    noted: set[str]

    def _executor(self, program: Program) -> Executor:
        self.__dict__.setdefault("noted", set()).update(call.op for call in program.calls)
        return super()._executor(program)


def _with(monkeypatch: pytest.MonkeyPatch, **changed: ops.Operator) -> None:
    monkeypatch.setattr(ops, "OPERATORS", MappingProxyType({**ops.OPERATORS, **changed}))


@pytest.mark.parametrize("precision", ["fp32", "bfp"])
def test_it_names_the_operators_of_every_program_and_no_others(project: Project, precision: str) -> None:
    config = small_config(precision=precision)
    workspace = _Noting(config, 1)
    stream = WindowStream(Dataset.open(project.data_dir, "text"), config.data.window, config.run.seed)
    state = initial_state(config, workspace.layout)
    step(state, stream, workspace)
    workspace.losses(state.params, stream, [0])
    named = arithmetic(config)
    assert named["operators"].keys() == workspace.noted
    assert ("matmul_bfp" in named["operators"]) == (precision == "bfp")
    drawn = {"trunc_normal", "normal", "log", "cos2pi", "sin2pi", "permutation", "philox4x32-10"}
    assert named["functions"].keys() == drawn | {"exp", "sigmoid"}


def test_imported_weights_are_not_drawn(config: Any) -> None:
    named = arithmetic(config(**{"from": "import:base"}))
    assert named["functions"].keys() == {"exp", "log", "permutation", "philox4x32-10", "sigmoid"}


def test_an_operator_more_changes_nothing_for_a_run(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    before, table = arithmetic(config()), ops.arithmetic_digest(ops.OPERATORS)
    new = dataclasses.replace(ops.OPERATORS["add"], name="aaa_new")
    _with(monkeypatch, aaa_new=new)
    assert ops.arithmetic_digest(ops.OPERATORS) != table
    assert arithmetic(config()) == before
    assert difference(before, config()) is None


def _recorded(config: RunConfig, **changes: Any) -> dict[str, Any]:
    recorded = arithmetic(config)
    operators = {**recorded["operators"], **changes}
    return recorded | {"operators": {name: v for name, v in operators.items() if v}, "digest": "00" * 32}


def test_what_changed_is_told_by_name(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    mine = config()
    assert difference(_recorded(mine, matmul_nt=2), mine) == "computed with matmul_nt 2; this build has matmul_nt 1"
    assert difference(_recorded(mine, gone=3), mine) == "computed with gone 3; this build has no gone"
    two = _recorded(mine, matmul_nt=2, adamw=7)
    assert difference(two, mine) == "computed with adamw 7; this build has adamw 1 (and 1 more differs)"
    same_names = _recorded(mine)
    assert difference(same_names, mine) == "computed with operators of these versions that were declared otherwise"
    functions = arithmetic(mine)
    functions["functions"]["exp"] = 2
    assert difference(functions, mine) == "computed with exp 2; this build has exp 1"
    assert (
        difference(arithmetic(mine) | {"version": "arith/2"}, mine) == "computed with arith/2; this build has arith/1"
    )


def test_a_step_of_other_operators_is_told(config: Any) -> None:
    """The same versions, but the run was computed by another program than this build's."""
    other = this_builds(arithmetic(config(precision="bfp")))
    assert difference(other, config(precision="fp32")) == (
        "computed with the operators of another program: bfp_balance and 5 more are not in both"
    )


def test_a_declaration_is_covered(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    recorded = arithmetic(config())
    op = ops.OPERATORS["rope"]
    _with(monkeypatch, rope=dataclasses.replace(op, declaration=(*op.declaration[:2], "")))
    assert arithmetic(config())["operators"] == recorded["operators"]
    assert difference(recorded, config()) == "computed with operators of these versions that were declared otherwise"


def test_audit_and_resume_of_a_run_from_a_build_with_another_version(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(steps=2, precision="fp32")
    train(project, config, threads=1)
    assert audit(project, "r", threads=1).result == "match"
    _with(monkeypatch, matmul_nt=dataclasses.replace(ops.OPERATORS["matmul_nt"], version=2))
    # A real build with this table would have a golden file of its own.
    monkeypatch.setattr(selftest, "arithmetic_digest", lambda: selftest.golden()["arithmetic"])
    report = audit(project, "r", threads=1)
    assert report.result == "inconclusive"
    reasons = {unit.reason for unit in report.units}
    assert reasons == {"computed with matmul_nt 1; this build has matmul_nt 2"}
    with pytest.raises(BitwitnessError, match="computed with matmul_nt 1; this build has matmul_nt 2; resume it with"):
        train(project, config, threads=1, resume=True)
