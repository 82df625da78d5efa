"""`ledger export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import cli_output
from .cli_options import JsonOption, current_project
from .tile_export import export_tiles


def export(
    tiles: Annotated[Path, typer.Option("--tiles", metavar="DIR", help="Write the log's tiles (tlog-tiles) there.")],
    json_output: JsonOption = False,
) -> None:
    """Write the log as static files for any web server or bucket: what `ledger serve` answers, byte for byte.

    The folder gets `checkpoint`, the newest signed one, and `tile/`. Later exports into it add what is new.

    Example: ledger export --tiles public/log
    """
    with current_project().open_ledger() as ledger, ledger.snapshot():
        done = export_tiles(ledger, tiles)
    if json_output:
        cli_output.emit_json({"folder": str(tiles), "size": done.size, "written": done.written})
        return
    print(f"{tiles}: {done.size} entries, {done.written} tiles written")
