"""The drill is a test: every kind of planted fault is found, at its step and operator, as often as predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.drills import drill as drilled
from bitwitness.trainer.drills.drill import DRAWS, DrillResult, drill
from bitwitness.trainer.drills.drill_faults import KINDS, Fault
from bitwitness.trainer.run import train
from bitwitness.trainer.traces.step_trace import trace_step

from .conftest import make_project, small_config
from .own_models import TINY
from .test_user_model import own_config


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DrillResult]:
    """One drill of each kind on the run that is made for it; the copies share nothing but that run."""
    folder = tmp_path_factory.mktemp("drill")
    project, name = drilled.small_run(folder / "honest", 2)
    before = everything(project)
    found = list(drill(project, name, folder / "copies", seed=3, samples=1, threads=2))
    assert everything(project) == before
    return {result.kind: result for result in found}


def parts_audited(copy: Project, part: str, steps: range) -> list[str]:
    """The outcome for that part of each of `steps`."""
    report = audit(copy, "r", steps=(steps[0], steps[-1]), part=part, threads=2)
    return [item.outcome for item in report.units]


def everything(project: Project) -> dict[str, bytes]:
    """All files but those with which SQLite keeps its readers apart."""
    paths = (path for path in project.root.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in paths if not path.name.endswith(("-shm", "-wal"))}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_found_at_its_step_and_operator(results: dict[str, DrillResult], kind: str) -> None:
    result = results[kind]
    assert result.found == result.step
    assert result.operator, result.said
    assert result.right == (("auditor",) if kind in ("gradient", "moment") else ())
    assert result.good
    assert result.predicted == (1.0 if result.always else 0.25)
    assert not result.always or result.audits == 1
    # Five standard deviations: a sample that avoided the fault, or sought it, would lie outside.
    assert abs(result.measured - result.predicted) <= 5 * (0.25 * 0.75 / DRAWS) ** 0.5


def test_a_copy_has_keys_and_a_log_of_its_own(tmp_path: Path) -> None:
    """Held-out losses, states, parts and both datasets are copied; nothing is signed or logged by the real keys."""
    project = make_project(tmp_path / "project")
    train(project, small_config(eval_every=2, eval_windows=1, commit="parts"), threads=2)
    before = everything(project)
    (result,) = drill(project, "r", tmp_path / "copies", kinds=("moment",), seed=5, samples=9, threads=2)
    assert result.good and result.audits == 1
    assert everything(project) == before
    copy = Project.find(tmp_path / "copies" / "moment")
    for role in ("root", "log", "trainer", "auditor"):
        assert copy.signer(role).keyid != project.signer(role).keyid
    with copy.open_ledger() as theirs, project.open_ledger() as ours:
        assert theirs.origin != ours.origin
        assert not {theirs.leaf_hash(i) for i in range(theirs.size)} & {ours.leaf_hash(i) for i in range(ours.size)}
    # The parts of all steps can be audited alone: those that were copied, and those that the faulty trainer computed.
    assert 2 < result.step < 6
    assert parts_audited(copy, "shard:1", range(1, 7)) == ["match"] * 6


def test_what_no_replay_shows_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Fault, "scalars", lambda self, scalars: scalars)
    monkeypatch.setattr(drilled, "MOST_AUDITS", 1)
    assert main(["drill", "--fault", "learning-rate", "--seed", "1", "--threads", "2"]) == 1
    out = capsys.readouterr().out
    assert "NOT FOUND, though every step was replayed" in out and "0 of 1 faults found" in out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep = tmp_path / "keep"
    words = ["drill", "--fault", "gradient", "--seed", "3", "--sample", "4", "--keep", str(keep), "--json"]
    assert main(words) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["good"] and result["kind"] == "gradient" and result["audits"] == 1
    dispute = keep / "gradient" / "traces" / "dispute.safetensors"
    assert main(["referee", str(dispute)]) == 0
    assert main(["drill", "--keep", str(keep)]) == 2
    assert main(["drill", "--fault", "theft"]) == 2
    err = capsys.readouterr().err
    assert "the folder is not empty" in err and "--fault theft: choose from gradient" in err


@pytest.mark.parametrize(("options", "said"), [({"last": 3}, "4 steps at least")])
def test_a_run_that_cannot_be_drilled(project: Project, tmp_path: Path, options: Any, said: str) -> None:
    train(project, small_config(), threads=2)
    with pytest.raises(BitwitnessError, match=said):
        list(drill(project, "r", tmp_path / "copies", threads=1, **options))


@pytest.fixture(scope="module")
def own_copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own-copies")


@pytest.fixture(scope="module")
def own_results(tmp_path_factory: pytest.TempPathFactory, own_copies: Path) -> dict[str, DrillResult]:
    """Each kind of fault in a run of a model of the user's own: its programs are data beside the run."""
    folder = tmp_path_factory.mktemp("own-drill")
    project = make_project(folder / "project")
    (project.root / "tiny.py").write_text(TINY)
    train(project, own_config("tiny.py:Tiny", steps=4, commit="parts"), threads=2)
    found = trace_step(project, "r", 3, threads=2)
    assert not found.differences and {"attention", "rmsnorm"} <= {str(leaf.get("op")) for leaf in found.trace.leaves}
    results = drill(project, "r", own_copies, seed=2, samples=9, threads=2)
    return {result.kind: result for result in results}


@pytest.mark.parametrize("kind", KINDS)
def test_faults_in_a_model_of_the_users_own_are_found(own_results: dict[str, DrillResult], kind: str) -> None:
    """At their step and operator, which is named by its module."""
    result = own_results[kind]
    assert result.good and result.audits == 1, result
    assert result.right == (("auditor",) if kind in ("gradient", "moment") else ())
    module = [line.split()[1] for line in result.said if line.startswith("  module ")]
    assert len(module) == (kind == "gradient")
    if module:
        tensor = next(line.split()[1] for line in result.said if line.startswith("  tensor "))
        assert tensor.startswith(module[0].partition("/")[0] + ".")


def test_the_parts_of_faulty_steps_are_told_apart(own_results: dict[str, DrillResult], own_copies: Path) -> None:
    """A gradient that was changed is in the fold of its step, and in no step before; a moment is in no fold."""
    step = own_results["gradient"].step
    steps = range(1, step + 1)
    copy = Project.find(own_copies / "gradient")
    assert parts_audited(copy, "fold", steps) == ["match"] * (step - 1) + ["mismatch"]
    step = own_results["moment"].step
    assert parts_audited(Project.find(own_copies / "moment"), "fold", range(1, step + 1)) == ["match"] * step
