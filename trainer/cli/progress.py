"""How far a command is, on stderr: bars for a person at a terminal, a few lines of a long run for a log file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from bitwitness.ledger.cli.output import note

from ..run import Progress as StepProgress

_LINES = 10


@contextmanager
def training(steps: int) -> Iterator[Callable[[StepProgress], None]]:
    """Loss, tokens per second and time left; without a terminal a line each tenth of the run."""
    if not sys.stderr.isatty():
        yield lambda progress: _line(progress, steps)
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=steps, loss="…", rate="…")

        def report(progress: StepProgress) -> None:
            bar.update(task, completed=progress.step, loss=f"{progress.loss:.4f}", rate=_rate(progress))

        yield report


def _line(progress: StepProgress, steps: int) -> None:
    if progress.step == steps or progress.step % max(1, steps // _LINES) == 0:
        note(f"step {progress.step} of {steps}  loss {progress.loss:.4f}  {_rate(progress)}")


def _rate(progress: StepProgress) -> str:
    return "replaying" if progress.replayed else f"{progress.tokens / progress.seconds:,.0f} tokens/s"


@contextmanager
def counting(text: str, unit: str | None = None) -> Iterator[Callable[[int, int], None]]:
    """A bar that goes away when it is done: `report(done, total)`; nothing without a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    end: tuple[ProgressColumn, ...] = (
        (TaskProgressColumn(), TimeRemainingColumn()) if unit is None else (TextColumn(unit),)
    )
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), *end)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report
