"""`ledger mirror` and `ledger monitor`: following somebody else's log."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .options import JsonOption

if TYPE_CHECKING:
    from ..follow.mirror import Update

UrlArgument = Annotated[str, typer.Argument(metavar="URL", help="Where the log is served, or a folder of its tiles.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The copy; made if it is missing.")]
TrustOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The log's trust.toml; needed at first and kept in DIR. What is named counts."),
]


def mirror(
    url: UrlArgument, folder: FolderArgument, policy: TrustOption = None, json_output: JsonOption = False
) -> None:
    """Copy a log by its tiles, check every entry, and hold each checkpoint against the last one seen.

    DIR is a project without keys: `ledger --project DIR serve`, `verify DIR/ledger.db` and `export` work on it. Exit
    code 1 if the log was forked (the evidence is kept in DIR/forks) or is not what it signed, 2 if not reachable or if
    DIR is a copy of another log than FILE pins. What it signed and does not serve is kept in DIR/unserved.

    Example: ledger mirror https://example.org/log copy --policy trust.toml
    """
    from ..follow.mirror import Mirror  # httpx takes a tenth of a second to import
    from ..follow.remote import Remote

    with Remote(url) as remote:
        update = Mirror(folder, policy).update(remote)
    for item in update.unserved:
        output.note(f"note: {item}")
    if json_output:
        output.emit_json(_to_json(update))
        return
    output.say(f"{update.head.origin}: {update.size} entries, {update.size - update.before} new, {update.assurance}")


def monitor(
    url: UrlArgument,
    folder: FolderArgument,
    policy: TrustOption = None,
    max_age: Annotated[
        float | None,
        typer.Option(min=0, metavar="HOURS", help="Alarm if no status entry or witness's cosignature is younger."),
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Take all keys that are enrolled now as known.")] = False,
    every: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Go on until the first alarm, looking so often.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Mirror a log and raise an alarm, exit code 1: a fork, a stale head, an unknown signer, a newly enrolled key.

    Also for times in the future, a log that went back, and entries that it signed and does not serve. The first round
    takes the keys that it finds as known, of a copy that is there already those in it. Exit code 2 if the log cannot be
    reached; with --max-age that, too, is an alarm once the copy is older.

    Example: ledger monitor https://example.org/log copy --max-age 24
    """
    from ..follow.mirror import Mirror
    from ..follow.monitor import told, watch
    from ..follow.remote import Remote, RemoteError
    from ..sqlite.lock import LedgerLocked

    watched = Mirror(folder, policy)
    age = None if max_age is None else max_age * 3600
    while True:
        try:
            with Remote(url) as remote:
                done = watch(watched, remote, max_age=age, accept=accept)
        except (RemoteError, LedgerLocked) as error:  # another look may find it otherwise
            if every is None:
                raise
            output.note(f"error: {error}")
            time.sleep(every)
            continue
        if done.alarms or every is None:
            break
        told(watched, done)
        time.sleep(every)
    if json_output:
        answer = {} if done.update is None else _to_json(done.update)
        output.emit_json({**answer, "alarms": [item.to_json() for item in done.alarms]})
    else:
        for item in done.alarms:
            output.say(f"ALARM  {item.name}: {item.detail}")
        if done.update is not None and not done.alarms:
            output.say(f"{done.update.head.origin}: {done.update.size} entries, no alarm, {done.update.assurance}")
    sys.stdout.flush()
    told(watched, done)
    if done.alarms:
        raise typer.Exit(1)


def _to_json(update: Update) -> dict[str, Any]:
    return {
        "origin": update.head.origin,
        "size": update.size,
        "new": update.size - update.before,
        "root": update.head.root.hex(),
        "witnessed": update.witnessed,
        "assurance": update.assurance,
        "unserved": [{"size": item.head.size, "path": str(item.path)} for item in update.unserved],
    }
