"""Derived tables: right values, the same from an append and from a rebuild."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.entry.entries import KINDS
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.sqlite import derived_schema
from bitwitness.ledger.sqlite.lock import LedgerLocked
from bitwitness.ledger.store import Ledger, LedgerDamaged

from . import serve_sample
from . import small_ledger as small


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serve_sample.build(tmp_path_factory.mktemp("derived") / "sample", 44).ledger_path


@pytest.fixture
def copy(sample: Path, tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    connection = sqlite3.connect(sample)
    connection.execute("VACUUM INTO ?", (str(path),))
    connection.close()
    return path


def rows(path: Path) -> Iterator[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    for table in derived_schema.TABLE_NAMES:
        for row in connection.execute(f"SELECT * FROM {table}"):
            yield table, *row
    for view in derived_schema.VIEW_NAMES:
        for row in connection.execute(f"SELECT * FROM {view}"):
            yield view, *row
    connection.close()


def test_rebuild_gives_the_same_rows(copy: Path) -> None:
    before = list(rows(copy))
    assert {row[0] for row in before} >= {*derived_schema.TABLE_NAMES, "models", "run_summaries"} - {
        "statuses",
        "leaf_places",  # of full blocks only
    }
    size = Ledger.rebuild(copy)
    assert list(rows(copy)) == before
    with Ledger.open(copy, writable=True) as ledger:
        assert ledger.size == size


def test_rebuild_mends_edited_and_missing_tables(copy: Path) -> None:
    before = list(rows(copy))
    connection = sqlite3.connect(copy, isolation_level=None)
    connection.executescript(
        "DROP TRIGGER steps_no_update; UPDATE steps SET loss = 0.1; DROP TRIGGER log_no_delete;"
        "DELETE FROM log WHERE entry > 20; DROP VIEW models; DROP TABLE audit_units"
    )
    connection.close()
    with pytest.raises(LedgerDamaged, match="ledger rebuild"):
        Ledger.open(copy, writable=True)
    Ledger.rebuild(copy)
    assert list(rows(copy)) == before


def test_rebuild_works_with_no_derived_table_at_all(copy: Path) -> None:
    before = list(rows(copy))
    connection = sqlite3.connect(copy, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = OFF")
    derived_schema.drop(connection)
    connection.close()
    with pytest.raises(LedgerDamaged, match="ledger rebuild"):
        Ledger.open(copy, writable=True)
    Ledger.rebuild(copy)
    assert list(rows(copy)) == before


def test_rebuild_of_a_ledger_in_use_is_refused_and_an_edited_entry_changes_nothing(copy: Path) -> None:
    with Ledger.open(copy, writable=True), pytest.raises(LedgerLocked):
        Ledger.rebuild(copy)
    before = list(rows(copy))
    connection = sqlite3.connect(copy, isolation_level=None)
    connection.executescript(
        "DROP TRIGGER entries_no_update; UPDATE entries SET payload = replace(payload, 'a', 'b') WHERE idx = 9"
    )
    connection.close()
    with pytest.raises(LedgerDamaged, match="entry 9"):
        Ledger.rebuild(copy)
    assert list(rows(copy)) == before


def test_every_kind_is_in_the_log(sample: Path) -> None:
    connection = sqlite3.connect(sample)
    counted = dict(connection.execute("SELECT kind, count(*) FROM log GROUP BY kind"))
    assert set(counted) == set(KINDS) - {"status"}
    (entries,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    assert sum(counted.values()) == entries
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_floats_stand_as_numbers_beside_their_bits(tmp_path: Path) -> None:
    with small.create(tmp_path / "ledger.db") as ledger:
        writer = small.begin(ledger)
        for number, loss in enumerate((1.5, 1e-310, math.inf, math.nan), 1):
            predicate = small.step(number)
            predicate["computed"]["loss"] = jcs.f64_hex(loss)
            writer.append("step", predicate)
        found = ledger.connection.execute(
            "SELECT loss, loss_bits, learning_rate, seconds FROM steps ORDER BY step"
        ).fetchall()
        assert [row[1] for row in found] == [jcs.f64_hex(value) for value in (1.5, 1e-310, math.inf, math.nan)]
        assert [row[0] for row in found] == [1.5, 1e-310, math.inf, None]  # SQLite has no NaN
        assert found[0][2] == jcs.f32_from_hex("3b449ba6")
        assert found[0][3] == 1234 / 1e6


def test_the_status_of_a_run_follows_its_events(tmp_path: Path) -> None:
    def status(ledger: Ledger) -> tuple[Any, ...]:
        query = "SELECT status, last_step, last_loss FROM run_summaries"
        row: tuple[Any, ...] = ledger.connection.execute(query).fetchone()
        return row

    with small.create(tmp_path / "ledger.db") as ledger:
        writer = small.begin(ledger)
        assert status(ledger) == ("running", None, None)
        writer.append("step", small.step(1))
        halt = {"step": 1, "state": small.state(1)["state"], "reason": "interrupted", "observed": {"time": small.TIME}}
        writer.append("halt", halt)
        assert status(ledger) == ("interrupted", 1, 5.0)
        resume = {"from": 0, "step": 1, "state": small.state(0)["state"], "observed": {"time": small.TIME}}
        writer = RunWriter.open(ledger, small.SIGNERS["trainer"], writer.run)
        writer.append("resume", resume)
        assert status(ledger) == ("running", 1, 5.0)
        writer.append("step", small.step(2))
        writer.append("end", small.end(2))
        assert status(ledger) == ("ended", 2, 2.5)
