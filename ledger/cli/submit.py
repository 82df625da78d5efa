"""`ledger append`: the log's owner takes in what an auditor handed over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..entry.envelope import MAX_ENTRY
from ..exchange.submissions import Receipt, split_file, submit
from ..files.user_files import read_file
from . import output
from .options import JsonOption, current_project

_LIMIT = 64 * (MAX_ENTRY + 1)


def append(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files that `ledger audit --out` wrote.")],
    json_output: JsonOption = False,
) -> None:
    """Append audit entries that enrolled auditors signed elsewhere, and sign a checkpoint over them.

    What the log has already is passed over. Exit code 1 for an entry that does not hold, 2 for one that is not taken;
    those before it are appended, and named.

    Example: ledger append audit-of-demo.jsonl
    """
    project = current_project()
    log = project.signer("log")
    entries = [entry for path in files for entry in split_file(read_file(path, _LIMIT))]
    taken: list[Receipt] = []
    try:
        for entry in entries:
            taken.append(submit(project, log, entry))
            if not json_output:
                print(_told(taken[-1]), flush=True)
    finally:  # where one is not taken, those before it stand in the log all the same
        if json_output:
            output.emit_json([{"entry": item.index, "kind": item.kind, "new": item.new} for item in taken])
        else:
            print(f"{sum(item.new for item in taken)} of {len(entries)} entries appended")


def _told(item: Receipt) -> str:
    return f"entry {item.index}: {item.kind}" + ("" if item.new else ", in the log already")
