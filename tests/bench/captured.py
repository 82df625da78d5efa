"""`step_captured_vs_builtin`, `step_captured_rss_vs_builtin`: a model of one's own beside the built-in one.

Both are the same decoder in the default precision, once written in trainer/models/model.py, once with
bitwitness.kernels.nn and captured, and their steps have the same bits: so what differs is the cost of a capture.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from .audited import audited_trainer, captured_config, config_for
from .interleaved import THREADS, interleave, ratio
from .rss import WINDOW, peak

PRECISION = "bfp"


def bench_captured(preset: str = "small", *, windows: int = 4, rounds: int = 15, rest: float = 0.4) -> dict[str, Any]:
    """Ratios, medians in seconds and peaks in MB. Raises RuntimeError where the two have other bits."""
    configs = {
        "builtin": config_for(preset, WINDOW, windows, PRECISION),
        "captured": captured_config(preset, WINDOW, windows, PRECISION),
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        trainers = {
            name: stack.enter_context(audited_trainer(config, Path(folder) / name, THREADS))
            for name, config in configs.items()
        }
        seconds = interleave({name: trainer.step for name, trainer in trainers.items()}, rounds, rest=rest)
        if len({trainer.state.commit().digest for trainer in trainers.values()}) != 1:
            raise RuntimeError("the captured model is not the built-in one: their states differ")
    peaks = {"builtin": peak(PRECISION, preset, windows), "captured": peak("captured", preset, windows)}
    return {
        "ratios": {
            "step_captured_vs_builtin": round(ratio(seconds["captured"], seconds["builtin"]), 3),
            "step_captured_rss_vs_builtin": round(peaks["captured"] / peaks["builtin"], 3),
        },
        "seconds": {name: median(values) for name, values in seconds.items()},
        "mb": peaks,
        "rounds": rounds,
        "tokens": WINDOW * windows,
        "threads": THREADS,
    }
