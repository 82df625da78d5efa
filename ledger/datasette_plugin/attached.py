"""Which of a Datasette's databases is a ledger: told from the file's header, without opening it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schema import APPLICATION_ID

_HEADER = 100
_APPLICATION_ID_AT = 68


@dataclass(frozen=True)
class Attached:
    """A ledger file under Datasette's name for it."""

    path: Path
    name: str
    route: str


def attached_ledger(datasette: Any) -> Attached | None:
    """The first database that is a ledger, or None: then this plugin adds nothing."""
    for name, database in datasette.databases.items():
        path = getattr(database, "path", None)
        if path and is_ledger(Path(path)):
            return Attached(Path(path), name, database.route or name)
    return None


def is_ledger(path: Path) -> bool:
    """Whether the file's header has a ledger's application id (SQLite file format, section 1.3)."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER)
    except OSError:
        return False
    stated = header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4]
    return header.startswith(b"SQLite format 3\x00") and stated == APPLICATION_ID.to_bytes(4, "big")
