"""`operators`: every operator against what PyTorch has for it, at the shapes of a step.

Wall seconds are medians of turns; CPU seconds are the process's own, one thread on each side, least of the rounds:
they say something on a busy machine as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bitwitness.trainer.config import RunConfig

from .interleaved import THREADS, interleave, ratio
from .module_cases import module_cases
from .one_operator import Case, executor
from .step_cases import step_cases


def cases(config: RunConfig) -> dict[str, Callable[[], Case]]:
    """Every operator there is, at the shapes of a step of `config`."""
    return step_cases(config) | module_cases(config)


def bench_operators(config: RunConfig, rounds: int, only: tuple[str, ...] = ()) -> dict[str, dict[str, float]]:
    """By operator: the ratio of medians at two threads, that of least CPU seconds at one, and our milliseconds."""
    return {op: _measure(op, make(), rounds) for op, make in cases(config).items() if not only or op in only}


def _measure(op: str, case: Case, rounds: int) -> dict[str, float]:
    operands, attributes, theirs = case
    torch.set_num_threads(THREADS)
    contestants = {"ours": executor(op, operands, attributes, THREADS), "torch": theirs}
    seconds = interleave(contestants, rounds, rest=0.02)
    torch.set_num_threads(1)
    contestants["ours"] = executor(op, operands, attributes, 1)
    least = {name: _least_cpu(run, rounds) for name, run in contestants.items()}
    torch.set_num_threads(THREADS)
    return {
        "ratio": round(ratio(seconds["ours"], seconds["torch"]), 3),
        "cpu_ratio": round(least["ours"] / least["torch"], 3),
        "ms": round(1000 * sorted(seconds["ours"])[len(seconds["ours"]) // 2], 3),
    }


def _least_cpu(run: Callable[[], object], rounds: int) -> float:
    """CPU seconds of one call: the least of the rounds, each long enough for the clock."""
    run()
    began = time.process_time()
    run()
    count = max(1, round(0.005 / max(time.process_time() - began, 1e-6)))
    least = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(count):
            run()
        least = min(least, (time.process_time() - began) / count)
    return least


def table(results: dict[str, dict[str, float]]) -> str:
    """The results as a table of Markdown."""
    lines = ["| operator | over torch, 2 threads | over torch, CPU seconds of 1 thread | ms |", "|---|---|---|---|"]
    lines += [
        f"| `{op}` | {row['ratio']:.2f} | {row['cpu_ratio']:.2f} | {row['ms']:.2f} |" for op, row in results.items()
    ]
    return "\n".join(lines) + "\n"
