"""Contestants that take turns, so that whatever else the machine does meets them all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import geometric_mean, median

THREADS = 2


def interleave(
    contestants: Mapping[str, Callable[[], object]], rounds: int, *, rest: float, warm_up: int = 2
) -> dict[str, list[float]]:
    """Call each once per round, in turn; return the seconds of every call after the warm-up, by contestant.

    `rest` seconds pass after each call: worker threads spin for a while after their work, and would slow the next one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warm_up + rounds):
        for name, run in contestants.items():
            began = time.perf_counter()
            run()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - began)
            time.sleep(rest)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over median."""
    return median(ours) / median(theirs)


def mean_ratio(ratios: list[float]) -> float:
    """The geometric mean: a shape that is twice as fast and one that is half as fast cancel."""
    return geometric_mean(ratios)
