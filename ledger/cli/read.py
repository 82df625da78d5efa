"""`ledger log` and `ledger show`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from ..merkle import MAX_SIZE
from ..sqlite.lock import being_written
from . import output
from .options import JsonOption, current_project


def log(
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only entries of this run (name or hash).")] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only entries of this kind, e.g. step.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only the last N of them.")] = None,
    json_output: JsonOption = False,
) -> None:
    """List the ledger's entries, oldest first.

    Example: ledger log --run demo --kind step --limit 10
    """
    from ..browse import list_entries  # sqlite-utils takes 0.15 s to import

    with current_project().open_ledger() as ledger:
        # More entries than a ledger can have are all of them; SQLite's integers end below Python's.
        most = None if limit is None else min(limit, MAX_SIZE)
        found = list_entries(ledger, run=run, kind=kind, limit=most)
        if json_output:
            output.emit_json_list(item.to_json() for item in found)
            return
        rows = [(item.index, item.time, item.kind, item.run, item.summary(), item.hash[:16]) for item in found]
        output.emit_table(("index", "time", "kind", "run", "what", "hash"), rows)


def show(
    what: Annotated[str, typer.Argument(metavar="INDEX|HASH|RUN", help="Hashes may be cut to 8 or more digits.")],
    raw: Annotated[bool, typer.Option("--raw", help="Only the signed bytes of the entry, exactly.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Show one entry in full, or what is known of a run.

    Example: ledger show 12
    """
    from ..browse import listed, run_summary
    from ..which_entry import find_entry, is_index

    with current_project().open_ledger() as ledger:
        run = None if is_index(ledger, what) else ledger.find_run(what)
        index = find_entry(ledger, what if run is None else run, "a run or an entry")
        item = listed(ledger, index)
        if raw:
            sys.stdout.buffer.write(ledger.entry(index))
            return
        facts = run_summary(ledger, run) if run is not None else None
        if facts is not None and facts["status"] == "running" and not being_written(ledger.path):
            facts["status"] = f"not finished; `ledger train RUN.TOML --resume` of {facts['name']} goes on"
    if json_output:
        answer = item.to_json()
        output.emit_json(answer if facts is None else {"run": facts, "genesis": answer})
        return
    if facts is not None:
        output.emit_fields(facts)
        return
    output.emit_fields(
        {
            "index": item.index,
            "kind": item.kind,
            "hash": item.hash,
            "run": item.run,
            "signer": item.predicate["signer"],
            "what": item.summary(),
        }
    )
    print(json.dumps(item.statement, indent=2, ensure_ascii=True))
