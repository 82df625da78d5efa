"""fsck: with the triggers dropped, every edit of every table is found and named."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import fsck
from bitwitness.ledger.fsck import FsckReport, examine
from bitwitness.ledger.sqlite import derived_schema
from bitwitness.ledger.store import LedgerDamaged, LedgerNotFound, NotALedger
from bitwitness.ledger.trust import load_trust

from . import serve_sample
from . import small_ledger as small

BASE = ("ledger", "entries", "checkpoints")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = serve_sample.build(tmp_path_factory.mktemp("fsck") / "sample", 12).ledger_path
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def copy(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sample, tmp_path / "ledger.db"))


def edit(path: Path, script: str) -> None:
    """Run SQL as somebody would who has the file and wants to change it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.executescript(script)


def found(report: FsckReport) -> set[str]:
    return {fault.table for fault in (*report.faults, *report.ledger.faults)} - {"sqlite_schema"}


def test_a_sound_ledger_has_no_faults(sample: Path) -> None:
    report = examine(sample)
    assert report.exit_code == 0, report.checks
    answer = report.to_json()
    assert answer["verified"] is True and answer["faults"] == []
    assert all(set(item) == {"name", "ok", "detail"} for item in answer["checks"])


def test_missing_and_foreign_triggers_and_tables_are_found(copy: Path) -> None:
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.executescript(
            "DROP TRIGGER entries_no_delete; DROP INDEX log_by_seq; DROP VIEW models;"
            "CREATE TRIGGER extra AFTER INSERT ON entries BEGIN SELECT 1; END;"
            "DROP TRIGGER steps_no_update;"
            "CREATE TRIGGER steps_no_update BEFORE UPDATE ON steps WHEN 0 BEGIN SELECT 1; END"
        )
    report = examine(copy)
    details = {fault.detail for fault in report.faults}
    assert details == {
        "trigger entries_no_delete is missing",
        "unique log_by_seq is missing",
        "view models is missing",
        "trigger extra does not belong here",
        "steps_no_update is defined otherwise",
    }


_OTHER = {
    "INTEGER": "{0} + 1000",
    "TEXT": "{0} || 'z'",
    "REAL": "{0} + 0.125",
    "BLOB": "zeroblob(max(length({0}), 32))",
}


def test_every_edited_column_of_every_table_is_found(sample: Path, tmp_path: Path) -> None:
    path, trust = tmp_path / "ledger.db", load_trust(sample.with_name("trust.toml"))

    def faults(table: str, columns: list[tuple[str, str]], where: str) -> list[str]:
        shutil.copy(sample, path)
        changes = ", ".join(f"{name} = {_OTHER[kind].format(name)}" for name, kind in columns)
        edit(path, f"UPDATE {table} SET {changes} WHERE {where}")
        report = examine(path, trust)
        assert report.exit_code == 1
        return [fault.detail for fault in (*report.faults, *report.ledger.faults) if fault.table == table]

    with closing(sqlite3.connect(sample)) as connection:
        tables = {}
        for table in (*BASE, *derived_schema.TABLE_NAMES):
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            if rows:
                filled = [any(row[number] is not None for row in rows) for number in range(len(columns))]
                tables[table] = [column for column, some in zip(columns, filled, strict=True) if some]
    for table, columns in tables.items():
        plain = [(name, kind) for _number, name, kind, _not_null, _default, key in columns if not key]
        keys = [(name, kind) for _number, name, kind, _not_null, _default, key in columns if key]
        for name, kind in [*keys, *(plain if table in BASE else [])]:
            # A key moves in all rows, so that no two of them collide.
            where = "1" if (name, kind) in keys else f"rowid = (SELECT max(rowid) FROM {table})"
            assert faults(table, [(name, kind)], where), f"{table}.{name}"
        if table not in BASE:
            found_in = " ".join(faults(table, plain, "1")) if plain else ""
            assert [name for name, _kind in plain if f"{name} is " not in found_in] == [], table


def test_missing_and_invented_rows_are_found(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    for table in ("entries", "log", "steps", "keys", "payloads", "audit_units", "evals"):
        shutil.copy(sample, path)
        key = {"steps": "step", "payloads": "digest", "audit_units": "position", "log": "entry"}.get(table, "rowid")
        edit(path, f"DELETE FROM {table} WHERE {key} = (SELECT min({key}) FROM {table})")
        assert table in found(examine(path)), table
    for row in (
        "key_revocations (entry, key, from_index, time) VALUES (3, 1, 1, '')",
        "checkpoints (id, size, note) VALUES (77, 1, 'x')",
        "payloads (digest, entry) VALUES ('00', 3)",
    ):
        shutil.copy(sample, path)
        edit(path, f"INSERT INTO {row}")
        assert row.split()[0] in found(examine(path)), row


def test_an_edited_entry_is_named(copy: Path) -> None:
    edit(copy, "UPDATE entries SET payload = replace(payload, 'pystdlib', 'pystdliz') WHERE idx = 5")
    report = examine(copy)
    assert ("entries", 5) in {(fault.table, fault.index) for fault in report.ledger.faults}


def test_entries_that_are_cut_off_are_missed_by_the_checkpoint(copy: Path) -> None:
    edit(copy, "DELETE FROM entries WHERE idx >= 20")
    report = examine(copy)
    assert any(fault.table == "checkpoints" and "the ledger holds 20" in fault.detail for fault in report.ledger.faults)


def test_files_that_are_no_ledger_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(LedgerNotFound):
        examine(tmp_path / "none.db")
    (tmp_path / "x.db").write_bytes(b"x" * 5000)
    with pytest.raises(NotALedger):
        examine(tmp_path / "x.db")


def test_damaged_pages_are_faults_not_exceptions(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    small.with_run(path, 60).close()
    data = path.read_bytes()
    verdicts = set()
    for start in range(100, len(data) - 64, len(data) // 50):
        path.write_bytes(data[:start] + b"\xa5" * 64 + data[start + 64 :])
        try:
            verdicts.add(examine(path).exit_code)
        except (LedgerDamaged, NotALedger) as error:
            assert "\n" not in str(error)
    assert 1 in verdicts and verdicts <= {0, 1}


def test_entries_that_a_writer_adds_meanwhile_are_no_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    ledger = small.create(path)
    writer = small.begin(ledger)
    honest = fsck.verify_ledger

    def while_written(*arguments: Any, **options: Any) -> Any:
        for number in range(1, 6):
            writer.append("step", small.step(number))
        return honest(*arguments, **options)

    monkeypatch.setattr(fsck, "verify_ledger", while_written)
    with ledger:
        report = examine(path)
    assert report.faults == [] and report.ledger.faults == [], report.checks
