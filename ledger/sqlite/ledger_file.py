"""A ledger's file: how it is opened, and what is said of one that cannot be used. One clear line each."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from ..errors import BitwitnessError, FoundWrong
from ..files import durable
from ..files.regular_file import open_regular
from . import derived_schema, guard, schema

_HEADER = 100
"""Bytes of an SQLite file's header (file format, section 1.3)."""


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


class StrayFile(BitwitnessError):
    """A file stands where SQLite keeps its own, and is not of this database. `path` names it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is in the way: {reason}; move it elsewhere")
        self.path = str(path)


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
                raise BitwitnessError(f"{path} cannot be used: {guard.reason(error, path)}") from None
            raise LedgerDamaged(path, f"{message}; run `ledger fsck`") from None
        if isinstance(error, UnicodeDecodeError):  # how sqlite3 reports an error whose text quotes a damaged schema
            raise LedgerDamaged(path, "its schema was edited; run `ledger fsck`") from None


def connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    """A connection in autocommit mode; with `writable` it makes the file if it is missing."""
    connection = sqlite3.connect(_address(path, writable=writable), uri=True, isolation_level=None, timeout=10)
    guard.restrain(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA cache_size = -16384")
    # Triggers make SQLite keep each page as it was before a statement: in memory, not in a file of its own.
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _address(path: Path, *, writable: bool) -> str:
    mode = "rwc" if writable else "ro"
    if not writable and _is_still(path):
        mode += "&immutable=1"
    return f"file:{quote(str(path.absolute()))}?mode={mode}"


def _is_still(path: Path) -> bool:
    """Whether a file lies where nobody can be writing it, nor SQLite put its shared memory: a read-only folder."""
    wal = _wal(path)
    return not wal.exists() and not os.access(wal.parent, os.W_OK)


def _wal(path: Path) -> Path:
    """The write-ahead log, which SQLite keeps beside the file that a link leads to."""
    real = path.resolve()
    return real.with_name(real.name + "-wal")


def refuse_strays(path: Path, *, new: bool = False) -> None:
    """Raise StrayFile for a file beside the database from which SQLite would take pages, or which it would remove.

    A rollback journal is never one of ours (write-ahead log): SQLite rolls the database back by it, whoever's it is.
    Beside a `new` database nothing may be.
    """
    real = path.resolve()
    for suffix in ("-journal", "-wal", "-shm"):
        beside = real.with_name(real.name + suffix)
        try:
            mode = os.lstat(beside).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise StrayFile(beside, "it is not the regular file that SQLite keeps there")
        if suffix == "-journal":
            raise StrayFile(beside, f"it is not of {real.name}, which SQLite would roll back by it")
        if new:
            raise StrayFile(beside, f"it is of another {real.name}, which is not there")


@contextmanager
def unmerged(path: Path) -> Iterator[None]:
    """Whoever closes the database inside leaves its write-ahead log as it is.

    The last connection merges it into the file when it is closed, also where the file was refused for what that log
    says: the log may be of another database. Raises sqlite3.DatabaseError.
    """
    with _first_page(path):
        yield


def create_whole(path: Path, origin: str) -> None:
    """Make the file of an empty ledger, whole or not at all; the caller holds the writer's lock.

    It is made under a name that only who holds the lock uses. Raises sqlite3.DatabaseError, OSError.
    """
    real = path.resolve()
    made = real.with_name(f".{real.name}.new")
    _remove(made)
    try:
        connection = connect(made, writable=True)
        try:
            connection.execute(f"PRAGMA page_size = {schema.PAGE_SIZE}")
            connection.execute("PRAGMA journal_mode = WAL")
            set_durable(connection)
            connection.execute("BEGIN IMMEDIATE")
            schema.create(connection, origin)
            derived_schema.create(connection)
            connection.execute("COMMIT")
            # What is not in the file itself would stay behind under the other name.
            busy, _pages, _moved = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise sqlite3.OperationalError("database is busy")
        finally:
            connection.close()
        made.rename(real)
    except BaseException:
        with suppress(OSError):
            _remove(made)
        raise
    durable.sync_folder(real.parent)


def _remove(database: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def set_durable(connection: sqlite3.Connection) -> None:
    """Every commit is on the disk before it returns."""
    connection.execute("PRAGMA synchronous = FULL")


def check_header(path: Path) -> None:
    """Tell a missing, foreign or cut file before SQLite does so in its own words.

    The file is read through SQLite, and opened beside it only when there is nothing of a ledger to lose: closing any
    descriptor of a file drops the locks of every connection that this process has to it
    (https://sqlite.org/howtocorrupt.html, section 2.2).
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise LedgerNotFound(path) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise NotALedger(path, (getattr(error, "strerror", None) or str(error)).lower()) from None
    if not stat.S_ISREG(status.st_mode):
        raise NotALedger(path, "is a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file")
    if status.st_size < _HEADER:
        raise NotALedger(path, "not an SQLite file, or cut to almost nothing")
    refuse_strays(path)
    try:
        with _first_page(path) as connection:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            page_size = connection.execute("PRAGMA page_size").fetchone()[0]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: its text quotes a damaged schema
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return  # busy, or not readable: who opens it is told
        pages, page_size = _stated_pages(path)
    _check_length(path, pages * page_size)


def application_id(path: Path) -> int:
    """The number by which a program knows its own SQLite files. Raises sqlite3.DatabaseError."""
    with _first_page(path) as connection:
        return int(connection.execute("PRAGMA application_id").fetchone()[0])


def read_only(path: Path) -> sqlite3.Connection:
    """A connection to any database that changes nothing of it, nor at its end. Raises sqlite3.DatabaseError."""
    return sqlite3.connect(_address(path, writable=False), uri=True, timeout=10)


@contextmanager
def _first_page(path: Path) -> Iterator[sqlite3.Connection]:
    connection = read_only(path)
    try:
        connection.execute("PRAGMA schema_version")
        yield connection
    finally:
        connection.close()


def _stated_pages(path: Path) -> tuple[int, int]:
    """Number and size of the pages that the header of a file states which SQLite refuses. Raises NotALedger."""
    try:
        with open_regular(path) as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise NotALedger(path, (error.strerror or str(error)).lower()) from None
    if len(header) < _HEADER or not header.startswith(b"SQLite format 3\x00"):
        raise NotALedger(path, "not an SQLite file, or cut to almost nothing")
    page_size = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big"), 65536 if page_size == 1 else page_size


def _check_length(path: Path, stated: int) -> None:
    """SQLite takes a file whose last page was cut. Pages may lie in the write-ahead log yet, which is looked at first:
    if it is empty, all of them have come into the file.
    """
    with suppress(FileNotFoundError):
        if os.stat(_wal(path)).st_size:
            return
    length = os.stat(path).st_size
    if length < stated:
        raise LedgerDamaged(path, f"it was cut to {length} bytes; restore it from a copy")


def _or_its_log(path: Path) -> str:
    wal = _wal(path)
    with suppress(OSError):
        if os.stat(wal).st_size:
            return f", or {wal.name} beside it is; move that elsewhere and try again"
    return ""


def check_identity(
    path: Path, connection: sqlite3.Connection, *, schema_too: bool = True, views_too: bool = True
) -> None:
    """Tell a database of another program or version, or with an edited schema. Raises NotALedger, LedgerDamaged.

    Without `views_too` for who makes the views anew.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != schema.APPLICATION_ID:
        raise NotALedger(path, f"an SQLite file of another program{_or_its_log(path)}")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != schema.SCHEMA_VERSION:
        raise NotALedger(path, f"its schema has version {version}, this program knows {schema.SCHEMA_VERSION}")
    wrong = [*guard.faults(connection), *guard.foreign_objects(connection)] if schema_too else []
    if wrong:
        raise LedgerDamaged(path, f"its schema was edited: {wrong[0]}")
    if schema_too and views_too and (edited := guard.edited_views(connection)):
        raise LedgerDamaged(path, f"its view {edited[0]} is not the one that this program makes; run `ledger rebuild`")
