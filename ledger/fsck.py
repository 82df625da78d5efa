"""`ledger fsck`: everything in a ledger file recomputed from the signed entries, each fault with its place.

On top of the verifier's checks: the tables and triggers are the expected ones, every stored tree node is what the
entries give, and every derived row is what a fresh derivation gives.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import merkle
from .entry import sealed
from .errors import BitwitnessError
from .sqlite import derived_schema, guard, ledger_file, nodes, schema
from .sqlite.derived import MOST_WAITING, Derivation, derived_size
from .trust import Trust
from .verify import Check, exit_code
from .verify_ledger import UNCOVERED, Fault, LedgerReport, summarise, verify_ledger
from .verify_rows import connect

_CHECKS = {
    "tables": "the file is sound, its tables and triggers are the expected ones",
    "nodes": "every stored tree node follows from the entries",
    "derived": "every derived row follows from the entries",
}
_MAX_FAULTS = 1000


@dataclass
class FsckReport:
    """The verifier's report and what fsck found besides."""

    ledger: LedgerReport
    faults: list[Fault] = field(default_factory=list)
    complete: bool = False

    def fault(self, check: str, table: str, index: int | None, detail: str) -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(Fault(check, table, index, detail))

    @property
    def checks(self) -> list[Check]:
        return [*self.ledger.checks, *summarise(self.faults, _CHECKS, self.complete)]

    @property
    def exit_code(self) -> int:
        """That of the checks; entries that no checkpoint covers yet are no fault of the file."""
        return exit_code(item for item in self.checks if item.ok is not None or item.name != UNCOVERED)

    def to_json(self) -> dict[str, Any]:
        faults = [*self.ledger.faults, *self.faults]
        return {
            "verified": self.exit_code == 0,
            "entries": self.ledger.size,
            "root": self.ledger.root.hex(),
            "checks": [item.to_json() for item in self.checks],
            "faults": [item.to_json() for item in faults],
        }


def examine(path: Path, trust: Trust | None = None, *, processes: int | None = None) -> FsckReport:
    """Check a ledger file. Raises LedgerNotFound, NotALedger, LedgerDamaged; all else is in the report."""
    ledger_file.check_header(path)
    with ledger_file.reporting(path), closing(ledger_file.connect(path, writable=False)) as connection:
        ledger_file.check_identity(path, connection, schema_too=False)
    with closing(connect(path)) as connection:
        report = FsckReport(LedgerReport())
        try:
            connection.execute("BEGIN")  # one moment of the file, whatever a writer does meanwhile
            as_bytes, connection.text_factory = connection.text_factory, _readable
            readable = _check_tables(connection, report)
            if not readable:
                return report
            stored = _StoredNodes(connection, report)
            connection.text_factory = as_bytes
            report.ledger = verify_ledger(path, trust, processes=processes, on_nodes=stored.compare, moment=connection)
            connection.text_factory = _readable
            _check_derived(connection, report)
            report.complete = report.ledger.complete
        except (OSError, MemoryError) as error:
            report.ledger.hindrance = guard.reason(error, path)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter quotes a damaged schema
            if isinstance(error, sqlite3.Error) and guard.is_environment(error):
                report.ledger.hindrance = guard.reason(error, path)
                return report
            report.fault("tables", "sqlite_schema", None, f"cannot be read: {error}")
    return report


def _readable(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _check_tables(connection: sqlite3.Connection, report: FsckReport) -> bool:
    """Check the schema; False if a table is not what its name says, so that no row can be read."""
    for (line,) in connection.execute("PRAGMA integrity_check(20)"):
        if line != "ok":
            report.fault("tables", "sqlite", None, str(line))
    expected, found = expected_definitions(), schema.definitions(connection)
    for name, sql in expected.items():
        if name not in found:
            report.fault("tables", "sqlite_schema", None, f"{sql.split()[1].lower()} {name} is missing")
        elif found[name] != sql:
            report.fault("tables", "sqlite_schema", None, f"{name} is defined otherwise")
    for name, sql in found.items():
        if name not in expected and sql.upper().startswith("CREATE TRIGGER"):
            report.fault("tables", "sqlite_schema", None, f"trigger {name} does not belong here")
    wrong = guard.faults(connection, guard.BASE_TABLES)
    if wrong or any("is not a table" in detail for detail in guard.foreign_objects(connection)):
        report.fault("tables", "sqlite_schema", None, "; ".join(wrong) or "something stands in the place of a table")
        return False
    rows = connection.execute("SELECT id, format FROM ledger").fetchmany(2)
    if rows != [(1, schema.FORMAT)]:
        report.fault("tables", "ledger", None, f"its one row does not say {schema.FORMAT}")
    return True


def expected_definitions() -> dict[str, str]:
    """The definitions of an empty ledger."""
    return {name: sql for name, (_kind, sql) in guard.expected().items()}


class _StoredNodes:
    """Compares the column `nodes` with the nodes that the entries complete."""

    def __init__(self, connection: sqlite3.Connection, report: FsckReport) -> None:
        self._rows = connection.execute("SELECT idx, nodes FROM entries NOT INDEXED ORDER BY idx")
        self._report = report

    def compare(self, made: list[merkle.Node]) -> None:
        row = self._rows.fetchone()
        if row is not None and row[1] != nodes.column(made):
            self._report.fault("nodes", "entries", row[0], "its nodes are not what it completes")


def _check_derived(connection: sqlite3.Connection, report: FsckReport) -> None:
    """Derive all rows anew in a temporary file, and compare table by table.

    Of the newest entries, a few steps may have no rows yet (derived.py): the tables are those of the entries before.
    """
    try:
        done = derived_size(connection)
    except sqlite3.OperationalError:
        return  # the missing table is reported already
    with closing(sqlite3.connect("", isolation_level=None)) as fresh:
        fresh.execute("BEGIN")
        derived_schema.create(fresh)
        derivation, late = Derivation(fresh), 0
        for index, payload, signature in connection.execute("SELECT idx, payload, signature FROM entries ORDER BY idx"):
            try:
                entry = sealed.read(schema.entry_bytes(payload.encode("utf-8"), signature))
                if index >= done:
                    late += 1
                    if late >= MOST_WAITING or entry.kind.name != "step":
                        report.fault("derived", "log", index, "a row is missing")
                        break
                    continue
                derivation.apply(index, entry)
                derivation.flush()
            except (BitwitnessError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                report.fault("derived", "entries", index, f"nothing can be derived from it: {error}")
                return
        for table in derived_schema.TABLE_NAMES:
            _compare(table, connection, fresh, report)


def _compare(table: str, stored: sqlite3.Connection, fresh: sqlite3.Connection, report: FsckReport) -> None:
    names = [(row[1], row[5]) for row in fresh.execute(f"PRAGMA table_info({table})")]
    columns = [name for name, _key in names]
    keys = [name for name, key in sorted(names, key=lambda item: item[1]) if key]
    places = [columns.index(name) for name in keys]
    query = f"SELECT {', '.join(columns)} FROM {table} ORDER BY {', '.join(keys)}"
    own = columns.index(derived_schema.ENTRY_COLUMN[table])
    try:
        ours = iter(stored.execute(query))
    except sqlite3.OperationalError:
        return  # the missing table or column is reported already
    theirs = iter(fresh.execute(query))

    def key(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_order(row[place]) for place in places)

    row, wanted = next(ours, None), next(theirs, None)
    while row is not None or wanted is not None:
        if wanted is None or (row is not None and key(row) < key(wanted)):
            report.fault("derived", table, _index(row, own), "a row that follows from no entry")
            row = next(ours, None)
        elif row is None or key(wanted) < key(row):
            report.fault("derived", table, wanted[own], "a row is missing")
            wanted = next(theirs, None)
        else:
            for name, value, right in zip(columns, row, wanted, strict=True):
                if value != right:
                    report.fault("derived", table, wanted[own], f"{name} is {_show(value)}, not {_show(right)}")
            row, wanted = next(ours, None), next(theirs, None)


def _order(value: Any) -> tuple[int, Any]:
    """SQLite's order of values, also of those that a column of this type should not hold."""
    rank = 0 if value is None else 1 if isinstance(value, int | float) else 2 if isinstance(value, str) else 3
    return rank, 0 if value is None else value


def _index(row: tuple[Any, ...] | None, place: int) -> int | None:
    return row[place] if row is not None and isinstance(row[place], int) else None


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
