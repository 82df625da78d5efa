"""The run loop on a real ledger: chain, resume after a kill, Ctrl-C, and everything that must be refused."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.submissions import leave
from bitwitness.ledger.merkle import leaf_hash
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.trainer.data import DatasetDamaged, WindowStream
from bitwitness.trainer.history import LedgerNotVerified, open_run, open_verified_run
from bitwitness.trainer.memory import NotEnoughMemory
from bitwitness.trainer.record_check import check_record
from bitwitness.trainer.replay import ReplayMismatch
from bitwitness.trainer.run import Progress, RunFinished, RunNameTaken, RunResult, train
from bitwitness.trainer.state import state_folder
from bitwitness.trainer.step import NotFinite

from .conftest import make_project, small_config


def run(project: Project, *, resume: bool = False, threads: int = 2, at_once: int = 0, **fields: Any) -> RunResult:
    return train(project, small_config(**fields), threads=threads, windows_at_once=at_once, resume=resume)


def kinds(project: Project, name: str = "r") -> list[str]:
    with project.open_ledger() as ledger:
        return [entry.kind for entry in open_run(ledger, name).entries]


def roots(project: Project, name: str = "r") -> list[str]:
    with project.open_ledger() as ledger:
        history = open_run(ledger, name)
    return [history.computed(step)["weights"]["root"] for step in sorted(history.steps)]


def test_a_run_leaves_its_chain(project: Project) -> None:
    result = run(project, eval_every=3, eval_windows=2)
    assert (result.outcome, result.step) == ("completed", 6)
    assert kinds(project) == [
        "run", "eval",
        "step", "step", "state", "step", "eval", "step", "state", "step", "step", "state", "eval",
        "end",
    ]  # fmt: skip
    assert result.loss is not None and result.loss < 6.0
    assert result.held_out is not None


def test_another_project_and_other_threads_give_the_same_roots(tmp_path: Path) -> None:
    a, b = make_project(tmp_path / "a"), make_project(tmp_path / "b")
    run(a, threads=1, at_once=1)
    run(b, threads=3)
    assert roots(a) == roots(b)
    assert len(set(roots(a))) == 6


def stop_after(project: Project, step: int, how: signal.Signals) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own and send it a signal from inside, right after `step`."""
    code = (
        "import os, sys\n"
        "from bitwitness.ledger.project import Project\n"
        "from bitwitness.trainer.run import train\n"
        "from tests.trainer.conftest import small_config\n"
        f"stop = lambda p: os.kill(os.getpid(), {int(how)}) if p.step == {step} else None\n"
        f"print(train(Project.find({str(project.root)!r}), small_config(), threads=1, report=stop).outcome)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])


def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, killed = make_project(tmp_path / "whole"), make_project(tmp_path / "killed")
    run(whole)
    assert stop_after(killed, 5, signal.SIGKILL).returncode == -signal.SIGKILL
    assert kinds(killed)[-2:] == ["state", "step"]
    replayed: list[int] = []

    def watch(progress: Progress) -> None:
        if progress.replayed:
            replayed.append(progress.step)

    result = train(killed, small_config(), threads=2, resume=True, report=watch)
    assert replayed == [5]
    assert result.outcome == "completed"
    assert roots(killed) == roots(whole)
    assert kinds(killed).count("resume") == 1
    assert kinds(killed).count("step") == 6


def test_ctrl_c_ends_after_the_step_in_hand_with_a_signed_record(project: Project) -> None:
    done = stop_after(project, 3, signal.SIGINT)
    assert done.stdout.strip() == "interrupted", done.stderr
    assert kinds(project)[-2:] == ["state", "halt"]
    assert run(project, resume=True).outcome == "completed"


def test_resume_without_any_stored_state_starts_from_the_seed(project: Project) -> None:
    stop_after(project, 3, signal.SIGKILL)
    shutil.rmtree(project.runs_dir)
    assert run(project, resume=True).outcome == "completed"


def test_names_configs_and_ends_are_checked(project: Project) -> None:
    with pytest.raises(BitwitnessError, match="leave out --resume"):
        run(project, resume=True)
    run(project)
    with pytest.raises(RunNameTaken, match="--resume"):
        run(project)
    with pytest.raises(RunFinished, match="last step 6"):
        run(project, resume=True)
    with pytest.raises(BitwitnessError, match=r"run.seed was 7, is 8"):
        run(project, resume=True, seed=8)


def test_resume_falls_back_to_an_older_state(project: Project) -> None:
    stop_after(project, 5, signal.SIGKILL)
    path = state_folder(project.runs_dir / "r", 4) / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert run(project, resume=True).outcome == "completed"
    with project.open_ledger() as ledger:
        assert [entry.predicate["from"] for entry in open_run(ledger, "r").resumes] == [2]


class Killed(Exception):
    """Stands for a kill at one place."""


@pytest.mark.parametrize(("step", "kind"), [(4, "state"), (6, "state"), (6, "eval"), (0, "eval"), (6, "end")])
def test_what_a_kill_left_undone_is_done_by_resume(
    project: Project, monkeypatch: pytest.MonkeyPatch, step: int, kind: str
) -> None:
    fields = {"eval_every": 3, "eval_windows": 2, "commit_optimizer_every": 5}
    honest = RunWriter.append

    def append(self: RunWriter, kind_now: str, predicate: Mapping[str, Any], *subject: Any) -> int:
        if kind_now == kind and predicate["step"] == step:
            raise Killed
        return honest(self, kind_now, predicate, *subject)

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "append", append)
        with pytest.raises(Killed):
            run(project, **fields)
    dead = project.runs_dir / "r" / "states" / "step-00000004.tmp-999999999"
    dead.mkdir(parents=True)
    assert run(project, resume=True, **fields).outcome == "completed"
    assert not dead.exists()
    found = kinds(project)
    assert [found.count(name) for name in ("step", "state", "eval", "end")] == [6, 3, 3, 1]
    assert state_folder(project.runs_dir / "r", 6).is_dir()
    with project.open_ledger() as ledger:
        assert check_record(open_verified_run(project, ledger, "r"), ledger.origin) == []


def test_what_cannot_fit_is_refused_before_anything_is_appended(project: Project) -> None:
    from bitwitness.trainer.config import parse_config

    from .conftest import small_table

    table = small_table()
    table["model"] |= {"width": 2**20, "hidden": 2**20, "layers": 1024, "vocabulary": 2**24}
    with pytest.raises(NotEnoughMemory, match="GiB"):
        train(project, parse_config(table, where="t"), threads=1)
    with pytest.raises(BitwitnessError, match="1 to 256"):
        run(project, threads=257)
    with project.open_ledger() as ledger:
        assert open_run(ledger, "r", missing_ok=True) is None


def test_resume_believes_no_row_that_nobody_signed(project: Project) -> None:
    from .test_audit import edit_rows

    stop_after(project, 3, signal.SIGKILL)
    edit_rows(project, lambda text: text.replace('"clip":"3f', '"clip":"3e'), "bitwitness.dev/step/v1")
    for given in ({"resume": True}, {"name": "another"}):
        with pytest.raises(LedgerNotVerified, match="does not verify"):
            run(project, **given)
    assert kinds(project)[-1] == "step"
    with project.open_ledger() as ledger:
        assert ledger.find_run("another") is None


def test_resume_refuses_steps_that_do_not_replay(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(project, 5, signal.SIGKILL)
    monkeypatch.setattr("bitwitness.trainer.step.Workspace.update", lambda *args: None)
    with pytest.raises(ReplayMismatch, match="step 5"):
        run(project, resume=True)


def test_data_that_does_not_fit(project: Project) -> None:
    from bitwitness.trainer.config import parse_config

    from .conftest import small_table

    table = small_table()
    table["data"]["window"] = 10**6
    with pytest.raises(BitwitnessError, match="window"):
        train(project, parse_config(table, where="t"), threads=1)
    table = small_table()
    table["data"]["train"] = "nothing"
    with pytest.raises(BitwitnessError, match="no dataset nothing"):
        train(project, parse_config(table, where="t"), threads=1)
    table = small_table()
    table["model"]["vocabulary"] = 100
    with pytest.raises(BitwitnessError, match=r"model\.vocabulary = 100 is too small"):
        train(project, parse_config(table, where="t"), threads=1)
    with project.open_ledger() as ledger:
        assert open_run(ledger, "r", missing_ok=True) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_in_the_middle_of_a_run_loses_nothing(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(mount)], capture_output=True).returncode:
        pytest.skip("this machine allows no tmpfs mount")
    try:
        project = make_project(mount / "project")
        filler = mount / "filler"
        free = shutil.disk_usage(mount).free
        filler.write_bytes(bytes(free - 200 * 1024))
        with pytest.raises(BitwitnessError) as caught:
            run(project)
        assert "\n" not in str(caught.value)
        filler.unlink()
        done = kinds(project) if _begun(project) else []
        result = run(project, resume=bool(done))
        assert result.outcome == "completed"
        assert kinds(project).count("step") == 6
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def _begun(project: Project) -> bool:
    with project.open_ledger() as ledger:
        return open_run(ledger, "r", missing_ok=True) is not None


def test_a_run_takes_in_what_auditors_send_meanwhile(project: Project) -> None:
    sent: list[bytes] = []

    def send(progress: Progress) -> None:
        if progress.step == 2:
            with project.open_ledger() as ledger:
                said = {"run": ledger.find_run("r"), "size": ledger.size, "root": ledger.root().hex()}
            said |= {"time": "2026-01-02T03:04:05Z"}
            said |= {"beacon": {"kind": "none"}, "first": 0, "last": 2, "samples": 0}
            sent.append(seal(statement("audit-intent", None, {**said, "signer": auditor.keyid}), auditor))
            leave(project, sent[0])

    auditor = project.signer("auditor")
    train(project, small_config(), threads=1, report=send)
    assert kinds(project)[-1] == "end"
    with project.open_ledger() as ledger:
        index = ledger.find(leaf_hash(sent[0]))
        step = ledger.connection.execute("SELECT entry FROM steps WHERE step = 4").fetchone()[0]
    assert index is not None and index < step


def test_thinned_moments_are_still_committed_where_a_replay_starts(project: Project) -> None:
    from bitwitness.trainer.auditing.audit import audit

    run(project, commit_optimizer_every=100, state_every=4)
    with project.open_ledger() as ledger:
        history = open_run(ledger, "r")
    assert [step for step in sorted(history.steps) if history.state(step).optimizer is not None] == [4, 6]
    assert audit(project, "r", samples=5, threads=1).result == "match"


def test_damaged_data_is_not_trained_on(project: Project) -> None:
    shard = next((project.data_dir / "text").glob("tokens-*"))
    data = bytearray(shard.read_bytes())
    data[::2] = bytes(byte ^ 1 for byte in data[::2])
    shard.write_bytes(data)
    with pytest.raises(DatasetDamaged, match="the ledger commits to"):
        run(project)
    with project.open_ledger() as ledger:  # nothing is recorded, so the same command works once the data is whole
        assert open_run(ledger, "r", missing_ok=True) is None


def test_a_run_whose_data_is_damaged_later_says_how_it_goes_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: WindowStream, first: int, count: int) -> None:
        if first >= 12:
            raise DatasetDamaged("text: damaged")

    with monkeypatch.context() as patch:
        patch.setattr(WindowStream, "check_samples", check)
        with pytest.raises(DatasetDamaged, match="up to step 2: once the data is whole, `ledger train --resume` goes"):
            run(project)
    assert covered(project)
    assert run(project, resume=True).outcome == "completed"


def test_a_run_without_finite_numbers_says_what_to_lower(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_given: object) -> None:
        raise NotFinite(1, math.nan, 1.0)

    monkeypatch.setattr("bitwitness.trainer.run.step", step)
    with pytest.raises(NotFinite, match=r"halted in the log. Lower optimizer.learning_rate"):
        run(project)
    assert kinds(project)[-1] == "halt" and covered(project)


def covered(project: Project) -> bool:
    """Whether the last checkpoint is over every entry."""
    with project.open_ledger() as ledger:
        note = ledger.latest_checkpoint()
        return note is not None and int(note.splitlines()[1]) == ledger.size
