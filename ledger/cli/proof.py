"""`ledger prove`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..exchange import prove as proofs
from ..files.user_files import write_file
from ..proof_file import read_extra
from ..store import Ledger
from . import output
from .options import JsonOption, current_project


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
    from ..browse import find_step  # sqlite-utils takes 0.15 s to import

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
            output.note("signed a new checkpoint")
        if format == "json" or (json_output and out is None):
            answer = proofs.json_proof(ledger, number, note)
            if out is None:
                output.emit_json(answer)
                return
            text = output.json_text(answer)
        elif format == "merkletools":
            text = proofs.merkletools_text(ledger, number, note)
        else:
            text = _tlog_proof(ledger, number, note)
    if out is None:
        sys.stdout.write(text)
        return
    write_file(out, text)
    if json_output:
        output.emit_json({"index": number, "file": str(out)})
    else:
        output.note(f"proof of entry {number} in {out}")


def _tlog_proof(ledger: Ledger, index: int, note: str) -> str:
    proof = proofs.prove(ledger, index, note)
    if proof.extra is None or read_extra(proof.extra).entry is None:
        output.note(f"entry {index} is too large to be in the file; hand over `ledger show {index} --raw` beside it")
    return proof.format()
