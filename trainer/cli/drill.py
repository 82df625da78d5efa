"""`ledger drill`: plant faults in copies of a run, and see that audits find them."""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import counted
from bitwitness.ledger.errors import BitwitnessError

from ..drills.drill import DrillResult, small_run
from ..drills.drill import drill as run_drill
from ..drills.drill_faults import KINDS
from .options import Threads, cores


def drill(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run of the project; one made for the drill unless given.")
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help=f"Only this kind: {', '.join(KINDS)}. May be repeated.")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="Units that each audit draws, besides those that always count.")
    ] = 1,
    last: Annotated[int | None, typer.Option(min=4, help="Last step of the copies; the run's unless given.")] = None,
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="Hide them before the fork, in the runs that it goes on from; audits go back to those."
        ),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Hide the faults in the same places again.")] = None,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the copies there, to look at.")] = None,
    threads: Threads = None,
    as_json: JsonOption = False,
) -> None:
    """Plant a fault of each kind in a copy of a run, at a hidden place, and audit the copy until it is found.

    The copies have keys and a log of their own: a drill reads the run and can neither sign nor append to its log. Each
    faulty trainer signs what it computed, so only replays can find it. Exit status: 0 every fault was found, at its
    step and operator; 1 one was not.

    A run that was resumed, goes on from another one, or begins with imported weights is copied as that: with its
    interruptions, with the runs before it, with the import.

    Example: ledger drill

    Example: ledger drill demo --fault moment --sample 3

    Example: ledger drill tuned --history
    """
    kinds = tuple(fault or KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise BitwitnessError(f"--fault {kind}: choose from {', '.join(KINDS)}")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise BitwitnessError(f"--keep {keep}: the folder is not empty")
    with (
        nullcontext(str(keep)) if keep is not None else tempfile.TemporaryDirectory(prefix="bitwitness-drill-") as made
    ):
        folder, workers = Path(made), threads or cores()
        project, name = (current_project(), run) if run is not None else small_run(folder / "honest", workers)
        with Console(stderr=True).status("planting faults") as status:
            results = []
            for result in run_drill(
                project,
                name,
                folder,
                kinds=kinds,
                samples=sample,
                last=last,
                seed=seed,
                history=history,
                threads=workers,
                report=lambda kind: status.update(f"planting a fault: {kind}"),
            ):
                results.append(result)
                if not as_json:
                    for line in _lines(result):
                        typer.echo(line)
    good = sum(result.good for result in results)
    if as_json:
        typer.echo(json.dumps([_json(result) for result in results], indent=2))
    else:
        typer.echo(f"{good} of {len(results)} faults found, at the right step and operator")
    raise typer.Exit(0 if good == len(results) else 1)


def _json(result: DrillResult) -> dict[str, Any]:
    return asdict(result) | {"good": result.good}


def _lines(result: DrillResult) -> list[str]:
    planted = f"{result.kind:<14} planted in step {result.step} of {result.run}:"
    if result.found is None:
        return [f"{planted} NOT FOUND, though every step was replayed"]
    where = "" if result.found == result.step else f" NOT THERE: found at step {result.found},"
    every = (
        "in a unit that every audit replays" if result.always else f"predicted chance {result.predicted:.2f} an audit"
    )
    said = [
        f"{planted}{where} found by audit {result.audits}, each of {counted(result.samples, 'sampled unit')} "
        f"({every}, {result.measured:.2f} of drawn samples)"
    ]
    said += [f"  {line}" for line in result.said]
    if not result.operator:
        said.append("  THE TRACES PART ELSEWHERE than at the fault")
    if result.right:
        said.append(f"  the referee says: {', '.join(result.right)} right")
    return said
