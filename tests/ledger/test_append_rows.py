"""One append of many entries writes the rows that as many appends write, and refuses what they refuse."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bitwitness.ledger.entry import envelope
from bitwitness.ledger.entry.run_rules import RunRules
from bitwitness.ledger.sqlite import derived_schema, many_rows, schema
from bitwitness.ledger.sqlite.derived import MOST_KEPT, Conflict
from bitwitness.ledger.sqlite.run_tail import RunTail
from bitwitness.ledger.store import Ledger

from . import small_ledger as small

TABLES = ("entries", *derived_schema.TABLE_NAMES)


def _run(steps: int) -> list[bytes]:
    """A run's entries: steps, a state, a step more, its end."""
    kinds = [("step", small.step(number)) for number in range(1, steps + 1)]
    kinds += [
        ("state", {**small.end(steps), "bytes": 100}),
        ("step", small.step(steps + 1)),
        ("end", small.end(steps + 1)),
    ]
    return small.chain("demo", kinds)


def _rows(ledger: Ledger) -> dict[str, list[tuple[object, ...]]]:
    return {table: ledger.connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}


@pytest.mark.parametrize("steps", [0, 9, 10, 49, 50, 61, MOST_KEPT + 17])
def test_a_batch_writes_what_single_appends_write(tmp_path: Path, steps: int) -> None:
    entries = _run(steps)
    with small.create(tmp_path / "batch.db") as batch, small.create(tmp_path / "single.db") as single:
        batch.append(entries)
        single.append(entries[: -3 - steps % 100])  # most of them in one, for time
        for entry in entries[-3 - steps % 100 :]:
            single.append([entry])
        assert _rows(batch) == _rows(single)
        assert batch.root() == single.root()
        assert len(_rows(batch)["steps"]) == steps + 1
        batch.sign_checkpoint(small.SIGNERS["log"])


@pytest.mark.parametrize("refused", [0, 10, 49, 50, 61, 72])
def test_the_error_is_that_of_the_first_row_that_is_refused(refused: int) -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT NOT NULL)")
        connection.execute("INSERT INTO t VALUES (1000, 'taken', 'x')")
        rows = [(number, f"b{number}", "x") for number in range(73)]
        rows[refused] = (refused, "taken", "x")
        if refused < 72:
            rows[72] = (72, "b72", None)  # type: ignore[assignment]
        with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: t\.b"):
            many_rows.insert(connection, "t", ("a", "b", "c"), rows)
        assert connection.execute("SELECT a FROM t WHERE a < 1000").fetchall() == [(n,) for n in range(refused)]


def test_a_step_that_is_there_already_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The rules of a run refuse this before the tables do: without them the tables must still say which.
    monkeypatch.setattr(RunRules, "follow", lambda *_: None)
    monkeypatch.setattr(RunTail, "check", lambda *_: None)
    entries = _run(80)
    with small.create(tmp_path / "ledger.db") as ledger:
        ledger.append(entries[:1])
        again = small.chain("demo", [("step", small.step(n if n != 67 else 5)) for n in range(1, 81)])
        with pytest.raises(Conflict, match="step 5 of this run is already in the ledger"):
            ledger.append(again[1:])
        assert not ledger.connection.execute("SELECT 1 FROM steps").fetchone()


def test_one_statement_holds_no_more_parameters_than_any_sqlite_takes() -> None:
    connection = sqlite3.connect(":memory:")
    for statement in schema.split_statements(schema.TABLES + derived_schema.TABLES):
        connection.execute(statement)
    for table in ("entries", "log", "steps", "leaf_places"):
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        assert len(columns) * max(many_rows.AT_ONCE) <= 999


def test_entries_that_others_made_come_back(tmp_path: Path) -> None:
    entries = _run(120)
    with small.create(tmp_path / "ledger.db") as ledger:
        first = ledger.append(entries)[0]
        assert [data for _index, data in ledger.entries(first)] == entries
        assert envelope.open_envelope(ledger.entry(first + 60)).statement["predicate"]["seq"] == 60
