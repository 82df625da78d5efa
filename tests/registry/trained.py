"""A small run that was really trained, and its model: for what needs weights that compute something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bitwitness.ledger.project import Project
from bitwitness.registry.register import register
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.config import RunConfig, parse_config
from bitwitness.trainer.data import BuildOptions, Dataset, build
from bitwitness.trainer.data import record as record_datasets
from bitwitness.trainer.run import train

TABLE: dict[str, dict[str, Any]] = {
    "run": {"name": "tiny", "steps": 4, "seed": 3, "state_every": 2, "eval_every": 2},
    "data": {"train": "text", "window": 24, "shards": 2},
    "model": {
        "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "vocabulary": 272, "norm_epsilon": 1e-6,
        "rope_theta": 5000.0, "init_std": 0.1,
    },
    "optimizer": {"learning_rate": 0.02},
}  # fmt: skip
CONFIG: RunConfig = parse_config(TABLE, where="test")
TEXT = "{0} green bottles — standing on the wall. <|endoftext|> {0}\n"


def make(folder: Path, *, run: str = "tiny", data: str = "text") -> Project:
    """A project with one trained run and its model, `tiny-lm` version 1; or with other names."""
    project = Project.create(folder)
    source = folder / "source"
    source.mkdir()
    for number in range(24):
        (source / f"{number:02d}.txt").write_text(TEXT.format(number) * (12 + number))
    options = BuildOptions(name=data, held_out="0.2")
    build(project.data_dir, [str(source)], options, signer=project.signer("trainer"))
    with project.open_ledger(writable=True) as ledger:
        record_datasets(ledger, [Dataset.open(project.data_dir, name) for name in (data, f"{data}.held-out")])
    table = {**TABLE, "run": {**TABLE["run"], "name": run}, "data": {**TABLE["data"], "train": data}}
    train(project, parse_config(table, where="test"), threads=2)
    audit(project, run, samples=9, threads=2)
    register(project, f"{run}-lm", run, license="Apache-2.0")
    return project
