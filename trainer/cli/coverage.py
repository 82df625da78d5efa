"""`ledger coverage`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any

import typer

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import counted
from bitwitness.ledger.errors import BitwitnessError

from ..ancestry import LineCoverage, line_coverage
from ..auditing.coverage import FRACTIONS, Coverage, Turn, open_coverage

_CELLS = 60
_SHADES = "░▒▓█"


def coverage(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or the hash of its genesis.")],
    auditor: Annotated[
        str | None, typer.Option(metavar="KEYID", help="Whose turn to show. The project's auditor if not given.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Also the runs that it goes on from, as one history.")
    ] = False,
    count: Annotated[int, typer.Option("--next", min=0, help="How many intervals to name that are next.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Show which steps of a run were audited by how many trusted auditors, and what to audit next.

    Auditors share a run by the hash of their keys: each interval has an owner, who is named by everyone alike.

    Example: ledger coverage demo

    Example: ledger coverage tuned --history
    """
    project = current_project()
    me = auditor or project.signer("auditor").keyid
    with project.open_ledger() as ledger:
        line = line_coverage(project, ledger, run) if history else LineCoverage((open_coverage(project, ledger, run),))
    if me not in line.runs[0].auditors:
        raise BitwitnessError(f"{me} is not the keyid of an auditor in this ledger; `ledger key list` shows them")
    turns = line.next_turns(me, count)
    if as_json:
        told = line.to_json() if history else line.runs[0].to_json()
        typer.echo(json.dumps({**told, "auditor": me, "next": [_turn_json(*t, history) for t in turns]}, indent=2))
        return
    for one in line.runs:
        for text in _lines(one, history=history):
            typer.echo(text)
    if history and len(line.runs) > 1:
        for text in _together(line):
            typer.echo(text)
    for one, turn in turns:
        typer.echo(_turn_line(turn, me, f" of run {one.name}" if history else "", " --history" if history else ""))
    if count and not turns:
        typer.echo(f"next for auditor {me[:16]}…: nothing, it has covered every step")


def _turn_json(one: Coverage, turn: Turn, history: bool) -> dict[str, Any]:
    run = {"run": one.run} if history else {}
    return {**run, "first": turn.first, "last": turn.last, "covered": turn.covered, "rank": turn.rank}


def _together(line: LineCoverage) -> Iterator[str]:
    yield f"all {len(line.runs)} runs as one history: {line.covered} of {counted(line.steps, 'step')} covered"
    if line.steps:
        for f in FRACTIONS:
            yield f"{f:.1%} tampered steps would have been met with probability {line.caught(f):.2f} scattered"


def _lines(found: Coverage, *, history: bool) -> Iterator[str]:
    yield (
        f"run {found.name}: {counted(found.steps, 'step')} in {counted(len(found.intervals), 'interval')}, "
        f"audits that count: {len(found.counted)}"
    )
    if found.parent is not None and not history:
        before = f"steps up to {found.first} are in run {found.parent}, or before it"
        yield f"{before}: ledger coverage {found.name} --history"
    if found.steps:
        yield f"{found.first + 1} {bar(found)} {found.last_step}"
        yield "  ░ 0, ▒ 1, ▓ 2, █ 3 or more auditors (each cell: its least covered step)"
    for number, steps in found.histogram().items():
        share = 100 * steps / found.steps if found.steps else 0.0
        auditors, noun = "auditor " if number == 1 else "auditors", "step " if steps == 1 else "steps"
        yield f"{number} {auditors} {steps:>9} {noun} {share:5.1f}%"
    for entry in found.mismatches:
        yield f"entry {entry} found a mismatch; `ledger show {entry}`"
    if found.unknown is not None:
        yield f"audits of parts cover no step here: {found.unknown}"
    for entry, reason in found.refused:
        yield f"entry {entry} does not count: {reason}"
    if found.steps:
        for f in FRACTIONS:
            yield (
                f"{f:.1%} tampered steps would have been met with probability {found.caught(f):.2f} scattered, "
                f"{found.caught_together(f):.2f} in a block"
            )


def bar(found: Coverage) -> str:
    """One character for each step, or for as many as make 60 cells; the shade says by how many it is covered."""
    cells = min(_CELLS, found.steps)
    edges = [found.first + 1 + number * found.steps // cells for number in range(cells + 1)]
    least = [found.least(low, high - 1) for low, high in pairwise(edges)]
    return "".join(_SHADES[min(number, len(_SHADES) - 1)] for number in least)


def _turn_line(turn: Turn, auditor: str, of_run: str, option: str) -> str:
    whose = "its own share" if turn.rank == 0 else f"after {turn.rank} other{'s' if turn.rank > 1 else ''}"
    return (
        f"next for auditor {auditor[:16]}…: steps {turn.first}-{turn.last}{of_run} "
        f"({counted(turn.covered, 'auditor')} so far, {whose}); ledger audit --uncovered{option} takes the first"
    )
