"""`ledger checkpoint`: sign the tree, and have witnesses cosign it, by their servers or by file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import note
from ..checkpoint import parse_checkpoint
from ..errors import BitwitnessError
from ..files.user_files import read_file, write_file
from ..keys import Signer
from ..project import Project
from ..sqlite.lock import LedgerLocked
from ..store import Ledger
from ..trust import Trust, witness_line
from ..witnessing.witness_request import request_text
from . import output
from .options import JsonOption, current_project, load_key


def checkpoint(
    witness: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help='Have this witness cosign; "VKEY URL" if trust.toml does not name it. Again for more.'
        ),
    ] = None,
    witnesses: Annotated[bool, typer.Option("--witnesses", help="Ask all witnesses of trust.toml.")] = False,
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a request there for `ledger witness sign`.")
    ] = None,
    since: Annotated[
        int, typer.Option(min=0, metavar="N", help="With --request: the size that the witness cosigned last.")
    ] = 0,
    cosignature: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Add cosignatures by witnesses of trust.toml. Repeatable.")
    ] = None,
    also: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A second log key that signs, once, when the key is replaced.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Sign the tree as it stands with the log key, store the note and print it.

    Witnesses each check that it extends what they cosigned before. Exit code 1 if one has cosigned something else,
    2 if one gave no cosignature; what the others gave is kept. While `ledger train` writes, it alone signs: a
    checkpoint each `checkpoint_every` steps of its run, and one at the end.

    Example: ledger checkpoint --witness https://witness.example/w1
    """
    project = current_project()
    signer, others = project.signer("log"), [] if also is None else [load_key(also, "log")]
    trust = project.trust()
    failures: tuple[BitwitnessError, ...] = ()
    with _open(project) as ledger:
        signed = ledger.sign_checkpoint(signer, *others)
        for path in cosignature or []:
            signed = _add(ledger, signed, path, trust)
        if witness or witnesses:
            signed, failures = ask_witnesses(ledger, signed, witness or [], witnesses, trust)
        if request is not None:
            _write_request(ledger, signed, since, request)
    _print(signed, [signer, *others], trust, json_output)
    for failure in failures:
        output.note(f"error: {failure}")
    if failures:
        raise typer.Exit(min(failure.exit_code for failure in failures))


def _open(project: Project) -> Ledger:
    try:
        return project.open_ledger(writable=True)
    except LedgerLocked as locked:
        raise _busy(project, locked) from None


def _busy(project: Project, locked: LedgerLocked) -> BitwitnessError:
    """What a person can do who wants a checkpoint while another process writes: the same lock guards them."""
    with project.open_ledger() as ledger, ledger.snapshot():
        size, newest = ledger.size, ledger.latest_checkpoint()
    covered = 0 if newest is None else parse_checkpoint(note.parse_note(newest).text).size
    return BitwitnessError(
        f"process {locked.pid or '?'} is writing {locked.path} and alone signs meanwhile: a training run each "
        f"checkpoint_every steps and at its end. The newest checkpoint covers {covered} of {size} entries; for one "
        "with cosignatures run this again when that process has ended"
    )


def _add(ledger: Ledger, signed: str, path: Path, trust: Trust | None) -> str:
    from ..witnessing.cosign import cosignature_in, renewed  # httpx takes a tenth of a second to import

    text = read_file(path, 64 * 1024).decode("utf-8", "replace")
    names = {(line.name, line.key_id) for line in note.parse_note(f"{note.parse_note(signed).text}\n{text}").lines}
    known = [item for item in (trust.cosigners if trust else ()) if (item.name, item.key_id) in names]
    if not known:
        raise BitwitnessError(f"{path}: no cosignature by a witness of trust.toml; name it in [witnesses] first")
    cosigned = renewed(signed, [cosignature_in(text, signed, item) for item in known])
    ledger.keep_checkpoint(cosigned)
    return cosigned


def ask_witnesses(
    ledger: Ledger, signed: str, urls: list[str], everyone: bool, trust: Trust | None
) -> tuple[str, tuple[BitwitnessError, ...]]:
    """Have the witnesses at `urls`, or all that trust.toml names, cosign and store a checkpoint; says who did.

    Returns the note, and why witnesses gave nothing.
    """
    from ..witnessing.cosign import collect, find_target, policy_targets

    policy = trust.witnesses if trust is not None else None
    targets = [find_target(text, policy) for text in urls]
    if everyone:
        if policy is None or not policy_targets(policy):
            raise BitwitnessError("trust.toml names no witness with an address; see docs/formats/trust-policy.md")
        targets += [item for item in policy_targets(policy) if item not in targets]
    done = collect(ledger, signed, targets)
    for verifier in done.cosigners:
        pinned = trust is not None and verifier in trust.cosigners
        output.note(f"cosigned by {verifier.vkey}" + ("" if pinned else ", a key that trust.toml does not name"))
    return done.note, done.failures


def _write_request(ledger: Ledger, signed: str, since: int, path: Path) -> None:
    size = parse_checkpoint(note.parse_note(signed).text).size
    proof = ledger.consistency_proof(since, size) if since else []
    write_file(path, request_text(since, proof, signed))
    output.note(f"request in {path}; the witness runs: ledger witness sign {path.name}")


def _print(signed: str, signers: list[Signer], trust: Trust | None, json_output: bool) -> None:
    if not json_output:
        sys.stdout.write(signed)
        return
    parsed = note.parse_note(signed)
    head = parse_checkpoint(parsed.text)
    answer = {"origin": head.origin, "size": head.size, "root": head.root.hex(), "note": signed}
    answer["signers"] = [line.name for line in parsed.lines]
    if trust is not None and trust.asks_for_witnesses:
        own = [note.Verifier(head.origin, item.public) for item in signers]
        opened = note.open_note(signed, [*own, *trust.cosigners])
        answer["witnessed"], answer["assurance"] = witness_line(trust.witnesses, opened)
    output.emit_json(answer)
