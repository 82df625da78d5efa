"""Which of a Datasette's databases is a ledger."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..sqlite.ledger_file import application_id
from ..sqlite.schema import APPLICATION_ID


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
    """Whether the file's application id is a ledger's. It is asked for each page and cell, so remembered."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return _is_ledger(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _is_ledger(path: Path, *_file: int) -> bool:
    try:
        return application_id(path) == APPLICATION_ID
    except sqlite3.Error:
        return False
