"""Rechecks that were stopped go on where they were, inside a step, and sign what one that was not stopped signs."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.keys import Signer, generate
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing import replay_work
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.recheck import recheck
from bitwitness.trainer.auditing.remote_venue import RemoteVenue
from bitwitness.trainer.auditing.replay_work import ReplayWork
from bitwitness.trainer.auditing.venue import LocalVenue
from bitwitness.trainer.run import train
from bitwitness.trainer.state import state_folder
from bitwitness.trainer.step import Workspace

from .conftest import make_project, small_config
from .served import serving, stranger
from .test_audit_resume import counted
from .test_recheck import forge, newest_audit, predicate

SHARDS = 12  # 4 steps of 3

KILLED = """
import os, sys
from bitwitness.ledger.cli import main
from bitwitness.trainer import step
from bitwitness.trainer.auditing import replay_work
replay_work.INTERVAL = replay_work._SHARE = 0.0
honest, done = step.Workspace.shard_gradient, []
def shard_gradient(*given):
    done.append(1)
    if len(done) == int(sys.argv[1]):
        os.kill(os.getpid(), int(sys.argv[2]))
    return honest(*given)
step.Workspace.shard_gradient = shard_gradient
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("recheck") / "project")
    train(project, small_config(steps=4, commit="parts"), threads=2)
    audit(project, "r", samples=9, threads=2)
    return project


@pytest.fixture
def project(made: Project, tmp_path: Path) -> Project:
    shutil.copytree(made.root, tmp_path / "project")
    return Project.find(tmp_path / "project")


@pytest.fixture
def alice(project: Project, tmp_path: Path) -> Signer:
    return stranger(project, tmp_path / "alice")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the shards that are computed; a point is kept after each."""
    monkeypatch.setattr(replay_work, "INTERVAL", 0.0)
    monkeypatch.setattr(replay_work, "_SHARE", 0.0)
    return counted(monkeypatch)


def stop_at(project: Project, auditor: Signer, index: int, shard: int) -> None:
    """A recheck that is stopped while it computes its `shard`-th shard."""
    calls: list[int] = []
    honest = Workspace.shard_gradient

    def shard_gradient(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == shard:
            raise KeyboardInterrupt
        return honest(*given)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Workspace, "shard_gradient", shard_gradient)
        recheck(LocalVenue(project, auditor), str(index), threads=2)


def kept(project: Project) -> Path:
    (folder,) = (project.root / "audits").glob("recheck-*")
    return folder


def signed(project: Project, entry: int | None) -> dict[str, Any]:
    """What a recheck says, without where and when it was made."""
    said = predicate(project, entry or 0)
    return {name: value for name, value in said.items() if name != "observed"}


@pytest.mark.parametrize(("number", "shard"), [(signal.SIGKILL, 5), (signal.SIGTERM, 8)])
def test_a_killed_recheck_goes_on_to_the_same_entry(
    project: Project, alice: Signer, tmp_path: Path, computed: list[int], number: int, shard: int
) -> None:
    index = str(newest_audit(project))
    words = [
        "--project",
        str(project.root),
        "audit",
        "--recheck",
        index,
        "--key",
        str(tmp_path / "alice" / "alice.pem"),
    ]
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(shard), str(int(number)), *words], cwd=root)
    assert killed.returncode == -number
    found = recheck(LocalVenue(project, alice), index, threads=2)
    assert found.resumed and (found.result, found.steps) == ("confirmed", 4)
    assert len(computed) == SHARDS - (shard - 1)  # nothing is computed twice
    assert not list((project.root / "audits").iterdir())
    again = recheck(LocalVenue(project, alice), index, threads=1)
    assert not again.resumed and signed(project, again.entry) == signed(project, found.entry)


def test_a_false_audit_is_refuted_after_a_stop(project: Project, alice: Signer, computed: list[int]) -> None:
    """The key of the transcript is the audit's: what is kept serves it, whatever it is worth."""
    forged = forge(project, alice, lambda said: None)  # copied from the honest one
    own = project.signer("auditor")
    stop_at(project, own, forged, 9)
    computed.clear()
    found = recheck(project, str(forged), threads=2)
    assert found.resumed and found.result == "refuted" and len(computed) == SHARDS - 8


def test_it_goes_on_on_the_way_to_where_the_audit_started(project: Project, alice: Signer, computed: list[int]) -> None:
    """Steps that are in no transcript, since the stored state that the audit started from is not here."""
    index = newest_audit(project)
    shutil.rmtree(state_folder(project.runs_dir / "r", 2))
    stop_at(project, alice, index, 6 + 5)  # the first unit, then step 2 on the way to the state after it
    computed.clear()
    found = recheck(LocalVenue(project, alice), str(index), threads=2)
    assert found.resumed and found.result == "confirmed" and len(computed) == 6 + 6 + 6 - 10


def test_what_the_rechecker_did_not_sign_for_this_audit_is_not_taken_over(
    project: Project, alice: Signer, computed: list[int]
) -> None:
    """Neither a stranger's progress nor his own of another audit makes a confirmation that nothing was computed for."""
    index = newest_audit(project)
    stop_at(project, alice, index, 9)
    folder = kept(project)
    text, _, _ = (folder / "progress.json").read_bytes().rpartition(b"\n")
    mallory = generate("auditor")
    other = ReplayWork(folder, bytes(32), mallory)
    for data in (
        text + b"\n" + mallory.sign(other._signed(text)).hex().encode("ascii"),
        text + b"\n" + alice.sign(ReplayWork(folder, bytes(32), alice)._signed(text)).hex().encode("ascii"),
    ):
        (folder / "progress.json").write_bytes(data)
        computed.clear()
        found = recheck(LocalVenue(project, alice), str(index), threads=2)
        assert not found.resumed and found.result == "confirmed" and len(computed) == SHARDS
        folder.mkdir()
    # His own progress of the honest audit says nothing of a forged one.
    shutil.rmtree(folder)
    stop_at(project, alice, index, 9)
    saved = {path.name: path.read_bytes() for path in kept(project).iterdir()}
    shutil.rmtree(kept(project))
    bob = stranger(project, project.root / "bob")
    forged = forge(project, bob, lambda said: None)
    stop_at(project, alice, forged, 2)
    for name, data in saved.items():
        (kept(project) / name).write_bytes(data)
    computed.clear()
    found = recheck(LocalVenue(project, alice), str(forged), threads=2)
    assert not found.resumed and found.result == "refuted" and len(computed) == SHARDS


@pytest.mark.parametrize(
    ("name", "change", "again"),
    [
        ("point-*.safetensors", lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], 6),  # the unit begins anew
        ("transcript.bin", lambda data: data[:-1] + bytes([data[-1] ^ 1]), SHARDS),
    ],
)
def test_what_is_damaged_costs_time_and_nothing_else(
    project: Project, alice: Signer, computed: list[int], name: str, change: Callable[[bytes], bytes], again: int
) -> None:
    index = newest_audit(project)
    stop_at(project, alice, index, 9)
    (path,) = kept(project).glob(name)
    path.write_bytes(change(path.read_bytes()))
    computed.clear()
    found = recheck(LocalVenue(project, alice), str(index), threads=2)
    assert found.result == "confirmed" and len(computed) == again


def test_a_recheck_of_parts_goes_on_with_the_part_that_comes_next(
    project: Project, alice: Signer, computed: list[int]
) -> None:
    index = audit(project, "r", steps=(1, 4), part="shard:1", threads=2).entry or 0
    computed.clear()
    assert recheck(LocalVenue(project, alice), str(index), threads=2).result == "confirmed"
    every = len(computed)
    stop_at(project, alice, index, 6)  # 1 shard for step 1; step 1 and 1 shard for step 2
    computed.clear()
    found = recheck(LocalVenue(project, alice), str(index), threads=2)
    assert found.resumed and found.result == "confirmed" and len(computed) == every - 5


def test_a_strangers_recheck_over_http_goes_on(
    project: Project, alice: Signer, tmp_path: Path, computed: list[int]
) -> None:
    """What he keeps lies beside his mirror of the log."""
    index = str(newest_audit(project))
    honest = Workspace.shard_gradient

    def shard_gradient(*given: Any) -> Any:
        if len(computed) == 7:
            raise KeyboardInterrupt
        return honest(*given)

    with serving(project) as url, Remote(url) as remote:
        venue = RemoteVenue(remote, tmp_path / "work", tmp_path / "alice" / "trust.toml", alice)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Workspace, "shard_gradient", shard_gradient)
            recheck(venue, index, threads=2)
        computed.clear()
        venue = RemoteVenue(remote, tmp_path / "work", tmp_path / "alice" / "trust.toml", alice)
        found = recheck(venue, index, threads=2)
    assert found.resumed and found.result == "confirmed" and len(computed) == SHARDS - 7
    assert not list((tmp_path / "work" / "audits").iterdir())


def test_the_command_says_that_it_went_on(
    project: Project, alice: Signer, tmp_path: Path, computed: list[int], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(project.root)
    words = ["audit", "--recheck", str(newest_audit(project)), "--key", str(tmp_path / "alice" / "alice.pem")]
    with monkeypatch.context() as patch:
        patch.setattr("bitwitness.trainer.auditing.recheck.machine_fault", _interrupted)
        assert main(words) == 130
    assert "give the same command again" in capsys.readouterr().err
    stop_at(project, alice, newest_audit(project), 4)
    assert main(words) == 0
    assert "went on with the recheck that was stopped before" in capsys.readouterr().err


def _interrupted(threads: int) -> None:
    raise KeyboardInterrupt
