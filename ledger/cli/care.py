"""`ledger fsck` and `ledger rebuild`."""

from __future__ import annotations

import typer

from ..store import Ledger
from . import output
from .options import JsonOption, current_project


def fsck(json_output: JsonOption = False) -> None:
    """Recompute everything in the ledger file from the signed entries, and report each fault with its place.

    Example: ledger fsck
    """
    from ..fsck import examine  # it may start worker processes; other commands need none of it

    project = current_project()
    trust = project.trust()
    if trust is None:
        output.note("no trust.toml: the ledger's own first key and origin are believed")
    report = examine(project.ledger_path, trust)
    if json_output:
        output.emit_json(report.to_json())
    else:
        output.emit_checks(item.to_json() for item in report.checks)
    if report.ledger.faults:
        output.note("signed entries cannot be mended: put the file back from a copy, or from a mirror of this log")
    elif report.faults:
        output.note("what is signed is whole: `ledger rebuild` makes the other tables anew from it")
    raise typer.Exit(report.exit_code)


def rebuild(json_output: JsonOption = False) -> None:
    """Make the derived tables (runs, steps, audits, models …) anew from the signed entries.

    Example: ledger rebuild
    """
    number = Ledger.rebuild(current_project().ledger_path)
    if json_output:
        output.emit_json({"entries": number})
    else:
        print(f"derived all tables from {number} entries")
