"""A run in block fixed point is trained, interrupted, resumed and audited as any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.history import open_run
from bitwitness.trainer.run import Progress, train

from .conftest import make_project, small_config
from .test_run import roots


class Stop(Exception):
    """Raised in the middle of a run, as a crash would be."""


def stop_after(step: int) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if progress.step == step and not progress.replayed:
            raise Stop

    return report


def test_resumed_and_audited(tmp_path: Path) -> None:
    config = small_config(precision="bfp", eval_every=3, eval_windows=2)
    whole, stopped = make_project(tmp_path / "whole"), make_project(tmp_path / "stopped")
    result = train(whole, config, threads=1)
    assert result.outcome == "completed" and result.held_out is not None
    with pytest.raises(Stop):
        train(stopped, config, threads=3, report=stop_after(5))
    train(stopped, config, threads=2, windows_at_once=1, resume=True)
    assert roots(stopped) == roots(whole) and len(roots(whole)) == 6
    report = audit(stopped, "r", samples=3, threads=1, windows_at_once=1)
    assert report.result == "match"


def test_the_genesis_names_the_precision(project: Project) -> None:
    train(project, small_config(precision="bfp"), threads=2)
    with project.open_ledger() as ledger:
        genesis = open_run(ledger, "r").genesis
    assert genesis["config"]["run"]["precision"] == "bfp"
    assert genesis["config"]["run"]["head_backward"] == "fp32"
