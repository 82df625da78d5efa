"""Runs that go on from a step of another run: the same bits, the record of it, and audits across the boundary."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.errors import BitwitnessError, EntryError
from bitwitness.ledger.exchange.replay_export import export_run
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.trainer import run
from bitwitness.trainer.auditing.ancestry_audit import audit_ancestry
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.coverage import open_coverage
from bitwitness.trainer.auditing.remote_venue import RemoteVenue
from bitwitness.trainer.auditing.venue import LocalVenue
from bitwitness.trainer.config import ConfigError, RunConfig, load_config, parse_config
from bitwitness.trainer.history import RunHistory, open_verified_run
from bitwitness.trainer.record_check import check_record
from bitwitness.trainer.run import train
from bitwitness.trainer.start import NoSuchStart, model_of
from bitwitness.trainer.state import State, StateMismatch, state_folder
from bitwitness.trainer.step import StepRecord

from .conftest import make_project, small_config, small_table
from .own_models import LLAMA
from .served import serving, stranger


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
    parent = history(forked, "r").run[:16]
    with pytest.raises(NoSuchStart, match='give the name of that run, "r@4"'):
        train(forked, child_config(name="x", **{"from": f"{parent}@4"}), threads=1)
    wide = small_table(name="x", **{"from": "r@4", "steps": 8})
    wide["model"]["hidden"] = 64
    with pytest.raises(NoSuchStart, match=r"another shape: .* is .* there"):
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
    genesis = {k: v for k, v in history(forked, "child").genesis.items() if k not in ("signer", "seq", "history")}
    genesis = {**genesis, "name": "forged", "init": dict(genesis["init"])}
    change(genesis, history(forked, "r"))
    with forked.open_ledger(writable=True) as ledger, pytest.raises((EntryError, BitwitnessError), match=says):
        RunWriter.begin(ledger, forked.signer("trainer"), genesis)


def _fields(run: RunHistory, step: int) -> dict[str, Any]:
    said = run.states[step].predicate
    return {name: said[name] for name in ("control", "optimizer", "state", "weights")}


def test_parts_of_a_childs_first_step_are_audited_alone(forked: Project) -> None:
    """With moments that are not 0, and a configuration that its parent did not have."""
    train(forked, child_config(name="parts", commit="parts", state_every=1), threads=1)
    for part in ("shard:1", "norm", "update:model.norm.weight"):
        report = audit(forked, "parts", steps=(5, 5), part=part, threads=1)
        assert report.result == "match", (part, report.units[0].detail)


def test_a_module_of_the_same_shape_goes_on(forked: Project) -> None:
    """Written with modules, the built-in model has its bits: so has a child of it that is one."""
    (forked.root / "own.py").write_text(LLAMA)
    table = small_table(name="own", **{"from": "r@4", "eval_every": 4})
    table["model"] = {"module": "own.py:Llama", "arguments": {**table["model"], "tied": True}}
    train(forked, parse_config(table, where="test"), threads=1)
    parent, own = history(forked, "r"), history(forked, "own")
    assert [own.computed(step)["weights"] for step in (5, 6)] == [parent.computed(step)["weights"] for step in (5, 6)]
    assert audit(forked, "own", samples=0, threads=1).result == "match"
    train(forked, child_config(name="back", **{"from": "own@6"}), threads=1)  # and the other way round
    line = audit_ancestry(LocalVenue(forked), "back", threads=1)
    assert line.result == "match" and [b.step for b in line.boundaries] == [4, 6]


# -- across the boundary -----------------------------------------------------------------------------------------


def test_one_command_audits_both_sides(
    forked: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(forked.root)
    assert main(["audit", "child", "--history", "--sample", "1"]) == 0
    said = capsys.readouterr().out
    assert "boundary r@4 → child: match, the state that the next run begins with, bit for bit" in said
    assert "2 of 4 steps of r compared" not in said  # its unit at the fork and one drawn: all 4
    assert "4 of 4 steps of r compared" in said and "4 of 4 steps of child compared" in said
    assert main(["audit", "child", "--history", "--steps", "4:5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(u["first"], u["last"]) for run in answer["runs"] for u in run["units"]] == [(3, 4), (4, 4), (5, 6)]
    assert answer["boundaries"] == [{"step": 4, "parent": "r", "child": "child", "outcome": "match"}]
    assert main(["audit", "child", "--history", "--steps", "1:1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in answer["runs"]] == ["r"] and answer["boundaries"] == []
    assert main(["audit", "child", "--history", "--plan", "--json"]) == 0
    assert [run["steps"] for run in json.loads(capsys.readouterr().out)["runs"]] == [4, 4]
    with forked.open_ledger() as ledger:
        assert all(open_coverage(forked, ledger, name).refused == () for name in ("r", "child"))
    assert main(["coverage", "child"]) == 0
    assert "steps up to 4 are in run r" in capsys.readouterr().out


def test_a_lie_before_the_fork_is_found_from_the_child(made: Project, tmp_path: Path) -> None:
    """A parent whose step 3 is another than the one that follows, and a child that goes on from its step 4."""
    project = make_project(tmp_path / "lying")
    with monkeypatched_step(3):
        train(project, small_config(eval_every=4), threads=1)
    train(project, child_config(), threads=1)
    assert audit(project, "child", threads=1, samples=9).result == "match"  # what it did itself is right
    line = audit_ancestry(LocalVenue(project), "child", threads=1)
    assert line.result == "mismatch"
    assert [unit.found["step"] for unit in line.reports[0].units if unit.found] == [3]
    assert [boundary.outcome for boundary in line.boundaries] == ["mismatch"]


@contextmanager
def monkeypatched_step(number: int) -> Iterator[None]:
    """A trainer that moves one weight by itself in step `number`."""
    honest = run.step

    def step(state: State, *arguments: Any) -> StepRecord:
        record = honest(state, *arguments)
        if state.control.step == number:
            state.params[0] += 1.0
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "step", step)
        yield


def test_a_stranger_audits_across_the_boundary(forked: Project, tmp_path: Path) -> None:
    """Over HTTP, and what is fetched: the states before the units, and the child's first one."""
    alice = stranger(forked, tmp_path / "alice")
    with serving(forked) as url, Remote(url) as remote:
        venue = RemoteVenue(remote, tmp_path / "work", tmp_path / "alice" / "trust.toml", alice)
        line = audit_ancestry(venue, "child", steps=(3, 6), threads=1)
    assert line.result == "match", [unit.detail for report in line.reports for unit in report.units]
    assert [boundary.outcome for boundary in line.boundaries] == ["match"]
    fetched = sorted(path.name for path in (tmp_path / "work").rglob("step-*") if path.is_dir())
    assert fetched == ["step-00000002", "step-00000004"]


def test_an_export_holds_what_the_child_goes_on_from(forked: Project, tmp_path: Path) -> None:
    with forked.open_ledger() as ledger:
        child = export_run(forked, ledger, "child", tmp_path / "public")
        export_run(forked, ledger, "r", tmp_path / "public")
        export_tiles(ledger, tmp_path / "public")
    assert (tmp_path / "public" / "replay" / "states" / child.run / "4" / "optimizer.safetensors").is_file()
    alice = stranger(forked, tmp_path / "alice")
    with forked.open_ledger() as ledger:
        export_tiles(ledger, tmp_path / "public")
    with Remote(str(tmp_path / "public")) as remote:
        out = tmp_path / "alice.jsonl"
        venue = RemoteVenue(remote, tmp_path / "work", tmp_path / "alice" / "trust.toml", alice, out=out)
        assert audit(venue, "child", steps=(4, 6), threads=1).result == "match"


def test_a_step_from_before_a_run_is_in_the_run_that_it_goes_on_from(
    made: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made.root)
    with made.open_ledger() as opened:
        export_tiles(opened, tmp_path / "public")
    for source, words in (
        (["child"], "r"),
        ([str(made.root), "child"], f"{made.root} r"),
        ([str(tmp_path / "public"), "child", "--policy", "trust.toml"], f"{tmp_path / 'public'} r --policy trust.toml"),
    ):
        capsys.readouterr()
        assert main(["trace", *source, "--step", "3"]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            "error: run child has no step 3 in the ledger; it has 5 to 8; step 3 is in run r, which it goes on from: "
            f"`ledger trace {words} --step 3`"
        )
    assert main(["trace", "child", "--step", "9"]) == 2
    assert capsys.readouterr().err == "error: run child has no step 9 in the ledger; it has 5 to 8\n"
