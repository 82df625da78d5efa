"""`ledger export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..exchange.replay_export import export_run
from ..exchange.tile_export import export_tiles, held
from . import output
from .options import JsonOption, current_project


def export(
    tiles: Annotated[Path, typer.Option("--tiles", metavar="DIR", help="Write the log's tiles (tlog-tiles) there.")],
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Also what an audit of this run reads: stored states, public data. Again for more."
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Write the log as static files for any web server or bucket: what `ledger serve` answers, byte for byte.

    The folder gets `checkpoint`, the newest signed one, and `tile/`; with --run also `replay/`, so that `ledger audit`
    works on it. Later exports into it add what is new.

    Example: ledger export --tiles public/log --run demo
    """
    project = current_project()
    # The ledger is read once the folder is held: what is written last is what stands there.
    with held(tiles), project.open_ledger() as ledger, ledger.snapshot():
        # States and data first: whoever sees the checkpoint then finds what its entries name.
        runs = [export_run(project, ledger, name, tiles) for name in run or []]
        done = export_tiles(ledger, tiles)
    missing = [item for one in runs for item in one.missing]
    if json_output:
        answer = {"folder": str(tiles), "size": done.size, "written": done.written}
        if runs:
            told = [
                {"run": one.run, "states": one.states, "datasets": one.datasets, "bytes": one.bytes} for one in runs
            ]
            answer |= {"runs": told, "missing": missing}
        output.emit_json(answer)
        return
    print(f"{tiles}: {done.size} entries, {output.counted(done.written, 'tile')} written")
    for name, one in zip(run or [], runs, strict=True):
        states, datasets = (
            output.counted(len(many), noun) for many, noun in ((one.states, "stored state"), (one.datasets, "dataset"))
        )
        print(f"run {name}: {states}, {datasets}, {one.bytes} bytes")
    for item in missing:
        output.note(f"note: {item} is not exported")
