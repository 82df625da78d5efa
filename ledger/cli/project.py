"""`ledger init` and `ledger serve`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..project import Project
from . import output
from .options import JsonOption, current_project, new_passphrase


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Made if it is missing.")] = Path("."),
    encrypt: Annotated[
        bool,
        typer.Option("--encrypt", help="Encrypt the keys; asks for a passphrase, or takes $BITWITNESS_PASSPHRASE."),
    ] = False,
    passphrase_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Encrypt the keys with the first line of this file (mode 0600).")
    ] = None,
    origin: Annotated[
        str | None, typer.Option(help="The log's name; unique by itself unless given, e.g. example.org/log.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Make a project: keys, a ledger that enrols them, a trust policy, a run to start from.

    Writes bitwitness.toml, ledger.db, keys/, data/, runs/, models/, trust.toml and run.toml, and replaces nothing.

    Example: ledger init demo && cd demo
    """
    passphrase = new_passphrase(file=passphrase_file) if encrypt or passphrase_file else None
    project = Project.create(folder, passphrase=passphrase, origin=origin)
    with project.open_ledger() as ledger:
        origin = ledger.origin
    if json_output:
        output.emit_json({"project": str(project.root), "origin": origin})
        return
    print(f"made project {project.root}, log {origin}")
    output.note(
        f"keep {project.key_path('root')} offline: it alone enrols keys, and daily work does not need it"
        + ("" if passphrase else "; the keys are not encrypted")
    )
    inside = "" if project.root == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    output.note(f"next: {inside}ledger data build STDLIB --include '*.py' --max-bytes 4M --name pystdlib")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8001,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    public: Annotated[
        bool, typer.Option("--public", help="No SQL, no downloads: for others to see. Implied by another host.")
    ] = False,
    accept_audits: Annotated[
        bool,
        typer.Option(
            "--accept-audits",
            help="Take in what enrolled auditors send, and sign checkpoints over it with the log key.",
        ),
    ] = False,
) -> None:
    """Browse the ledger: runs, steps, audits and models, in Datasette, until Ctrl-C.

    Auditors can read what a replay needs from it: the log, stored states, and data that is public.

    Example: ledger serve --port 8001
    """
    # Datasette takes over a second to import, so only here.
    from ..datasette_plugin import serve as serve_project

    serve_project(
        current_project(), host=host, port=port, open_browser=open_browser, public=public, accept=accept_audits
    )
