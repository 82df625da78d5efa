"""Drills of runs that were imported, resumed, or go on from another run: every fault is found in its place."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.config import RunConfig, parse_config
from bitwitness.trainer.drills.drill import DrillResult, drill
from bitwitness.trainer.drills.drill_copy import read_line
from bitwitness.trainer.drills.drill_faults import KINDS
from bitwitness.trainer.history import RunHistory, open_verified_run
from bitwitness.trainer.models.imports import import_checkpoint, imports_dir
from bitwitness.trainer.run import train

from .conftest import make_project, small_table
from .test_drill import everything
from .test_imports import start_table, write_checkpoint

Results = dict[str, DrillResult]


def base_config() -> RunConfig:
    return parse_config(start_table(name="base", steps=8, eval_every=4, eval_windows=1), where="test")


def tuned_config() -> RunConfig:
    """Other windows in a step than before the fork, and another schedule."""
    table = small_table(name="tuned", steps=12, eval_every=6, eval_windows=1, **{"from": "base@6"})
    table["data"] |= {"shards": 2, "windows_per_shard": 1}
    return parse_config({**table, "schedule": {"kind": "constant"}}, where="test")


def stopped_and_resumed(project: Project, config: RunConfig, step: int, *, killed: bool) -> None:
    """A run that is resumed at this step, after its process died, or after it was asked to stop."""

    def stop(progress: Any) -> None:
        if progress.step == step and killed:
            raise KeyboardInterrupt
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    if killed:
        with pytest.raises(KeyboardInterrupt):
            train(project, config, threads=2, report=stop)
    else:
        train(project, config, threads=2, report=stop)
    train(project, config, threads=2, resume=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """`base` begins with imported weights and was resumed at step 3; `tuned` goes on from its step 6, resumed at 9."""
    folder = tmp_path_factory.mktemp("line")
    project = make_project(folder / "project")
    import_checkpoint(write_checkpoint(folder / "checkpoint"), imports_dir(project), "base")
    stopped_and_resumed(project, base_config(), 3, killed=True)
    stopped_and_resumed(project, tuned_config(), 9, killed=False)
    return project


def drilled(project: Project, folder: Path, name: str, **options: Any) -> Results:
    before = everything(project)
    found = drill(project, name, folder, samples=9, threads=2, **options)
    results = {result.kind: result for result in found}
    assert everything(project) == before
    return results


def copy_of(folder: Path, kind: str, name: str) -> tuple[Project, RunHistory]:
    copy = Project.find(folder / kind)
    with copy.open_ledger() as ledger:
        return copy, open_verified_run(copy, ledger, name)


def check(results: Results, run: str, steps: range) -> None:
    """Each is found, at its step and operator, and the referee accuses nobody else."""
    for kind, result in results.items():
        assert (result.run, result.found, result.audits) == (run, result.step, 1) and result.step in steps, result
        assert result.operator, (kind, result.said)
        assert result.right == (("auditor",) if kind in ("gradient", "moment") else ())


def test_in_an_imported_and_resumed_run(project: Project, tmp_path: Path) -> None:
    results = drilled(project, tmp_path, "base", seed=5)
    assert list(results) == list(KINDS)
    check(results, "base", range(2, 8))
    # The copy begins with the import and was resumed, whether the fault lies before that or after.
    assert {results[kind].step < 3 for kind in KINDS} == {True, False}
    for kind in KINDS:
        copy, run = copy_of(tmp_path, kind, "base")
        assert run.genesis["init"]["kind"] == "import" and (imports_dir(copy) / "base").is_dir()
        assert [entry.predicate["step"] for entry in run.resumes] == [3]
        assert run.ended and len(run.evals) == 3


def test_in_a_run_that_goes_on_from_another(project: Project, tmp_path: Path) -> None:
    results = drilled(project, tmp_path, "tuned", seed=1)
    assert list(results) == list(KINDS)
    check(results, "tuned", range(8, 12))
    for kind in KINDS:
        copy, run = copy_of(tmp_path, kind, "tuned")
        assert run.parent is not None and run.parent.name == "base" and sorted(run.steps) == list(range(7, 13))
        assert [entry.predicate["step"] for entry in run.resumes] == [9]
    assert audit(copy, "base", samples=9, threads=2).result == "match"  # what is before the fork is honest


def test_before_the_fork_from_the_run_that_goes_on(project: Project, tmp_path: Path) -> None:
    """Only with --history is it found: what the child did itself is right."""
    results = drilled(project, tmp_path, "tuned", seed=2, history=True, kinds=("gradient", "batch", "state"))
    check(results, "base", range(2, 6))
    copy, run = copy_of(tmp_path, "gradient", "tuned")
    assert audit(copy, "tuned", samples=9, threads=2).result == "match"
    with project.open_ledger() as ledger:
        honest = open_verified_run(project, ledger, "tuned")
    assert run.genesis["state"] != honest.genesis["state"] and sorted(run.steps) == sorted(honest.steps)
    assert [entry.predicate["step"] for entry in run.resumes] == [9]


def test_the_command(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    words = ["drill", "tuned", "--history", "--fault", "moment", "--seed", "2", "--sample", "9", "--threads", "2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "of base: found by audit 1" in out and "1 of 1 faults found" in out
    assert main(["drill", "base", "--history"]) == 2
    assert "goes on from no other run" in capsys.readouterr().err
    with pytest.raises(BitwitnessError, match="4 steps at least"):
        list(drill(project, "tuned", tmp_path, last=9, threads=1))
    assert [(link.history.name, link.last) for link in read_line(project, "tuned", 11)] == [("base", 6), ("tuned", 11)]
