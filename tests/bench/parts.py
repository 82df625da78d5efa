"""`parts_overhead`: what `commit = "parts"` costs: the time of an audited step with it over one without, in turns."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bitwitness.trainer.config import parse_config

from .audited import audited_trainer
from .interleaved import THREADS, interleave, ratio


def bench_parts(
    preset: str = "small", *, window: int = 512, windows: int = 1, shards: int = 4, rounds: int = 15, rest: float = 0.4
) -> dict[str, Any]:
    """The ratio and the medians in seconds, with `shards` shards of `windows` windows each."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        trainers = {}
        for commit in ("step", "parts"):
            config = parse_config(
                {
                    "run": {"name": "bench", "steps": 1000, "commit": commit},
                    "data": {"train": "text", "window": window, "windows_per_shard": windows, "shards": shards},
                    "model": {"preset": preset},
                },
                where="bench",
            )
            trainers[commit] = stack.enter_context(audited_trainer(config, Path(folder) / commit, THREADS))
        seconds = interleave({name: trainer.step for name, trainer in trainers.items()}, rounds, rest=rest)
    return {
        "parts_overhead": round(ratio(seconds["parts"], seconds["step"]), 3),
        "seconds": {name: median(values) for name, values in seconds.items()},
        "shards": shards,
    }
