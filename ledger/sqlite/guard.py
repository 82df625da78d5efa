"""A ledger file as somebody else may have made it: what must hold before a row of it is read.

SQLite believes a file's own schema, and a schema can lie: a view in the place of a table answers each query as it
likes or never ends, and a table without STRICT holds any type. So the tables must be defined exactly as this program
defines them, nothing in the schema may call a function with effects, values and statements have a bounded size, and
the work that all queries together may cost is bounded by the size of the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path

from . import derived_schema, schema

BASE_TABLES = ("ledger", "entries", "checkpoints")
MAX_VALUE = 1 << 21
"""Bytes of one value or row; notes may have 1,000,000, entries less than 65,536."""
_STEPS = 100_000
# SQLite's virtual machine needs some ten steps for a row, a row some hundred bytes.
_STEPS_AT_ALL = 100_000_000
_STEPS_PER_BYTE = 200

# Primary result codes that speak of this machine, not of what the file says: permission, busy, locked, no memory,
# read-only, interrupted, input/output, full, cannot open, locking protocol, no large files, not authorised.
_ENVIRONMENT = frozenset({3, 5, 6, 7, 8, 9, 10, 13, 14, 15, 22, 23})

_FILE_ERRORS = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_WRITE_ERRORS = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_LITTLE_ROOM = 1 << 20


def restrain(connection: sqlite3.Connection) -> None:
    """Have SQLite trust a file's schema no further than it must."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def bound(connection: sqlite3.Connection, path: Path) -> None:
    """Bound the size of values, and the work of all queries; one that goes beyond is interrupted."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    files = (path, path.with_name(path.name + "-wal"))
    left = _STEPS_AT_ALL + _STEPS_PER_BYTE * sum(item.stat().st_size for item in files if item.exists())

    def spend() -> int:
        nonlocal left
        left -= _STEPS
        return int(left < 0)

    connection.set_progress_handler(spend, _STEPS)


def is_environment(error: sqlite3.Error) -> bool:
    """Whether an error says that a file could not be read here and now, rather than that it is wrong."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # it came from another process
        return isinstance(error, sqlite3.OperationalError)
    return code & 0xFF in _ENVIRONMENT


def reason(error: Exception, path: Path) -> str:
    """One line on why a file could not be read, or be written."""
    if isinstance(error, sqlite3.Error) and str(error) == "interrupted":
        return "its tables do not end; it is no ledger that this program wrote"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    said = str(error) or type(error).__name__
    return f"{said}; the disk may be full" if isinstance(error, sqlite3.Error) and _may_be_full(error, path) else said


def _may_be_full(error: sqlite3.Error, path: Path) -> bool:
    """Whether an error that SQLite says no more of is of a write that failed, or of a disk with next to no room.

    Reading needs room, too: SQLite keeps an index of its log in a file of 32 KiB beside the ledger.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF not in _FILE_ERRORS:
        return False
    if code in _WRITE_ERRORS:
        return True
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LITTLE_ROOM or (disk.f_files > 0 and disk.f_favail == 0)


def faults(connection: sqlite3.Connection, tables: Iterable[str] = BASE_TABLES) -> list[str]:
    """What is wrong with the definitions of these tables, one line for each."""
    wanted, found = expected(), _found(connection)
    wrong = []
    for name in tables:
        if name not in found:
            wrong.append(f"table {name} is missing")
        elif found[name] != [("table", name, wanted[name][1])]:
            wrong.append(f"{name} is not the table that this program makes")
    return wrong


def foreign_objects(connection: sqlite3.Connection) -> list[str]:
    """Triggers that do not belong to a ledger, and whatever else stands under the name of one of its tables."""
    wanted = expected()
    wrong = []
    for name, objects in _found(connection).items():
        kinds = {kind for kind, _exact, _sql in objects}
        if name not in wanted and "trigger" in kinds:
            wrong.append(f"trigger {name} does not belong here")
        elif name in wanted and kinds != {wanted[name][0]}:
            wrong.append(f"{name} is not a {wanted[name][0]}")
    return wrong


def edited_views(connection: sqlite3.Connection) -> list[str]:
    """Views that answer otherwise than this program's: one may never end. One that is missing answers nothing."""
    found = _found(connection)
    views = {name: sql for name, (kind, sql) in expected().items() if kind == "view"}
    return [name for name, sql in views.items() if name in found and found[name] != [("view", name, sql)]]


@cache
def expected() -> dict[str, tuple[str, str]]:
    """name → (type, SQL) of everything in an empty ledger, made in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.create(connection, "expected")
        derived_schema.create(connection)
        rows = connection.execute("SELECT name, type, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {name: (kind, sql) for name, kind, sql in rows}


def _found(connection: sqlite3.Connection) -> dict[str, list[tuple[str, str, str]]]:
    """The objects in the file by their name in small letters, since SQLite tells names apart no further."""
    rows = connection.execute(
        "SELECT CAST(name AS BLOB), CAST(type AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema WHERE sql IS NOT NULL"
    )
    found: dict[str, list[tuple[str, str, str]]] = {}
    for row in rows:
        name, kind, sql = ((value or b"").decode("utf-8", "backslashreplace") for value in row)
        found.setdefault(name.lower(), []).append((kind, name, sql))
    return found
