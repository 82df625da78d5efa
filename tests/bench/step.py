"""`step_*_vs_*`, `audit_overhead_*`: a whole audited step in each precision, PyTorch eager and compiled, in turns.

`base` and one thread have keys of their own, without a bound.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

from .audited import audited_trainer, config_for
from .eager import EagerTrainer
from .interleaved import THREADS, interleave, ratio

PRECISIONS = ("fp32", "bfp")


def bench_step(
    preset: str,
    window: int,
    windows: int,
    rounds: int,
    *,
    compiled: bool = True,
    threads: int = THREADS,
    suffix: str = "",
) -> dict[str, Any]:
    """Medians in seconds, ratios, and the parts of our steps. `compiled` adds torch.compile, which takes minutes."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ours = {
            precision: stack.enter_context(
                audited_trainer(config_for(preset, window, windows, precision), Path(folder) / precision, threads)
            )
            for precision in PRECISIONS
        }
        rows = ours["fp32"].stream.samples(0, windows)
        ids, targets = (torch.from_numpy(a).long().view(windows, window) for a in (rows.inputs, rows.targets))
        contestants: dict[str, Callable[[], object]] = {name: trainer.step for name, trainer in ours.items()}
        for name in ("eager", "compile") if compiled else ("eager",):
            trainer = EagerTrainer(ours["fp32"].config.model, window, compiled=name == "compile")
            contestants[name] = lambda trainer=trainer: trainer.step(ids, targets)  # type: ignore[misc]
        seconds = interleave(contestants, rounds, rest=0.4)
        overheads, parts = {}, {}
        for name, trainer_ in ours.items():
            compute, digest, append = (median(part) for part in zip(*trainer_.parts[-rounds:], strict=True))
            overheads[f"audit_overhead_{name}{suffix}"] = round((digest + append) / median(seconds[name]), 3)
            parts[name] = {"compute": compute, "hash": digest, "append": append}
    ratios = {
        f"step_{mine}_vs_{theirs}{suffix}": round(ratio(seconds[mine], seconds[theirs]), 3)
        for theirs in ("eager", "compile")
        if theirs in seconds
        for mine in PRECISIONS
    }
    return {
        "ratios": {**ratios, **overheads},
        "seconds": {name: median(values) for name, values in seconds.items()},
        "parts": parts,
        "rounds": rounds,
        "tokens": window * windows,
        "threads": threads,
    }
