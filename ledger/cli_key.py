"""`ledger key`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import cli_output, keys
from .cli_options import JsonOption, current_project, new_passphrase

app = typer.Typer(help="The keys that sign: list the enrolled ones, generate new ones.", no_args_is_help=True)


@app.command("list")
def list_keys(json_output: JsonOption = False) -> None:
    """List the keys that the ledger enrols, with their roles.

    Example: ledger key list
    """
    from .browse import enrolled_keys  # sqlite-utils takes 0.15 s to import

    with current_project().open_ledger() as ledger:
        rows = enrolled_keys(ledger)
    if json_output:
        cli_output.emit_json(rows)
        return
    cli_output.emit_table(
        ("role", "keyid", "entry", "ends at", "name"),
        [(row["role"], row["keyid"], row["entry"], row["revoked_from"], row["name"]) for row in rows],
    )


@app.command("generate")
def generate(
    role: Annotated[str, typer.Option(help=f"One of {', '.join(keys.ROLES)}.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The private key; the public one goes to FILE.pub.")],
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt it; asks for a passphrase, or takes $BITWITNESS_PASSPHRASE.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Make a new key pair (Ed25519). It counts once the root key enrols it.

    Example: ledger key generate --role auditor --out alice.pem
    """
    signer = keys.generate(role)
    keys.save(signer, out, new_passphrase() if encrypt else None)
    public = keys.public_path(out)
    if json_output:
        cli_output.emit_json({"role": role, "keyid": signer.keyid, "private": str(out), "public": str(public)})
        return
    print(f"{role} key {signer.keyid}")
    cli_output.note(f"private key {out}, public key {public}")
