"""Appends to a ledger and says so, to be killed meanwhile: `python -m tests.ledger.crash_writer LEDGER`.

After each durable act one line on stdout: `size N` for an append, `note SIZE` for a checkpoint.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bitwitness.ledger.checkpoint import parse_checkpoint
from bitwitness.ledger.note import parse_note
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.store import Ledger

from . import small_ledger as small

STEPS = 3


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode("ascii"))


def main(path: Path) -> None:
    with Ledger.open(path, writable=True) as ledger:
        run = ledger.find_run("demo")
        if run is None:
            raise SystemExit("no run to continue")
        writer = RunWriter.open(ledger, small.SIGNERS["trainer"], run)
        for _ in range(STEPS):
            writer.append("step", small.step(writer.seq))
            say(f"size {ledger.size}")
        note = ledger.sign_checkpoint(small.SIGNERS["log"])
        say(f"note {parse_checkpoint(parse_note(note).text).size}")
        writer.append_all([("step", small.step(writer.seq + number)) for number in range(20)])
        say(f"size {ledger.size}")
        say(f"note {parse_checkpoint(parse_note(ledger.sign_checkpoint(small.SIGNERS['log'])).text).size}")
    say("closed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
