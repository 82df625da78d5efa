"""The bits of three steps in each precision: one file for all machines (tests/golden/run-1.json, run-1-bfp.json)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.project import Project
from bitwitness.trainer import records
from bitwitness.trainer.data import Dataset, WindowStream
from bitwitness.trainer.models.arithmetic import arithmetic
from bitwitness.trainer.state import initial_state
from bitwitness.trainer.step import Workspace, step

from .conftest import small_config


@pytest.mark.parametrize(("precision", "name"), [("fp32", "run-1.json"), ("bfp", "run-1-bfp.json")])
def test_three_steps(project: Project, golden: Callable[[str], Any], tmp_path: Path, precision: str, name: str) -> None:
    file = golden(name)
    config = small_config(precision=precision)
    workspace = Workspace(config, 2)
    data = Dataset.open(project.data_dir, "text")
    file.check("dataset", data.commitment.to_json())
    file.check("config", config.resolved())
    file.check("arithmetic", arithmetic(config))
    file.check("rope", records.rope_digest(workspace.programs.tables))
    state = initial_state(config, workspace.layout)
    file.check("state 0", records.state_fields(state.commit()))
    stream = WindowStream(data, config.data.window, config.run.seed)
    for number in (1, 2, 3):
        record = step(state, stream, workspace)
        file.check(f"step {number}", records.computed_step(record, state.commit()))
