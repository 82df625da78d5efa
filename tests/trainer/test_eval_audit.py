"""An eval audited alone: the held-out loss of a state, computed again and compared bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bitwitness.ledger import jcs, merkle
from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.replay_files import dataset_folder
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.audit import AuditReport, audit
from bitwitness.trainer.auditing.coverage import open_coverage
from bitwitness.trainer.auditing.recheck import recheck
from bitwitness.trainer.auditing.remote_venue import RemoteVenue
from bitwitness.trainer.auditing.venue import LocalVenue
from bitwitness.trainer.history import open_run
from bitwitness.trainer.run import train
from bitwitness.trainer.state import state_folder

from .conftest import make_project, small_config
from .served import serving, stranger
from .test_audit import HALVED_LOSSES, lying_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Held-out losses of the states after 3 and 6 steps; that after 3 is not stored."""
    project = make_project(tmp_path_factory.mktemp("evals") / "p")
    train(project, small_config(eval_every=3, eval_windows=2), threads=2)
    return project


@pytest.fixture
def project(trained: Project, tmp_path: Path) -> Project:
    shutil.copytree(trained.root, tmp_path / "p")
    return Project.find(tmp_path / "p")


def evals(project: Project) -> dict[int, int]:
    """step -> entry of every eval."""
    with project.open_ledger() as ledger:
        return {entry.predicate["step"]: entry.index for entry in open_run(ledger, "r").evals}


def units(report: AuditReport) -> list[tuple[int, int, str | None, str]]:
    return [(item.unit.first, item.unit.last, item.part, item.outcome) for item in report.units]


def test_evals_are_audited_alone(project: Project, tmp_path: Path) -> None:
    report = audit(project, "r", evals="all", threads=1)
    assert units(report) == [(3, 3, "eval", "match"), (6, 6, "eval", "match")] and report.compared == ()
    assert report.transcript.size == 4  # the losses of two windows each, which a copied number does not have
    with project.open_ledger() as ledger:
        assert report.entry is not None
        signed = open_envelope(ledger.entry(report.entry)).statement["predicate"]
        covered = open_coverage(project, ledger, "r")
    assert signed["units"][0] == {"cause": "chosen", "first": 3, "last": 3, "outcome": "match", "part": "eval"}
    assert covered.histogram() == {0: 6} and covered.counted == (report.entry,)  # no step is covered by its eval
    one = audit(project, "r", evals=str(evals(project)[6]), threads=2)
    assert units(one) == [(6, 6, "eval", "match")]
    again = recheck(LocalVenue(project, stranger(project, tmp_path / "alice")), str(one.entry), threads=1)
    assert again.result == "confirmed"


def test_a_lie_about_a_held_out_loss(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p")
    lying_run(project, HALVED_LOSSES, "eval_every=5, eval_windows=2")
    entry = evals(project)[5]
    report = audit(project, "r", evals=str(entry), threads=2)
    with project.open_ledger() as ledger:
        said = open_envelope(ledger.entry(entry)).statement["predicate"]["computed"]
    (found,) = (item.found for item in report.units)
    assert report.result == "mismatch" and found is not None
    assert (found["field"], found["step"]) == ("eval.mean", 5)
    assert found["expected"] == merkle.leaf_hash(jcs.encode(said)).hex() != found["computed"]


def test_what_is_not_at_hand_is_unavailable(project: Project) -> None:
    shutil.rmtree(state_folder(project.runs_dir / "r", 6))
    assert units(audit(project, "r", evals=str(evals(project)[6]), threads=1)) == [(6, 6, "eval", "match")]  # replayed
    shutil.rmtree(dataset_folder(project.data_dir, "text.held-out"))
    report = audit(project, "r", evals="all", threads=1)
    assert {item.outcome for item in report.units} == {"unavailable"} and report.result == "unavailable"


def test_a_stranger_audits_an_eval(project: Project, tmp_path: Path) -> None:
    alice = stranger(project, tmp_path / "alice")
    with serving(project) as address, Remote(address) as remote:
        there = RemoteVenue(remote, tmp_path / "work", tmp_path / "alice" / "trust.toml", alice)
        assert units(audit(there, "r", evals="all", threads=1)) == [(3, 3, "eval", "match"), (6, 6, "eval", "match")]


def test_the_command(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    base, entry = ["--project", str(project.root), "audit", "r", "--threads", "1"], evals(project)[3]
    assert main([*base, "--eval", str(entry), "--plan", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["steps"], planned["units"], planned["exact"]) == (1, 1, True)
    assert main([*base, "--eval", str(entry)]) == 0
    assert "step 3, eval" in capsys.readouterr().out
    for wrong, reason in (
        (["--eval", "1"], "entry 1 is no eval of run r"),
        (["--eval", "all", "--steps", "1:2"], "--eval names what is computed again"),
        (["--eval", "all", "--history"], "--eval is of one run"),
    ):
        assert main([*base, *wrong]) == 2
        assert reason in capsys.readouterr().err


def test_a_run_that_measured_nothing(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p")
    train(project, small_config(steps=2), threads=1)
    with pytest.raises(BitwitnessError, match="no eval to audit"):
        audit(project, "r", evals="all", threads=1)
