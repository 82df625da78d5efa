"""`ledger key`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import keys
from ..entry import key_entries
from ..entry.entries import check
from ..entry.envelope import MAX_ENTRY, open_envelope
from ..errors import BitwitnessError
from ..files import durable
from ..files.user_files import read_file
from ..keys import PublicKey, Signer
from . import output
from .options import JsonOption, current_project, load_key, new_passphrase

app = typer.Typer(
    help="The keys that sign: list, generate; enrol, rotate and revoke them with the root key.", no_args_is_help=True
)

RootOption = Annotated[
    Path | None, typer.Option("--root", metavar="FILE", help="The root's private key; the project's unless given.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Only write the signed entry there, for `ledger key append` elsewhere."),
]


@app.command("list")
def list_keys(json_output: JsonOption = False) -> None:
    """List the keys that the ledger enrols, with their roles.

    Example: ledger key list
    """
    from ..browse import enrolled_keys  # sqlite-utils takes 0.15 s to import

    with current_project().open_ledger() as ledger:
        rows = enrolled_keys(ledger)
    if json_output:
        output.emit_json(rows)
        return
    output.emit_table(
        ("role", "keyid", "entry", "ends at", "name"),
        [(row["role"], row["keyid"], row["entry"], row["revoked_from"], row["name"]) for row in rows],
    )


@app.command("generate")
def generate(
    role: Annotated[str, typer.Option(help=f"One of {', '.join(keys.ROLES)}.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="The private key; the public one goes beside it, alice.pem giving alice.pub."
        ),
    ],
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt it; asks for a passphrase, or takes $BITWITNESS_PASSPHRASE.")
    ] = False,
    passphrase_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Encrypt it with the first line of this file (mode 0600).")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Make a new key pair (Ed25519). It counts once the root key enrols it.

    Example: ledger key generate --role auditor --out alice.pem
    """
    if role not in keys.ROLES:
        raise typer.BadParameter(f"--role is one of {', '.join(keys.ROLES)}")
    signer = keys.generate(role)
    keys.save(signer, out, new_passphrase(file=passphrase_file) if encrypt or passphrase_file else None)
    public = keys.public_path(out)
    if json_output:
        output.emit_json({"role": role, "keyid": signer.keyid, "private": str(out), "public": str(public)})
        return
    print(f"{role} key {signer.keyid}")
    output.note(f"private key {out}, public key {public}")


@app.command("enrol")
def enrol(
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="The public key file of `ledger key generate`.")],
    name: Annotated[str | None, typer.Option(help="A label for people, no person's name.")] = None,
    root: RootOption = None,
    out: OutOption = None,
    json_output: JsonOption = False,
) -> None:
    """Enrol a key, in the role that its file states: what it signs counts from here on.

    Needs the root key and nothing else with --out, so that the root key can stay on a machine without the ledger.

    Example: ledger key enrol alice.pub --root /media/usb/root.pem
    """
    role, public = keys.load_public(key)
    _finish(key_entries.enrolment(_root(root), public, role, name=name), out, json_output)


@app.command("rotate")
def rotate(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The key that ends: its .pub file, or its keyid.")],
    new: Annotated[Path, typer.Argument(metavar="NEW.pub", help="The key that takes its place, of the same role.")],
    name: Annotated[str | None, typer.Option(help="A label for people, no person's name.")] = None,
    root: RootOption = None,
    out: OutOption = None,
    json_output: JsonOption = False,
) -> None:
    """Put a new key in the place of an old one, which ends at this entry. Runs of a trainer key may go on.

    After the rotation of a log key, both keys sign the next checkpoint: ledger checkpoint --also OLD.pem. Whoever pins
    the old key follows by that; witnesses must be given the new one, too.

    Example: ledger key rotate keys/log.pub new-log.pub
    """
    role, public = keys.load_public(new)
    keyid, old_role = _keyid(old)
    if old_role is not None and old_role != role:
        raise BitwitnessError(f"{old} is a {old_role} key and {new} a {role} key; a key replaces one of its own role")
    _finish(key_entries.rotation(_root(root), public, role, keyid, name=name), out, json_output)
    if role == "log":
        output.note("put the new key in the project's keys/log.pem, then: ledger checkpoint --also OLD.pem")


@app.command("revoke")
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its .pub file, or its keyid in the project's ledger.")],
    first: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, metavar="INDEX", help="The first ledger index that no longer counts; now unless given."
        ),
    ] = None,
    root: RootOption = None,
    out: OutOption = None,
    json_output: JsonOption = False,
) -> None:
    """End a key: what it signed at INDEX or later does not count.

    What it signed before stands for a policy with witnesses only under a checkpoint that they cosigned before this.

    Example: ledger key revoke alice.pub --from 812
    """
    if Path(key).suffix == ".pub":
        role, public = keys.load_public(key)
    else:
        role, public = _enrolled(key)
    if first is None:
        with current_project().open_ledger() as ledger:
            first = ledger.size
    _finish(key_entries.revocation(_root(root), public, role, first), out, json_output)


@app.command("append")
def append(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Entries signed elsewhere with --out.")],
    json_output: JsonOption = False,
) -> None:
    """Append key entries that the root key has signed on another machine.

    Example: ledger key append alice.entry
    """
    _append([read_file(path, MAX_ENTRY) for path in files], json_output)


def _root(path: Path | None) -> Signer:
    return current_project().signer("root") if path is None else load_key(path, "root")


def _keyid(text: str) -> tuple[str, str | None]:
    """The keyid and, where it is known, the role of a key named by its file or by its keyid."""
    if Path(text).suffix == ".pub":
        role, public = keys.load_public(text)
        return public.keyid, role
    role, public = _enrolled(text)
    return public.keyid, role


def _enrolled(keyid: str) -> tuple[str, PublicKey]:
    """Role and public key of a keyid, or its first 8 or more digits, in the project's ledger."""
    from ..browse import enrolled_keys

    with current_project().open_ledger() as ledger:
        found = [row for row in enrolled_keys(ledger) if len(keyid) >= 8 and row["keyid"].startswith(keyid)]
    if len(found) != 1:
        raise BitwitnessError(f"{len(found)} enrolled keys are {keyid}; give its .pub file, or its keyid")
    return found[0]["role"], PublicKey.from_hex(found[0]["public"])


def _finish(entry: bytes, out: Path | None, json_output: bool) -> None:
    """Append the signed entry to the project's ledger, or write it to a file."""
    if out is None:
        _append([entry], json_output)
        return
    try:
        durable.write_new(out, entry)
    except OSError as error:
        raise BitwitnessError(f"{out}: {(error.strerror or str(error)).lower()}") from None
    if json_output:
        output.emit_json({"file": str(out)})
    output.note(f"signed entry in {out}; the ledger's people run: ledger key append {out.name}")


def _append(data: list[bytes], json_output: bool) -> None:
    stated = []
    for entry in data:
        statement = open_envelope(entry).statement
        if check(statement).name != "key":
            raise BitwitnessError("this is not a key entry; other entries are appended by what makes them")
        stated.append(statement["predicate"])
    with current_project().open_ledger(writable=True) as ledger:
        indexes = ledger.append(data)
    rows = [
        {"entry": index, "action": item["action"], "role": item["key"]["role"], "keyid": item["key"]["keyid"]}
        for index, item in zip(indexes, stated, strict=True)
    ]
    if json_output:
        output.emit_json(rows)
        return
    for row in rows:
        print(f"entry {row['entry']}: {row['action']} {row['role']} key {row['keyid']}")
