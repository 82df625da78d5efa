"""A real project with a real dataset and a model small enough to train in a moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.project import Project
from bitwitness.trainer.config import RunConfig, parse_config
from bitwitness.trainer.data import BuildOptions, Dataset, build
from bitwitness.trainer.data import record as record_datasets

TEXT = "".join(f"{n} bottles of beer on the wall, {n} bottles of beer.\n" for n in range(400))


def small_table(**run: Any) -> dict[str, Any]:
    """A run of a 2-layer model in seconds: 3 shards of 2 windows, so folds, odd ones and splits all occur."""
    return {
        "run": {"name": "r", "steps": 6, "seed": 7, "state_every": 2, "checkpoint_every": 3, **run},
        "data": {"train": "text", "window": 24, "shards": 3, "windows_per_shard": 2},
        "model": {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "vocabulary": 257},
        "schedule": {"kind": "cosine", "warmup": 2},
    }


def small_config(**run: Any) -> RunConfig:
    return parse_config(small_table(**run), where="test")


def make_project(folder: Path, *, data: str = "text") -> Project:
    """Create a project with a dataset `text`, or called `data` (several documents, some held out), in its ledger."""
    project = Project.create(folder)
    source = folder / "source"
    source.mkdir()
    for number in range(24):
        (source / f"song-{number:02d}.txt").write_text(TEXT[number * 500 : number * 500 + 900])
    build(
        project.data_dir,
        [str(source)],
        BuildOptions(name=data, held_out="0.2"),
        signer=project.signer("trainer"),
    )
    with project.open_ledger(writable=True) as ledger:
        names = [data, f"{data}.held-out"]
        record_datasets(ledger, [Dataset.open(project.data_dir, name) for name in names])
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


@pytest.fixture
def config() -> Callable[..., RunConfig]:
    return small_config


class Said:
    """How a command ended: exit status, stdout and stderr."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def ledger(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call
