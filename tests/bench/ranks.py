"""`ranks_vs_threads`: a step of two ranks with one thread each over one of one rank with two threads, in turns.

Both have the same shards and give the same bits; ranks exchange gradients and compare weights.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bitwitness.trainer.cluster.local_ranks import LocalRanks
from bitwitness.trainer.cluster.rank_start import Terms
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.models.arithmetic import arithmetic
from bitwitness.trainer.stop import Stop

from .audited import audited_trainer
from .interleaved import THREADS, interleave, ratio


def bench_ranks(
    preset: str = "small", *, window: int = 512, windows: int = 2, ranks: int = 2, rounds: int = 15, rest: float = 0.4
) -> dict[str, Any]:
    """The ratio and the medians in seconds, with a shard of `windows` windows for each rank."""
    config = parse_config(
        {
            "run": {"name": "bench", "steps": 1000},
            "data": {"train": "text", "window": window, "windows_per_shard": windows, "shards": ranks},
            "model": {"preset": preset},
        },
        where="bench",
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        alone = stack.enter_context(audited_trainer(config, Path(folder) / "alone", THREADS))
        shared = stack.enter_context(audited_trainer(config, Path(folder) / "shared", max(1, THREADS // ranks)))
        company = LocalRanks(shared.project, ranks, THREADS, 0, 600.0)
        terms = Terms(config, shared.stream.dataset.commitment, arithmetic(config), None)
        shared.workspace.ranks = leader = stack.enter_context(company.lead(terms, Stop()))
        seconds = interleave({"threads": alone.step, "ranks": shared.step}, rounds, rest=rest)
        leader.end("completed", None)
    if alone.state.commit() != shared.state.commit():
        raise AssertionError("ranks and threads give other bits")
    return {
        "ranks_vs_threads": round(ratio(seconds["ranks"], seconds["threads"]), 3),
        "ranks": ranks,
        "seconds": {name: median(values) for name, values in seconds.items()},
    }
