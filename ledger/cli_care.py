"""`ledger fsck` and `ledger rebuild`."""

from __future__ import annotations

import typer

from . import cli_output
from .cli_options import JsonOption, current_project
from .store import Ledger


def fsck(json_output: JsonOption = False) -> None:
    """Recompute everything in the ledger file from the signed entries, and report each fault with its place.

    Example: ledger fsck
    """
    from .fsck import examine  # it starts worker processes; other commands need none of it

    report = examine(current_project())
    if json_output:
        cli_output.emit_json(report.to_json())
    else:
        for check in report.checks:
            print(f"{'ok   ' if check.ok else 'WRONG' if check.ok is False else '?    '}  {check.name}: {check.detail}")
        for fault in report.faults:
            print(f"       {fault}")
    raise typer.Exit(report.exit_code)


def rebuild(json_output: JsonOption = False) -> None:
    """Make the derived tables (runs, steps, audits, models …) anew from the signed entries.

    Example: ledger rebuild
    """
    number = Ledger.rebuild(current_project().ledger_path)
    if json_output:
        cli_output.emit_json({"entries": number})
    else:
        print(f"derived all tables from {number} entries")
