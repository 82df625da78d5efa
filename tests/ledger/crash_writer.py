"""What the crash tests kill: processes that append, sign and cosign, and say so after each durable act.

One line on stdout for each: `size N` for an append, `note SIZE` for a checkpoint, `kept SIZE` for a cosigned one that
was stored, `cosigned SIZE` for a witness's answer. Few rows wait here, and whatever time passes, so that the same
system calls are made each time.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from bitwitness.ledger import keys, merkle, note
from bitwitness.ledger.checkpoint import Checkpoint, parse_checkpoint
from bitwitness.ledger.note import parse_note
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.sqlite import derived
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.witnessing.witness import Witness
from bitwitness.ledger.witnessing.witness_request import request_text

from . import small_ledger as small

SINGLE = 6
WAITING = 4
NEW_LOG = keys.Signer.from_seed("log", bytes([77]) * 32)
COSIGNER = note.Verifier("w.example", small.SIGNERS["witness"].public, note.COSIGNATURE)
SIZES = (3, 5, 5, 9)
"""Of the checkpoints that the witness is asked to cosign."""
_LEAVES = [merkle.leaf_hash(b"%d" % number) for number in range(max(SIZES))]


def say(text: str) -> None:
    try:
        os.write(1, f"{text}\n".encode("ascii"))
    except OSError:  # the fault may be here, too: then nobody was told
        os._exit(1)


def log_keys(folder: Path) -> tuple[keys.Signer, keys.Signer]:
    """The log's key and the one that takes its place, with their memories in this folder."""
    return (
        replace(small.SIGNERS["log"], memory=folder / "log.head"),
        replace(NEW_LOG, memory=folder / "new.head"),
    )


def write_ledger(path: Path) -> None:
    """Append steps one by one and together, sign, store a cosigned checkpoint, replace the log's key, close."""
    derived.MOST_WAITING, derived.PATIENCE = WAITING, 1e9
    old, new = log_keys(path.parent)
    with Ledger.open(path, writable=True) as ledger:
        writer = RunWriter.open(ledger, small.SIGNERS["trainer"], str(ledger.find_run("demo")))

        def step(number: int = 1) -> None:
            if number == 1:
                writer.append("step", small.step(writer.seq))
            else:
                writer.append_all([("step", small.step(writer.seq + place)) for place in range(number)])
            say(f"size {ledger.size}")

        def sign(*signers: keys.Signer) -> str:
            signed = ledger.sign_checkpoint(*signers)
            say(f"note {parse_checkpoint(parse_note(signed).text).size}")
            return signed

        for _ in range(SINGLE):  # rows wait, and are written when the fourth comes
            step()
        sign(old)
        step(3)
        signed = sign(old)
        line = note.cosignature_line(parse_note(signed).text, COSIGNER.name, small.SIGNERS["witness"], 1_700_000_000)
        ledger.keep_checkpoint(note.add_signatures(signed, [line]))
        say(f"kept {ledger.size}")
        ledger.append([small.rotation("log", NEW_LOG)])
        say(f"size {ledger.size}")
        sign(new, old)
        step()
        step()
        assert ledger._derivation.waiting == 2  # for close()
    say("closed")


def cosign(state: Path) -> None:
    """A witness that is asked to cosign checkpoints of SIZES, one after the other."""
    log = small.SIGNERS["log"]
    witness = Witness(COSIGNER.name, small.SIGNERS["witness"], [small.TRUST.log], state, clock=lambda: 1_700_000_000.0)
    before = 0
    for size in SIZES:
        answer = witness.add_checkpoint(witness_request(before, size, log))
        if answer.status != 200:
            raise SystemExit(f"{answer.status} {answer.body}")
        say(f"cosigned {size}")
        before = size
    witness.close()
    say("closed")


def witness_request(before: int, size: int, log: keys.Signer, leaves: list[bytes] = _LEAVES) -> str:
    proof = merkle.consistency_proof(before, leaves[:size]) if before else []
    head = Checkpoint(small.ORIGIN, size, merkle.root(leaves[:size]))
    return request_text(before, proof, note.sign_note(head.format(), small.ORIGIN, log))


if __name__ == "__main__":
    write_ledger(Path(sys.argv[1]))
