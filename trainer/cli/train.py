"""`ledger train`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from signal import SIGINT
from typing import Annotated

import typer

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import emit_json, note, say
from bitwitness.ledger.errors import Stopped

from ..config import load_config
from ..run import RunResult
from ..run import train as run_train
from ..start import model_of
from .options import AtOnce, Threads, cores
from .progress import training


def train(
    config: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run's configuration.")],
    name: Annotated[str | None, typer.Option(help="Name of the run, instead of the file's run.name.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run from its last stored state.")] = False,
    threads: Threads = None,
    windows_at_once: AtOnce = 0,
    as_json: JsonOption = False,
) -> None:
    """Train, and append one signed entry per step to the ledger.

    Ctrl-C and SIGTERM end it after the step in hand with a signed record, and exit status 130 or 143; --resume then
    continues to the same bits.

    Example: ledger train run.toml --threads 2
    """
    project = current_project()
    resolved = load_config(config, name=name, model_of=lambda start: model_of(project, start))
    with training(resolved.run.steps) as report:
        result = run_train(
            project,
            resolved,
            threads=threads or cores(),
            windows_at_once=windows_at_once,
            resume=resume,
            report=report,
        )
    if as_json:
        emit_json(asdict(result))
    else:
        for line in _run_lines(result):
            say(line)
    if result.outcome == "completed":
        note(f"next: ledger audit {shlex.quote(result.name)} --sample 3")
    if result.outcome == "interrupted":
        # Never 0: what a shell does next would take half a run for a whole one.
        raise Stopped(
            f"stopped after step {result.step}; `{_again(config, name)}` continues", result.stopped_by or SIGINT
        )


def _again(config: Path, name: str | None) -> str:
    """The command that continues a run, as a shell takes it."""
    return shlex.join(["ledger", "train", str(config), *(() if name is None else ("--name", name)), "--resume"])


def _run_lines(result: RunResult) -> tuple[str, ...]:
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    held_out = "" if result.held_out is None else f", held-out {result.held_out:.4f} nats/token"
    return (
        f"{result.name} {result.outcome} at step {result.step}{loss}{held_out}",
        f"run {result.run}",
        f"weights {result.weights}",
    )
