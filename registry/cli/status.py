"""`ledger status`: what the log says now. Signs it, checks it, and writes it for gates elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import counted, emit_checks, emit_json, note
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.files.user_files import write_file

from ..bundles import status_file
from ..checks import exit_code
from ..status import append_status, check_statuses
from .options import WitnessesOption, WitnessOption, cosigner


def status(
    check: Annotated[bool, typer.Option("--check", help="Sign nothing; check all that stand in the ledger.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write it with its proofs, for gates elsewhere.")
    ] = None,
    witness: WitnessOption = None,
    witnesses: WitnessesOption = False,
    json_output: JsonOption = False,
) -> None:
    """Have the log sign what is true now: every revoked key and release, and per run all that was said of it.

    Nothing is signed if nothing happened since the last one. Run it daily and publish the file of --out: a gate whose
    policy has [status] refuses what was revoked since a bundle was made, and a bundle that lacks a later audit.

    Example: ledger status --out status.json
    """
    project = current_project()
    if check:
        with project.open_ledger() as ledger:
            checks = check_statuses(ledger)
        code = exit_code(checks)
        if json_output:
            emit_json({"verified": code == 0, "checks": [item.to_json() for item in checks]})
        else:
            emit_checks(item.to_json() for item in checks)
        raise typer.Exit(code)
    log = project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        index = append_status(ledger, log)
        signed = cosigner(project, witness, witnesses)(ledger, ledger.sign_checkpoint(log))
        said = open_envelope(ledger.entry(index)).statement["predicate"]
        made = None if out is None else status_file.make(ledger, signed).encode()
    if out is not None and made is not None:
        write_file(out, made)
        note(f"wrote {out}")
    if json_output:
        emit_json({"entry": index, **{name: said[name] for name in sorted(said) if name != "signer"}})
        return
    keys, releases = counted(len(said["revoked_keys"]), "key"), counted(len(said["revoked_releases"]), "release")
    told = f"{keys} ended, {releases} revoked, {counted(said['runs']['size'], 'run')}"
    print(f"status {said['sequence']} of {said['time']}, log entry {index}: {told}")
