"""`ledger prove` and `ledger verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import cli_output
from . import prove as proofs
from .cli_files import read_file, write_file
from .cli_options import JsonOption, current_project
from .cli_plugins import load_verifier
from .errors import BitwitnessError
from .fork import looks_like_fork, verify_fork
from .project import ProjectNotFound
from .regular_file import open_regular
from .store import Ledger
from .trust import load_trust
from .verify import Check, exit_code, verify_proof

_MAX_PROOF = 4 * 1024 * 1024


def prove(
    index: Annotated[int | None, typer.Option(metavar="N", help="Prove this entry.")] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="With --step: a run, by name or hash.")] = None,
    step: Annotated[int | None, typer.Option(metavar="N", help="Prove this step's record; 0 is the genesis.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here, not to stdout.")] = None,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="tlog-proof, merkletools or json.")] = "tlog-proof",
    json_output: JsonOption = False,
) -> None:
    """Prove to anybody that an entry is in the log: its place in the tree under a signed checkpoint.

    The file holds the entry and the enrolment of its signer, so that it verifies without the ledger. If no
    checkpoint covers the entry yet, one is signed.

    Example: ledger prove --run demo --step 60 --out step60.tlog-proof
    """
    from .browse import find_step  # sqlite-utils takes 0.15 s to import

    if (index is None) == (run is None or step is None):
        raise typer.BadParameter("give --index N, or --run RUN with --step N")
    if format not in proofs.FORMATS:
        raise typer.BadParameter(f"--format is one of {', '.join(proofs.FORMATS)}")
    project = current_project()
    with project.open_ledger() as ledger:
        number = index if index is not None else find_step(ledger, str(run), int(step or 0))
        try:
            note = proofs.covering_checkpoint(ledger, number)
        except proofs.NoCheckpoint:
            log = project.signer("log")
            with project.open_ledger(writable=True) as writer:
                note = proofs.sign_if_needed(writer, number, log)
            cli_output.note("signed a new checkpoint")
        if format == "json" or (json_output and out is None):
            answer = proofs.json_proof(ledger, number, note)
            if out is None:
                cli_output.emit_json(answer)
                return
            text = cli_output.json_text(answer)
        elif format == "merkletools":
            text = proofs.merkletools_text(ledger, number, note)
        else:
            text = _tlog_proof(ledger, number, note)
    if out is None:
        sys.stdout.write(text)
        return
    write_file(out, text)
    if json_output:
        cli_output.emit_json({"index": number, "file": str(out)})
    else:
        cli_output.note(f"proof of entry {number} in {out}")


def _tlog_proof(ledger: Ledger, index: int, note: str) -> str:
    proof = proofs.prove(ledger, index, note)
    if proof.extra is None:
        cli_output.note(
            f"entry {index} is too large to be in the file; hand over `ledger show {index} --raw` beside it"
        )
    return proof.format()


def verify(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="A ledger (.db), a proof, evidence of a fork, or a model's folder."),
    ],
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The keys to trust; else trust.toml of the project.")
    ] = None,
    entry: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The entry that a proof is of, if the proof does not hold it.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Verify a ledger, a proof file or a model offline, with the keys of a trust policy and nothing else.

    Exit code 0 if all was verified, 1 if anything is wrong, 2 if something could not be checked.

    Example: ledger verify step60.tlog-proof --policy trust.toml
    """
    checks = _examine(path, policy, entry)
    code = _code(checks)
    if json_output:
        cli_output.emit_json({"verified": code == 0, "checks": checks})
    else:
        cli_output.emit_checks(checks)
        print({0: "verified", 1: "WRONG", 2: "could not be checked"}[code])
    raise typer.Exit(code)


def _examine(path: Path, policy: Path | None, entry: Path | None) -> list[dict[str, Any]]:
    if "\0" in str(path) or not path.exists():
        raise BitwitnessError(f"{path}: no such file or folder")
    policy = policy or _project_policy()
    if path.is_dir():
        verifier = load_verifier("model")
        if verifier is None:
            raise BitwitnessError("no installed package verifies models; install bitwitness with its registry")
        return verifier(path, policy)
    try:
        with open_regular(path) as file:
            head = file.read(16)
    except OSError as error:
        raise BitwitnessError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    trust = load_trust(policy)
    if head == b"SQLite format 3\x00" or path.suffix == ".db":
        from .verify_ledger import verify_ledger  # it starts worker processes

        return [item.to_json() for item in verify_ledger(path, trust).checks]
    data = read_file(path, _MAX_PROOF)
    if looks_like_fork(data):
        return [item.to_json() for item in verify_fork(data, trust)]
    held = None if entry is None else read_file(entry, _MAX_PROOF)
    return [item.to_json() for item in verify_proof(data, trust, held)]


def _project_policy() -> Path:
    try:
        return current_project().trust_path
    except ProjectNotFound:
        raise BitwitnessError("whose keys are to be trusted? give --policy trust.toml, or run in a project") from None


def _code(checks: list[dict[str, Any]]) -> int:
    """As verify.exit_code; a check that a verifier calls not required may stay open."""
    return exit_code(
        Check(item["name"], item["ok"], item["detail"])
        for item in checks
        if item["ok"] is not None or item.get("required", True)
    )
