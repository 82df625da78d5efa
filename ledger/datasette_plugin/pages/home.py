"""The first page: what this ledger is, its runs, its models, and what was appended last."""

from __future__ import annotations

from typing import Any

from ...checkpoint import parse_checkpoint
from ...note import parse_note
from ..answers import Asked, Page
from ..evidence import trusted
from .keys import enrolled
from .log import RECENT
from .models import newest_models
from .runs import summaries

SHOWN_RUNS = 20


def home(asked: Asked) -> Page:
    ledger = asked.ledger
    size = ledger.size
    checkpoint = newest_checkpoint(asked)
    runs = summaries(asked, limit=SHOWN_RUNS + 1)
    trust, pinned = trusted(asked)
    return Page(
        "home.html",
        "Ledger",
        "home",
        {
            "size": size,
            "checkpoint": checkpoint,
            "pending": size - (checkpoint["size"] if checkpoint else 0),
            "trust": trust,
            "pinned": pinned,
            "runs": runs[:SHOWN_RUNS],
            "more_runs": len(runs) > SHOWN_RUNS,
            "models": newest_models(asked),
            "keys": enrolled(asked, 12),
            "recent": asked.records("log", RECENT + " LIMIT 8", size),
        },
    )


def newest_checkpoint(asked: Asked) -> dict[str, Any] | None:
    """id, size, root (hex) and number of signatures of the newest signed checkpoint."""
    row = asked.row("SELECT id, note FROM checkpoints ORDER BY id DESC LIMIT 1")
    if row is None:
        return None
    note = parse_note(row["note"])
    read = parse_checkpoint(note.text)
    return {"id": row["id"], "size": read.size, "root": read.root.hex(), "signatures": len(note.lines)}
