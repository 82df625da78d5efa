"""Derived rows of steps that are appended singly wait for company: what readers find meanwhile, who writes them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitwitness.ledger import browse
from bitwitness.ledger.errors import BitwitnessError, EntryError
from bitwitness.ledger.fsck import examine
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.sqlite import derived, derived_schema
from bitwitness.ledger.store import Ledger, LedgerDamaged, NoSuchEntry

from . import small_ledger as small


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "PATIENCE", 3600.0)  # however slow the machine is


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with small.create(path) as made:
        yield made


def _append(writer: RunWriter, number: int = 5) -> None:
    for _ in range(number):
        writer.append("step", small.step(writer.seq))


def _killed(path: Path) -> Path:
    """The file as a writer leaves it that is killed now."""
    copy = path.with_name("killed.db")
    connection = sqlite3.connect(path)
    connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()
    return copy


def _covered(path: Path) -> int:
    with Ledger.open(path) as reader:
        return derived.derived_size(reader.connection)


def _rows(path: Path) -> list[list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    rows = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in derived_schema.TABLE_NAMES]
    connection.close()
    return rows


def test_a_reader_beside_the_writer_finds_all_entries_and_the_tables_of_the_first_of_them(
    path: Path, ledger: Ledger
) -> None:
    writer = small.begin(ledger)
    before = ledger.size
    _append(writer)
    with Ledger.open(path) as reader:
        assert reader.size == before + 5 and reader.root() == ledger.root()
        assert derived.derived_size(reader.connection) == before
        assert reader.connection.execute("SELECT count(*) FROM steps").fetchone() == (0,)
        assert [index for index, _data in reader.run_entries(writer.run)] == list(range(before - 1, before + 5))
        index = before + 3
        assert reader.find(reader.leaf_hash(index)) == index
        assert [item.index for item in browse.list_entries(reader)] == list(range(reader.size))
        for limit in (1, 4, 5, 7):
            found = list(browse.list_entries(reader, run="demo", limit=limit))
            assert [(item.index, item.run) for item in found] == [
                (index, "demo") for index in range(reader.size - limit, reader.size) if index >= before - 1
            ]
        assert not list(browse.list_entries(reader, kind="end"))
        assert browse.find_step(reader, "demo", 3) == before + 2
        assert browse.listed(reader, before + 2).run == "demo"
        with pytest.raises(NoSuchEntry):
            browse.find_step(reader, "demo", 6)
        for beyond in (2**63, -1):
            with pytest.raises(NoSuchEntry, match=f"step {beyond} of run demo"):
                browse.find_step(reader, "demo", beyond)
    assert examine(path, small.TRUST).faults == []


def test_the_writer_reads_tables_of_all_entries(ledger: Ledger) -> None:
    writer = small.begin(ledger)
    _append(writer)
    assert ledger.connection.execute("SELECT max(step) FROM steps").fetchone() == (5,)
    _append(writer)
    with ledger.snapshot():
        assert ledger.connection.execute("SELECT max(step) FROM steps").fetchone() == (10,)
    _append(writer)
    assert len(list(ledger.run_entries(writer.run))) == 16
    assert ledger.run_tail(writer.run).seq == 16


@pytest.mark.parametrize("then", ["checkpoint", "close", "batch", "end"])
def test_whatever_follows_writes_what_waits(path: Path, then: str) -> None:
    with small.create(path) as ledger:
        writer = small.begin(ledger)
        _append(writer)
        assert _covered(path) == ledger.size - 5
        if then == "checkpoint":
            ledger.sign_checkpoint(small.SIGNERS["log"])
        elif then == "batch":
            writer.append_all([("step", small.step(writer.seq)), ("step", small.step(writer.seq + 1))])
        elif then == "end":
            writer.append("end", small.end(5))
        else:
            ledger.close()
        with Ledger.open(path) as reader:
            assert derived.derived_size(reader.connection) == reader.size
    assert examine(path, small.TRUST).faults == []


def test_few_steps_wait_and_not_for_long(path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = small.begin(ledger)
    most = 0
    for _ in range(2 * derived.MOST_WAITING + 10):
        _append(writer, 1)
        most = max(most, ledger._derivation.waiting)
    assert most == derived.MOST_WAITING - 1
    assert _covered(path) == ledger.size - 10
    monkeypatch.setattr(derived, "PATIENCE", 0.01)
    time.sleep(0.02)
    _append(writer, 1)
    assert _covered(path) == ledger.size


def test_the_next_writer_writes_what_a_killed_one_left(path: Path, ledger: Ledger) -> None:
    writer = small.begin(ledger)
    _append(writer)
    copy = _killed(path)
    assert _covered(copy) == ledger.size - 5
    assert examine(copy, small.TRUST).faults == []
    with Ledger.open(copy, writable=True) as opened:
        assert _covered(copy) == opened.size == ledger.size
        RunWriter.open(opened, small.SIGNERS["trainer"], writer.run).append("step", small.step(6))
    _append(writer, 1)
    ledger.close()
    assert _rows(copy) == _rows(path)
    assert examine(copy, small.TRUST).faults == []


def test_an_append_that_is_refused_loses_nothing_that_waits(path: Path, ledger: Ledger) -> None:
    writer = small.begin(ledger)
    _append(writer)
    with pytest.raises(EntryError):
        writer.append("step", small.step(9))
    _append(writer)
    assert ledger.connection.execute("SELECT count(*), max(step) FROM steps").fetchone() == (10, 10)
    assert examine(path, small.TRUST).faults == []


def test_nothing_is_acknowledged_inside_a_snapshot(path: Path, ledger: Ledger) -> None:
    writer = small.begin(ledger)
    _append(writer, 1)
    with ledger.snapshot(), pytest.raises(BitwitnessError, match="inside a snapshot"):
        _append(writer, 1)
    _append(writer, 1)
    assert ledger.connection.execute("SELECT max(step) FROM steps").fetchone() == (2,)
    assert examine(path, small.TRUST).faults == []


def test_more_than_may_wait_is_a_fault(path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = small.begin(ledger)
    _append(writer, 6)
    copy = _killed(path)
    monkeypatch.setattr(derived, "MOST_WAITING", 6)
    monkeypatch.setattr("bitwitness.ledger.fsck.MOST_WAITING", 6)
    assert {(fault.table, fault.index) for fault in examine(copy, small.TRUST).faults} == {("log", ledger.size - 1)}
    with pytest.raises(LedgerDamaged, match="ledger rebuild"):
        Ledger.open(copy, writable=True)
    Ledger.rebuild(copy)
    assert examine(copy, small.TRUST).faults == []


def test_only_rows_of_steps_may_wait(path: Path) -> None:
    small.with_run(path, 3).close()
    with Ledger.open(path, writable=True) as ledger:
        RunWriter.open(ledger, small.SIGNERS["trainer"], str(ledger.find_run("demo"))).append("end", small.end(3))
        size = ledger.size
    connection = sqlite3.connect(path)
    for trigger in ("log_no_delete", "log_no_update", "run_events_no_delete"):
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute("DELETE FROM run_events")
    connection.execute("DELETE FROM log WHERE entry = (SELECT max(entry) FROM log)")
    connection.commit()
    connection.close()
    assert ("log", size - 1) in {(fault.table, fault.index) for fault in examine(path, small.TRUST).faults}
    with pytest.raises(LedgerDamaged, match="ledger rebuild"):
        Ledger.open(path, writable=True)
