"""Our side of the step benchmarks: the whole audited step, hash, signature and append included."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.trainer import records
from bitwitness.trainer.config import RunConfig, UserModel, parse_config
from bitwitness.trainer.data import BuildOptions, Dataset, WindowStream, build
from bitwitness.trainer.data import record as record_datasets
from bitwitness.trainer.models import own_model
from bitwitness.trainer.models.presets import PRESETS
from bitwitness.trainer.state import State, initial_state
from bitwitness.trainer.step import Workspace, step

from ..trainer.own_models import LLAMA


def config_for(preset: str, window: int, windows: int, precision: str = "fp32") -> RunConfig:
    return parse_config(
        {
            "run": {"name": "bench", "steps": 1000, "precision": precision},
            "data": {"train": "text", "window": window, "windows_per_shard": windows},
            "model": {"preset": preset},
        },
        where="bench",
    )


def captured_config(preset: str, window: int, windows: int, precision: str) -> RunConfig:
    """The same run of the same decoder as a model of one's own, made of bitwitness.kernels.nn: it has the same bits."""
    table = config_for(preset, window, windows, precision).model_dump(exclude_none=True, by_alias=True)
    return parse_config(table | {"model": {"module": "llama.py:Llama", "arguments": PRESETS[preset]}}, where="bench")


class AuditedTrainer:
    """Trains one run of a project; `parts` holds the seconds of each step's computing, hashing and appending."""

    def __init__(
        self, config: RunConfig, project: Project, writer: RunWriter, workspace: Workspace, state: State
    ) -> None:
        data = Dataset.open(project.data_dir, "text")
        self.config, self.project, self.writer, self.workspace = config, project, writer, workspace
        self.stream = WindowStream(data, config.data.window, config.run.seed)
        self.state = state
        self.parts: list[tuple[float, float, float]] = []

    def step(self) -> None:
        began = time.perf_counter()
        record = step(self.state, self.stream, self.workspace)
        computed = time.perf_counter()
        commitment = self.state.commit()
        if self.workspace.ranks is not None:
            self.workspace.ranks.agree(record.step, commitment.weights)
        hashed = time.perf_counter()
        observed = {"seconds_us": round((hashed - began) * 1e6), "time": rfc3339.now()}
        computed_step = records.computed_step(record, commitment)
        self.writer.append("step", {"computed": computed_step, "observed": observed})
        ended = time.perf_counter()
        self.parts.append((computed - began, hashed - computed, ended - hashed))


@contextmanager
def audited_trainer(config: RunConfig, folder: Path, threads: int) -> Iterator[AuditedTrainer]:
    """Begin a run in a new project in `folder`, on a text that no model learns at once."""
    project = Project.create(folder)
    text = folder / "text.txt"
    text.write_bytes(b"".join(b"%d bottles of beer on the wall, " % n for n in range(20000)))
    build_text(project, text)
    data = Dataset.open(project.data_dir, "text")
    own = None
    if isinstance(config.model, UserModel):
        (folder / config.model.file).write_text(LLAMA)
        own = own_model.load(folder, config)
    workspace = Workspace(config, threads, captured=None if own is None else own.programs)
    with project.open_ledger(writable=True) as ledger:
        uses = [records.dataset_use(data, "train")]
        rope = records.rope_digest(workspace.programs.tables)
        state = initial_state(config, workspace.layout)
        predicate = records.genesis(config, uses, ledger.origin, state.commit(), rope, {"kind": "seeded"}, own)
        predicate["observed"] = records.observed(records.new_host_id(), threads)
        writer = RunWriter.begin(ledger, project.signer("trainer"), predicate)
        yield AuditedTrainer(config, project, writer, workspace, state)


def build_text(project: Project, text: Path) -> None:
    """Build the dataset `text` and put its entry into the project's ledger."""
    build(project.data_dir, [str(text)], BuildOptions(name="text", held_out="0"), signer=project.signer("trainer"))
    with project.open_ledger(writable=True) as ledger:
        record_datasets(ledger, [Dataset.open(project.data_dir, "text")])
