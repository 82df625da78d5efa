"""Database files whose schema or rows lie: found, or not checkable, but never believed, endless or a crash."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bitwitness.ledger import browse, fsck
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.sqlite import guard
from bitwitness.ledger.store import Ledger, LedgerDamaged
from bitwitness.ledger.verify import exit_code
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.ledger.verify_rows import entry_bytes

from . import small_ledger as small

ENDLESS = "WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with small.with_run(path, 3) as ledger:
        ledger.sign_checkpoint(small.SIGNERS["log"])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


def edit(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.executescript(script)


def loose(table: str, then: str) -> str:
    """The same table without STRICT and constraints, so that it can hold anything."""
    return f"CREATE TABLE x AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE x RENAME TO {table}; {then}"


LIES = {
    "endless entries": "ALTER TABLE entries RENAME TO e; CREATE VIEW entries AS "
    f"{ENDLESS} SELECT i AS idx, payload, signature, leaf_hash FROM c, e",
    "endless ledger": f"DROP TABLE ledger; CREATE VIEW ledger AS {ENDLESS} SELECT 1 id, 'x' format, i origin FROM c",
    "endless checkpoints": f"DROP TABLE checkpoints; CREATE VIEW checkpoints AS {ENDLESS} SELECT i id, i size, 'x' note"
    " FROM c",
    "large values": "ALTER TABLE entries RENAME TO e; CREATE VIEW entries AS SELECT idx, "
    "hex(zeroblob(400000000)) AS payload, signature, leaf_hash FROM e",
    "no ledger": "DROP TABLE ledger",
    "no strict entries": loose("entries", "UPDATE entries SET idx = NULL WHERE idx = 5"),
    "text index": loose("entries", "UPDATE entries SET idx = 'zzz' WHERE idx = 5"),
    "no strict checkpoints": loose("checkpoints", "UPDATE checkpoints SET id = x'ff', size = 'abc'"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_schema_that_lies_is_not_read(path: Path, name: str) -> None:
    edit(path, LIES[name])
    report = verify_ledger(path, small.TRUST)
    assert exit_code(report.checks) == 1
    assert any(fault.table == "sqlite_schema" for fault in report.faults)
    with pytest.raises(FoundWrong, match="schema was edited"):
        Ledger.open(path)
    checked = fsck.examine(path)
    assert checked.exit_code == 1 and not checked.complete


def test_a_view_without_end_is_not_asked(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        columns = [row[1] for row in raw.execute("PRAGMA table_info(run_summaries)")]
        raw.execute("DROP VIEW run_summaries")
        raw.execute(
            "CREATE VIEW run_summaries AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
            f" SELECT {', '.join(f'x AS {name}' for name in columns)} FROM n"
        )
    for writable in (False, True):
        with pytest.raises(LedgerDamaged, match=r"view run_summaries is not the one .* run `ledger rebuild`"):
            Ledger.open(path, writable=writable)
    Ledger.rebuild(path)
    with Ledger.open(path) as ledger:
        assert browse.run_summary(ledger, str(ledger.find_run("demo")))["name"] == "demo"


def test_a_foreign_trigger_is_not_fired(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER evil AFTER INSERT ON entries BEGIN DELETE FROM states; END")
    with pytest.raises(FoundWrong, match="trigger evil does not belong here"):
        Ledger.open(path, writable=True)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("INSERT INTO entries SELECT 9000000000000000000, payload, signature, leaf_hash, nodes FROM entries"
         " WHERE idx = 8", "missing, up to entry 9000000000000000000"),
        ("UPDATE entries SET idx = -5 WHERE idx = 9", "in another's place"),
        ("UPDATE entries SET payload = replace(hex(zeroblob(20000)), '00', '[') WHERE idx = 3", "nested deeper"),
        ("UPDATE entries SET payload = replace(hex(zeroblob(90000)), '00', '[') WHERE idx = 3", "larger than an entry"),
        ("PRAGMA writable_schema = ON; UPDATE checkpoints SET note = 'x', size = 3", "note"),
    ],
)  # fmt: skip
def test_rows_that_lie_are_found(path: Path, script: str, says: str) -> None:
    edit(path, script)
    report = verify_ledger(path, small.TRUST, processes=2)
    assert exit_code(report.checks) == 1
    assert any(says in fault.detail for fault in report.faults), report.faults
    assert fsck.examine(path, small.TRUST).exit_code == 1


def test_values_beyond_any_entry_are_not_loaded(path: Path) -> None:
    edit(path, f"UPDATE entries SET payload = hex(zeroblob({guard.MAX_VALUE})) WHERE idx = 3")
    report = verify_ledger(path, small.TRUST)
    assert exit_code(report.checks) == 1 and "too big" in str(report.faults[0])


def test_work_without_end_is_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_STEPS", 10), ("_STEPS_AT_ALL", 100), ("_STEPS_PER_BYTE", 0)):
        monkeypatch.setattr(guard, name, value)
    report = verify_ledger(path, small.TRUST)
    assert not report.faults and exit_code(report.checks) == 2
    assert "do not end" in report.checks[0].detail


def test_what_the_machine_refuses_is_not_held_against_the_file(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        report = verify_ledger(path, small.TRUST)
        assert exit_code(report.checks) == 2 and not report.faults
        assert "locked" in report.checks[0].detail
    missing = verify_ledger(path.with_name("none.db"), small.TRUST)
    assert exit_code(missing.checks) == 2 and not missing.faults


def test_the_depth_of_a_payload_is_told_before_it_is_parsed() -> None:
    for payload in (b"[" * 40_000, b'{"a":' * 8_000, b'"' + b"[" * 10_000):
        with pytest.raises(FoundWrong):
            entry_bytes(payload, bytes(64))
    text = b'{"predicate":{"signer":"' + b"[{" * 200 + b'"}}'
    with pytest.raises(BitwitnessError):  # brackets in strings do not nest
        entry_bytes(b'{"predicate":' + text, bytes(64))
    assert entry_bytes(text, bytes(64))
