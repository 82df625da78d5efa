"""Runs that go on from a step of another run: the same bits, the record of it, and audits across the boundary."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.errors import BitwitnessError, EntryError
from bitwitness.ledger.project import Project
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.trainer.audit import audit
from bitwitness.trainer.config import ConfigError, RunConfig, load_config, parse_config
from bitwitness.trainer.coverage import open_coverage
from bitwitness.trainer.history import RunHistory, open_verified_run
from bitwitness.trainer.record_check import check_record
from bitwitness.trainer.run import train
from bitwitness.trainer.start import NoSuchStart, model_of
from bitwitness.trainer.state import StateMismatch, state_folder

from .conftest import make_project, small_config, small_table


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run `r` of 6 steps, and `child`, which goes on from its step 4 to step 8 under another schedule."""
    project = make_project(tmp_path_factory.mktemp("forks") / "project")
    train(project, small_config(eval_every=4), threads=2)
    train(project, child_config(), threads=2)
    return project


@pytest.fixture
def forked(made: Project, tmp_path: Path) -> Project:
    shutil.copytree(made.root, tmp_path / "project")
    return Project.find(tmp_path / "project")


def child_config(**run: Any) -> RunConfig:
    table = small_table(**{"name": "child", "from": "r@4", "steps": 8, "eval_every": 4, **run})
    return parse_config({**table, "schedule": {"kind": "constant"}}, where="test")


def history(project: Project, name: str) -> RunHistory:
    with project.open_ledger() as ledger:
        return open_verified_run(project, ledger, name)


def test_a_child_with_the_parents_configuration_is_the_parent(made: Project, tmp_path: Path) -> None:
    """Steps, tokens, cursor, moments and the schedule go on: every step of the same configuration has the same bits."""
    shutil.copytree(made.root, tmp_path / "p")
    project = Project.find(tmp_path / "p")
    train(project, small_config(name="same", eval_every=4, **{"from": "r@2"}), threads=1)
    parent, child = history(project, "r"), history(project, "same")
    assert sorted(child.steps) == [3, 4, 5, 6]
    assert all(child.computed(step) == parent.computed(step) for step in child.steps)
    assert (child.first, child.last_step, child.ended) == (2, 6, True)


def test_the_genesis_names_run_step_entry_and_state(made: Project) -> None:
    parent, child = history(made, "r"), history(made, "child")
    entry = parent.states[4]
    assert child.genesis["init"] == {
        "kind": "parent",
        "run": parent.run,
        "step": 4,
        "entry": entry.leaf_hash.hex(),
        "state": entry.predicate["state"],
    }
    assert child.genesis["control"] == parent.state(4).control.to_json()
    assert child.genesis["optimizer"] == entry.predicate["optimizer"]
    assert [fork.predicate["name"] for fork in parent.forks] == ["child"]
    assert check_record(child, made.open_ledger().origin) == []
    assert verify_ledger(made.ledger_path, None).faults == []


def test_a_child_is_interrupted_and_resumed_to_the_same_bits(made: Project, tmp_path: Path) -> None:
    shutil.copytree(made.root, tmp_path / "p")
    project = Project.find(tmp_path / "p")
    config = child_config(name="again")
    stopped: list[int] = []

    def stop(progress: Any) -> None:
        stopped.append(progress.step)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(project, config, threads=1, report=stop)
    assert stopped == [5]
    shutil.rmtree(state_folder(project.runs_dir / "again", 4))  # the parent's is still there
    train(project, config, threads=1, resume=True)
    again, child = history(project, "again"), history(project, "child")
    assert [entry.predicate["from"] for entry in again.resumes] == [4]
    assert all(again.computed(step) == child.computed(step) for step in child.steps)


def test_an_audit_of_the_child_replays_its_own_steps(forked: Project) -> None:
    report = audit(forked, "child", samples=9, screen=True, threads=2)
    assert report.result == "match", [unit.detail for unit in report.units]
    assert [(u.unit.first, u.unit.last, u.unit.cause) for u in report.units] == [
        (4, 4, "init"),
        (5, 6, "fork"),
        (7, 8, "last"),
    ]
    assert (report.compared, report.steps) == ((5, 6, 7, 8), 4)
    assert (report.screened.compared, report.screened.total, report.screened.faults) == (2, 2, ())
    with forked.open_ledger() as ledger:
        found = open_coverage(forked, ledger, "child")
    assert (found.refused, found.steps, found.covered) == ((), 4, 4)
    assert found.to_json()["parent"] == {"run": "r", "step": 4}
    assert [(s.first, s.last) for s in found.segments] == [(5, 8)]


def test_the_parent_of_a_fork_is_always_audited_there(forked: Project) -> None:
    report = audit(forked, "r", samples=0, threads=2)
    assert [(u.unit.first, u.unit.last, u.unit.cause) for u in report.units] == [
        (0, 0, "init"),
        (3, 4, "fork"),
        (5, 6, "last"),
    ]


def test_a_damaged_first_state_accuses_nobody(forked: Project) -> None:
    weights = state_folder(forked.runs_dir / "child", 4) / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    report = audit(forked, "child", steps=(4, 6), threads=1)
    assert [unit.outcome for unit in report.units] == ["unavailable", "unavailable"]
    shutil.rmtree(weights.parent)  # the parent's own copy stands in
    assert audit(forked, "child", steps=(4, 6), threads=1).result == "match"


def test_steps_before_the_child_are_the_parents(forked: Project) -> None:
    with pytest.raises(BitwitnessError, match="has steps 4 to 8; those up to 4 are steps of run r"):
        audit(forked, "child", steps=(2, 6), threads=1)


def test_what_cannot_be_gone_on_from_is_told_in_one_line(forked: Project) -> None:
    with pytest.raises(NoSuchStart, match=r"no stored state of step 3 here; the nearest: r@2 and r@4"):
        train(forked, child_config(name="x", **{"from": "r@3"}), threads=1)
    with pytest.raises(NoSuchStart, match=r"step 7 here; the nearest: r@6"):
        train(forked, child_config(name="x", **{"from": "r@7"}), threads=1)
    with pytest.raises(BitwitnessError, match="no run nobody"):
        train(forked, child_config(name="x", **{"from": "nobody@2"}), threads=1)
    wide = small_table(name="x", **{"from": "r@4", "steps": 8})
    wide["model"]["hidden"] = 64
    with pytest.raises(NoSuchStart, match="another shape: .* is .* there"):
        train(forked, parse_config(wide, where="test"), threads=1)
    with pytest.raises(ConfigError, match=r"run.steps = 4 counts the 4 steps"):
        child_config(steps=4)
    weights = state_folder(forked.runs_dir / "r", 4) / "optimizer.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(StateMismatch, match="not what the ledger commits to"):
        train(forked, child_config(name="x"), threads=1)


def test_the_model_may_be_left_out(made: Project, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[run]\nname = "child2"\nsteps = 8\nfrom = "r@4"\n[data]\ntrain = "text"\nwindow = 24\n'
    )
    config = load_config(tmp_path / "run.toml", model_of=lambda start: model_of(made, start))
    assert config.model == small_config().model


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g, other: g["init"].update(entry=other.states[2].leaf_hash.hex()), "stored no such state"),
        (lambda g, other: g["init"].update(entry="11" * 32), "stored no such state"),
        (lambda g, other: g["init"].update(run=g["datasets"][0]["entry"]), "run"),
        (lambda g, other: g["init"].update(state="11" * 32), "starts from"),
        (lambda g, other: g.update(_fields(other, 2)), "goes on from"),
    ],
)
def test_the_ledger_takes_no_child_of_another_state(
    forked: Project, change: Callable[[dict[str, Any], RunHistory], None], says: str
) -> None:
    from bitwitness.ledger.run_chain import RunWriter

    genesis = {k: v for k, v in history(forked, "child").genesis.items() if k not in ("signer", "seq", "history")}
    genesis = {**genesis, "name": "forged", "init": dict(genesis["init"])}
    change(genesis, history(forked, "r"))
    with forked.open_ledger(writable=True) as ledger, pytest.raises((EntryError, BitwitnessError), match=says):
        RunWriter.begin(ledger, forked.signer("trainer"), genesis)


def _fields(run: RunHistory, step: int) -> dict[str, Any]:
    said = run.states[step].predicate
    return {name: said[name] for name in ("control", "optimizer", "state", "weights")}
