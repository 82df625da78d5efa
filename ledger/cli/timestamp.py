"""`ledger timestamp`: have an RFC 3161 authority stamp the newest checkpoint, and check such a stamp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import timestamp
from ..checkpoint import parse_checkpoint
from ..errors import BitwitnessError
from ..files import rfc3339
from ..files.user_files import read_file, write_file
from ..note import parse_note
from .options import JsonOption, current_project
from .output import emit_json, note

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="RFC 3161 timestamps of checkpoints.")

_NOTE_LIMIT = 1 << 20
RootsOption = Annotated[Path, typer.Option("--ca", metavar="PEM", help="The certificates that you trust.")]


@app.command("get")
def get(
    url: Annotated[str, typer.Argument(metavar="URL", help="The authority's address.")],
    ca: RootsOption,
    json_output: JsonOption = False,
) -> None:
    """Have the newest checkpoint stamped, check the answer, and write timestamps/SIZE.note and SIZE.tsr.

    Example: ledger timestamp get https://tsa.example/ --ca tsa-roots.pem
    """
    project = current_project()
    with project.open_ledger() as ledger:
        newest = ledger.latest_checkpoint()
    if newest is None:
        raise BitwitnessError("the ledger has no checkpoint yet; `ledger checkpoint` signs one")
    roots = timestamp.load_roots(read_file(ca, timestamp.LIMIT))
    answer = timestamp.ask(url, newest.encode())
    time = timestamp.check(answer, newest.encode(), roots)
    size = parse_checkpoint(parse_note(newest).text).size
    folder = project.root / "timestamps"
    folder.mkdir(exist_ok=True)
    write_file(folder / f"{size}.note", newest)
    write_file(folder / f"{size}.tsr", answer)
    _report(size, rfc3339.text(time), json_output)
    note(f"wrote {folder / f'{size}.note'} and {size}.tsr")


@app.command("verify")
def verify(
    checkpoint: Annotated[Path, typer.Argument(metavar="NOTE", help="The checkpoint's file.")],
    answer: Annotated[Path, typer.Argument(metavar="TSR", help="The authority's answer.")],
    ca: RootsOption,
    json_output: JsonOption = False,
) -> None:
    """Check that an authority stamped these very bytes, and say when. Exit code 1 if it did not.

    That the log signed the checkpoint, `ledger verify` says.

    Example: ledger timestamp verify timestamps/97.note timestamps/97.tsr --ca tsa-roots.pem
    """
    text = read_file(checkpoint, _NOTE_LIMIT)
    roots = timestamp.load_roots(read_file(ca, timestamp.LIMIT))
    time = timestamp.check(read_file(answer, timestamp.LIMIT), text, roots)
    size = parse_checkpoint(parse_note(text.decode("utf-8", "replace")).text).size
    _report(size, rfc3339.text(time), json_output)


def _report(size: int, time: str, json_output: bool) -> None:
    if json_output:
        emit_json({"size": size, "time": time})
        return
    print(f"checkpoint of {size} entries existed by {time}")
