"""`ledger train`."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from signal import SIGINT
from typing import Annotated

import typer

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import emit_json, note, say
from bitwitness.ledger.errors import Stopped
from bitwitness.ledger.project import Project

from ..cluster.local_ranks import LocalRanks
from ..cluster.rank_start import Place, place_of
from ..cluster.rank_work import ModelOf, work
from ..config import RunConfig, load_config
from ..run import Company, RunResult
from ..run import train as run_train
from ..start import model_of
from .options import AtOnce, RankTimeout, Threads, cores
from .progress import training


def train(
    config: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run's configuration.")],
    name: Annotated[str | None, typer.Option(help="Name of the run, instead of the file's run.name.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run from its last stored state.")] = False,
    threads: Threads = None,
    windows_at_once: AtOnce = 0,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Processes that share each step, and the threads; not in the bits.")
    ] = None,
    rank_timeout: RankTimeout = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Train, and append one signed entry per step to the ledger.

    Ctrl-C and SIGTERM end it after the step in hand with a signed record, and exit status 130 or 143; --resume then
    continues to the same bits.

    A run on several machines is this command on each of them, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
    BITWITNESS_RANKS_KEY set (docs/ranks.md); the ledger and its keys are on that of rank 0.

    Example: ledger train run.toml --threads 2
    """
    project = current_project()
    place = place_of(os.environ, rank_timeout) if ranks is None else None
    threads = threads or (cores() if place is None else max(1, cores() // place.here))
    if place is not None and place.rank:
        _work(project, place, config, name, threads, windows_at_once, as_json)
        return
    resolved = load_config(config, name=name, model_of=lambda start: model_of(project, start))
    company: Company | None = place
    if ranks is not None and ranks > 1:
        company = local = LocalRanks(project, ranks, threads, windows_at_once, rank_timeout)
        threads = local.threads_of(0)
    with training(resolved.run.steps) as report:
        result = run_train(
            project,
            resolved,
            threads=threads,
            windows_at_once=windows_at_once,
            resume=resume,
            company=company,
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
            f"stopped after step {result.step}; `{_again(config, name, ranks)}` continues", result.stopped_by or SIGINT
        )


def _work(
    project: Project, place: Place, config: Path, name: str | None, threads: int, windows_at_once: int, as_json: bool
) -> None:
    """Be another rank than 0."""

    def load(model_of: ModelOf) -> RunConfig:
        return load_config(config, name=name, model_of=model_of)

    worked = work(project, place, threads=threads, windows_at_once=windows_at_once, load=load)
    if as_json:
        emit_json(asdict(worked))
    else:
        say(f"rank {place.rank} of {place.ranks}: {worked.name} {worked.outcome} at step {worked.step}")
    if worked.outcome == "interrupted":
        raise Stopped(f"stopped after step {worked.step}, as rank 0 did", worked.stopped_by or SIGINT)


def _again(config: Path, name: str | None, ranks: int | None = None) -> str:
    """The command that continues a run, as a shell takes it."""
    named = () if name is None else ("--name", name)
    shared = () if ranks is None else ("--ranks", str(ranks))
    return shlex.join(["ledger", "train", str(config), *named, "--resume", *shared])


def _run_lines(result: RunResult) -> tuple[str, ...]:
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    held_out = "" if result.held_out is None else f", held-out {result.held_out:.4f} nats/token"
    return (
        f"{result.name} {result.outcome} at step {result.step}{loss}{held_out}",
        f"run {result.run}",
        f"weights {result.weights}",
    )
