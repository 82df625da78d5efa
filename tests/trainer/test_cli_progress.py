"""What a command says of its progress where no person watches: a few lines of a long run, no bars."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bitwitness.trainer.cli import progress, train
from bitwitness.trainer.run import Progress


def test_without_a_terminal_a_run_says_ten_lines_and_other_work_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.training(100) as report:
        for step in range(1, 101):
            report(Progress(step, 100, 2.5, 1.0, 1e-3, tokens=1000, seconds=0.5, replayed=step < 15))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 10
    assert lines[0] == "step 10 of 100  loss 2.5000  replaying"
    assert lines[-1] == "step 100 of 100  loss 2.5000  2,000 tokens/s"
    with progress.counting("auditing") as count:
        count(1, 2)
    assert capsys.readouterr() == ("", "")


def test_the_hint_after_an_interruption_is_a_whole_command() -> None:
    hint = train._again(Path("my runs/run.toml"), "second")
    assert shlex.split(hint) == ["ledger", "train", "my runs/run.toml", "--name", "second", "--resume"]
    assert train._again(Path("run.toml"), None) == "ledger train run.toml --resume"
    assert train._again(Path("run.toml"), None, 3) == "ledger train run.toml --resume --ranks 3"
