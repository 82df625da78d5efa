"""A ledger's file: how it is opened, and what is said of one that cannot be used. One clear line each."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from . import guard, schema
from .errors import BitwitnessError, FoundWrong
from .regular_file import open_regular


class LedgerNotFound(BitwitnessError):
    """There is no ledger file at `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no ledger at {path}; `ledger init` makes one")
        self.path = str(path)


class LedgerDamaged(FoundWrong):
    """The file is not a sound ledger: truncated, edited, or something else altogether."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = str(path)
        self.reason = reason


class NotALedger(BitwitnessError):
    """The file exists but was never a ledger, or one of a version that this program does not know."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not a ledger: {reason}")
        self.path = str(path)
        self.reason = reason


class LedgerFull(BitwitnessError):
    """The disk is full; the append did not happen, everything before it is kept."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(f"the disk of {path} is full; nothing was lost, the ledger still ends with {size} entries")
        self.path = str(path)
        self.size = size


class reporting:
    """Turn SQLite's errors into ours; `size` tells how many entries are safe."""

    def __init__(self, path: Path, size: Callable[[], int] = lambda: 0) -> None:
        self._path = path
        self._size = size

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        path = self._path
        if isinstance(error, sqlite3.DatabaseError):
            message = str(error)
            if "disk is full" in message:
                raise LedgerFull(path, self._size()) from None
            if "locked" in message or "busy" in message:
                raise BitwitnessError(f"{path} is busy ({message}); try again") from None
            if "unable to open" in message or "readonly" in message or "disk I/O" in message:
                raise BitwitnessError(f"{path} cannot be used: {message}") from None
            raise LedgerDamaged(path, f"{message}; run `ledger fsck`") from None
        if isinstance(error, UnicodeDecodeError):  # how sqlite3 reports an error whose text quotes a damaged schema
            raise LedgerDamaged(path, "its schema was edited; run `ledger fsck`") from None


def connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    """A connection in autocommit mode; with `writable` it makes the file if it is missing."""
    mode = "rwc" if writable else "ro"
    if not writable and _is_still(path):
        mode += "&immutable=1"
    address = f"file:{quote(str(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=10)
    guard.restrain(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA cache_size = -16384")
    # Triggers make SQLite keep each page as it was before a statement: in memory, not in a file of its own.
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _is_still(path: Path) -> bool:
    """Whether a file lies where nobody can be writing it, nor SQLite put its shared memory: a read-only folder."""
    wal = path.with_name(path.name + "-wal")
    return not wal.exists() and not os.access(path.parent, os.W_OK)


def set_durable(connection: sqlite3.Connection) -> None:
    """Every commit is on the disk before it returns."""
    connection.execute("PRAGMA synchronous = FULL")


def check_header(path: Path) -> None:
    """Tell a missing, foreign or cut file before SQLite does so in its own words."""
    try:
        with open_regular(path) as file:
            header = file.read(100)
            length = file.seek(0, 2)
    except FileNotFoundError:
        raise LedgerNotFound(path) from None
    except OSError as error:
        raise NotALedger(path, (error.strerror or str(error)).lower()) from None
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise NotALedger(path, "not an SQLite file, or cut to almost nothing")
    page_size = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    wal = path.with_name(path.name + "-wal")
    if length < pages * (65536 if page_size == 1 else page_size) and not (wal.exists() and wal.stat().st_size):
        raise LedgerDamaged(path, f"it was cut to {length} bytes; restore it from a copy")


def check_identity(path: Path, connection: sqlite3.Connection, *, schema_too: bool = True) -> None:
    """Tell a database of another program or version, or with an edited schema. Raises NotALedger, LedgerDamaged."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != schema.APPLICATION_ID:
        raise NotALedger(path, "an SQLite file of another program")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != schema.SCHEMA_VERSION:
        raise NotALedger(path, f"its schema has version {version}, this program knows {schema.SCHEMA_VERSION}")
    wrong = [*guard.faults(connection), *guard.foreign_objects(connection)] if schema_too else []
    if wrong:
        raise LedgerDamaged(path, f"its schema was edited: {wrong[0]}")
