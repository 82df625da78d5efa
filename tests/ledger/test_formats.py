"""The pages of docs/formats: the tables of the entry kinds are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bitwitness.ledger import commitments
from bitwitness.ledger.entry import entries

FORMATS = Path(__file__).resolve().parents[2] / "docs" / "formats"


def test_entry_tables_are_written_from_the_code() -> None:
    """If this fails: cog -r docs/formats/entries.md, from the top of the repository."""
    command = [sys.executable, "-m", "cogapp", "--check", "docs/formats/entries.md"]
    done = subprocess.run(command, cwd=FORMATS.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_kind_and_every_commitment_type_is_documented() -> None:
    text = (FORMATS / "entries.md").read_text(encoding="utf-8")
    assert [line[4:] for line in text.split("\n") if line.startswith("### ")] == list(entries.KINDS)
    text = (FORMATS / "commitments.md").read_text(encoding="utf-8")
    assert [line[3:].split("`")[0] for line in text.split("\n") if line.startswith("| `") and "/1` |" in line] == list(
        commitments.TYPES
    )
