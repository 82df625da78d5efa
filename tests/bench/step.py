"""`step_fp32_vs_eager`: the whole audited step (hash, signature and append included) against plain PyTorch."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.trainer import records
from bitwitness.trainer.config import RunConfig, parse_config
from bitwitness.trainer.data import BuildOptions, Dataset, WindowStream, build
from bitwitness.trainer.data import record as record_datasets
from bitwitness.trainer.state import initial_state
from bitwitness.trainer.step import Workspace, step

from .eager import EagerTrainer

THREADS = 2
REST = 0.4  # seconds: worker threads spin for a while after their work, and would slow the other side


def config_for(preset: str, window: int, windows: int) -> RunConfig:
    return parse_config(
        {
            "run": {"name": "bench", "steps": 1000},
            "data": {"train": "text", "window": window, "windows_per_shard": windows},
            "model": {"preset": preset},
        },
        where="bench",
    )


def bench_step(preset: str, window: int, windows: int, rounds: int) -> dict[str, object]:
    """Interleave rounds of both; return medians in seconds, their ratio, and the parts of ours."""
    torch.set_num_threads(THREADS)
    config = config_for(preset, window, windows)
    with tempfile.TemporaryDirectory() as folder:
        return _measure(config, Path(folder), rounds)


def _measure(config: RunConfig, folder: Path, rounds: int) -> dict[str, object]:
    project = Project.create(folder / "project")
    text = folder / "text.txt"
    text.write_bytes(b"".join(b"%d bottles of beer on the wall, " % n for n in range(20000)))
    build_text(project, text)
    data = Dataset.open(project.data_dir, "text")
    stream = WindowStream(data, config.data.window, 0)
    workspace = Workspace(config, THREADS)
    state = initial_state(config, workspace.layout)
    eager = EagerTrainer(config.model, config.data.window)

    ours: list[float] = []
    theirs: list[float] = []
    parts: dict[str, list[float]] = {"compute": [], "hash": [], "append": []}
    with project.open_ledger(writable=True) as ledger:
        uses = [records.dataset_use(data, "train")]
        rope = records.rope_digest(workspace.cos, workspace.sin)
        predicate = records.genesis(config, uses, ledger.origin, state.commit(), rope)
        predicate["observed"] = records.observed(records.new_host_id(), THREADS)
        writer = RunWriter.begin(ledger, project.signer("trainer"), predicate)
        for number in range(rounds + 2):
            rows = stream.samples(state.control.cursor, config.data.windows_per_step)
            shape = (config.data.windows_per_step, config.data.window)
            ids, targets = (torch.from_numpy(a).long().view(shape) for a in (rows.inputs, rows.targets))

            began = time.perf_counter()
            eager.step(ids, targets)
            theirs.append(time.perf_counter() - began)
            time.sleep(REST)

            began = time.perf_counter()
            record = step(state, stream, workspace)
            computed = time.perf_counter()
            commitment = state.commit()
            hashed = time.perf_counter()
            writer.append(
                "step",
                {
                    "computed": records.computed_step(record, commitment),
                    "observed": {"seconds_us": round((hashed - began) * 1e6), "time": records.now()},
                },
            )
            ended = time.perf_counter()
            ours.append(ended - began)
            time.sleep(REST)
            for name, seconds in zip(parts, (computed - began, hashed - computed, ended - hashed), strict=True):
                parts[name].append(seconds)
            if number < 2:  # warm-up: page faults, first touch, caches
                for values in (ours, theirs, *parts.values()):
                    values.clear()
    seconds = {name: median(values) for name, values in parts.items()}
    return {
        "bitwitness_s": median(ours),
        "eager_s": median(theirs),
        "ratio": median(ours) / median(theirs),
        "audit_overhead": (seconds["hash"] + seconds["append"]) / median(ours),
        "parts_s": seconds,
        "rounds": rounds,
        "tokens": config.data.window * config.data.windows_per_step,
        "threads": THREADS,
    }


def build_text(project: Project, text: Path) -> None:
    """Build the dataset `text` and put its entry into the project's ledger."""
    build(project.data_dir, [str(text)], BuildOptions(name="text", held_out="0"), signer=project.signer("trainer"))
    with project.open_ledger(writable=True) as ledger:
        record_datasets(ledger, [Dataset.open(project.data_dir, "text")])
