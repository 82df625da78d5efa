"""`ledger train` and `ledger audit` as a shell meets them: exit status, and the one line that says what to do."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.project import Project
from bitwitness.trainer.run import Progress, train

from .conftest import Command, make_project, small_config, small_table


def toml(table: dict[str, Any]) -> str:
    lines = []
    for section, fields in table.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
    return "\n".join(lines)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with data, run.toml in it, and the shell in its folder."""
    made = make_project(tmp_path / "project")
    (made.root / "run.toml").write_text(toml(small_table()))
    monkeypatch.chdir(made.root)
    return made


@pytest.fixture
def trained(here: Project, ledger: Command) -> Project:
    assert ledger("train", "run.toml", "--threads", "1").code == 0
    return here


def test_each_command_names_the_next(here: Project, ledger: Command, tmp_path: Path) -> None:
    made = ledger("init", str(tmp_path / "p"))
    assert f"next: cd {tmp_path / 'p'} && ledger data build STDLIB" in made.err
    built = ledger("data", "build", "source", "--name", "again")
    assert built.err.splitlines()[-1] == 'next: ledger train run.toml, with train = "again" in its [data]'
    done = ledger("train", "run.toml", "--threads", "1")
    assert done.err.splitlines()[-1] == "next: ledger audit r --sample 3"
    audited = ledger("audit", "r", "--sample", "3", "--threads", "1")
    assert audited.err == "next: ledger model register r-lm --run r\n"
    for more in ([], ["--history"], ["--plan"]):
        turned = ledger("audit", "r", "--steps", "5:3", *more)
        assert (turned.code, turned.err) == (2, "error: --steps 5:3: the first comes after the last; give 3:5\n")
    policy = ledger("audit", str(here.root), "--policy", str(here.trust_path))
    assert policy.code == 2 and "leave --policy, --out and --work out" in policy.err


def test_a_run_that_was_killed_is_not_said_to_be_running(here: Project, ledger: Command) -> None:
    def during(progress: Progress) -> None:
        if progress.step == 3:
            assert "status         running" in ledger("show", "r").out
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(here, small_config(), threads=1, report=during)
    with here.open_ledger() as opened:
        lock = opened.path.with_name(opened.path.name + ".lock")
    assert lock.read_bytes() == b""
    assert "not finished; `ledger train RUN.TOML --resume` of r goes on" in ledger("show", "r").out
    lock.write_text("999999999\n")  # what a SIGKILL leaves
    assert "not finished" in ledger("show", "r").out
    assert ledger("train", "run.toml", "--threads", "1", "--resume").code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_is_no_success(
    here: Project, ledger: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    @contextmanager
    def stopping(steps: int) -> Iterator[Callable[[Progress], None]]:
        yield lambda progress: os.kill(os.getpid(), number) if progress.step == 3 else None

    with monkeypatch.context() as patch:
        patch.setattr("bitwitness.trainer.cli.train.training", stopping)
        said = ledger("train", "run.toml", "--threads", "1")
    assert said.code == code
    assert said.err.splitlines()[-1] == "stopped after step 3; `ledger train run.toml --resume` continues"
    assert "r interrupted at step 3" in said.out
    assert ledger("train", "run.toml", "--threads", "1", "--resume").code == 0


def test_an_interrupted_audit_says_how_it_goes_on(
    trained: Project, ledger: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bitwitness.trainer.auditing.examiner.Examiner.examine", stop)
        said = ledger("audit", "r", "--threads", "1")
    assert said.code == 130
    assert said.err == "stopped; give the same command again, it goes on where it was\n"
    again = ledger("audit", "r", "--threads", "1")
    assert again.code == 0 and "went on with the audit" in again.err
