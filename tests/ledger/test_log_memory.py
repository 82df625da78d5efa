"""What a log key remembers, and what it looks at before it signs: the entries since its last checkpoint."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from bitwitness.ledger import jcs, keys, merkle
from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.errors import KeyFileError
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.sqlite import log_memory, nodes, schema
from bitwitness.ledger.sqlite.log_memory import LogRolledBack
from bitwitness.ledger.store import Ledger, LedgerDamaged

from . import small_ledger as small

LOG = small.SIGNERS["log"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.create(tmp_path / "project")


def grow(project: Project, number: int = 1) -> None:
    root = project.signer("root")
    with project.open_ledger(writable=True) as ledger:
        ledger.append([enrolment(root, keys.generate("witness").public, "witness") for _ in range(number)])
        ledger.sign_checkpoint(project.signer("log"))


def edit(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    """Change a ledger file behind its triggers' back."""
    with sqlite3.connect(path) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _sql in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement, values)
        for _name, sql in triggers:
            connection.execute(sql)
    connection.close()


# Memory ---------------------------------------------------------------------------------------------------


def test_the_key_remembers_the_largest_tree(project: Project) -> None:
    memory = project.keys_dir / "log.head"
    for size in (5, 7):
        (head,) = jcs.parse(memory.read_bytes().removesuffix(b"\n"))["heads"]
        with project.open_ledger() as ledger:
            assert head == {"origin": ledger.origin, "size": size, "root": ledger.root(size).hex()}
        grow(project, 2)
    assert memory.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in project.keys_dir.glob("log*")) == ["log.head", "log.pem", "log.pub"]


def test_a_memory_may_be_a_link(project: Project, tmp_path: Path) -> None:
    memory = project.keys_dir / "log.head"
    memory.rename(tmp_path / "kept")
    memory.symlink_to(tmp_path / "kept")
    before = (tmp_path / "kept").read_bytes()
    grow(project)
    assert memory.is_symlink() and (tmp_path / "kept").read_bytes() != before


def test_a_ledger_that_was_put_back_is_neither_written_nor_signed(project: Project, tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    shutil.copyfile(project.ledger_path, old)
    grow(project)
    shutil.copyfile(old, project.ledger_path)
    with pytest.raises(LogRolledBack, match="has signed 6 entries, and the ledger holds 5") as raised:
        project.open_ledger(writable=True)
    assert raised.value.signed == 6 and raised.value.exit_code == 1 and "\n" not in str(raised.value)
    with Ledger.open(project.ledger_path, writable=True) as ledger:
        with pytest.raises(LogRolledBack):
            ledger.sign_checkpoint(project.signer("log"))
        # Another history of the same length, and a longer one.
        for _ in range(2):
            ledger.append([enrolment(project.signer("root"), keys.generate("witness").public, "witness")])
            with pytest.raises(LogRolledBack, match="begins with others"):
                ledger.sign_checkpoint(project.signer("log"))
        assert len(ledger.newest_checkpoints(9)) == 1


def test_the_memory_is_written_before_the_signature_is_made(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_insert_checkpoint", stopped)
        with pytest.raises(KeyboardInterrupt):
            grow(project)
    assert jcs.parse((project.keys_dir / "log.head").read_bytes().strip())["heads"][0]["size"] == 6
    grow(project)  # goes on: the same entries are still there


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "1", "{}", '{"heads":[{}]}', '{"heads":[1]}', '{"heads":{}}', '{"heads":"x"}', "\xff"),
        '{"heads":[{"origin":"x","root":"00","size":1}]}',
        f'{{"heads":[{{"origin":1,"root":"{"00" * 32}","size":1}}]}}',
        f'{{"heads":[{{"origin":"x","root":"{"00" * 32}","size":"1"}}]}}',
        f'{{"heads":[{{"origin":"x","root":"{"00" * 32}","size":true}}]}}',
        f'{{"heads":[{{"origin":"x","root":"{"00" * 32}","size":-1}}]}}',
        '{"heads":[{"origin":"x","root":1,"size":1}]}',
    ],
)
def test_a_damaged_memory_is_told(project: Project, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (project.keys_dir / "log.head").write_bytes(text.encode("latin-1"))
    with pytest.raises(KeyFileError, match="restore it from a copy"):
        grow(project)
    assert main(["--project", str(project.root), "checkpoint"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_memory_that_cannot_be_kept_means_no_signature(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_memory.os, "replace", full)
        with pytest.raises(KeyFileError, match="cannot be remembered there: no space left on device"):
            grow(project)
    assert [path.name for path in project.keys_dir.glob("log.head*")] == ["log.head"]
    with project.open_ledger() as ledger:
        assert [size for size, _note in ledger.newest_checkpoints(9)] == [5]


def test_one_key_may_serve_two_logs(project: Project) -> None:
    memory = project.keys_dir / "log.head"
    log_memory.remember(memory, log_memory.Head("example.org/other", 0, merkle.EMPTY_ROOT), lambda _: [])
    grow(project)
    assert len(jcs.parse(memory.read_bytes().strip())["heads"]) == 2


# The tail -------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with a checkpoint over 8 entries and 12 more after it."""
    path = tmp_path / "ledger.db"
    with small.create(path) as ledger:
        writer = small.begin(ledger)
        ledger.sign_checkpoint(LOG)
        writer.append_all([("step", small.step(number)) for number in range(1, 13)])
    return path


def test_a_sound_tail_of_another_process_is_signed(path: Path) -> None:
    with Ledger.open(path, writable=True) as ledger:
        ledger.sign_checkpoint(LOG)
        assert ledger.newest_checkpoints(1)[0][0] == ledger.size == 20


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET payload = replace(payload, '{\"_type\"', '{ \"_type\"') WHERE idx = 11",
        "UPDATE entries SET signature = zeroblob(64) WHERE idx = 11",
        "UPDATE entries SET leaf_hash = zeroblob(32) WHERE idx = 11",
        "UPDATE entries SET nodes = zeroblob(64) WHERE idx = 11",
        "UPDATE entries SET nodes = CAST(substr(nodes, 33) || substr(nodes, 1, 32) AS BLOB) WHERE idx = 11",
        "UPDATE entries SET nodes = zeroblob(0) WHERE idx = 11",
        "DELETE FROM entries WHERE idx = 11",
    ],
)
@pytest.mark.parametrize("while_open", [False, True])
def test_a_damaged_tail_is_not_signed(path: Path, statement: str, while_open: bool) -> None:
    if while_open:
        with Ledger.open(path, writable=True) as ledger:
            ledger.connection.execute("PRAGMA foreign_keys = OFF")
            edit(path, statement)
            with pytest.raises(LedgerDamaged, match="no checkpoint is signed over it"):
                ledger.sign_checkpoint(LOG)
        return
    edit(path, statement)
    with Ledger.open(path, writable=True) as ledger:
        with pytest.raises(LedgerDamaged, match="no checkpoint is signed over it"):
            ledger.sign_checkpoint(LOG)
        assert [size for size, _note in ledger.newest_checkpoints(9)] == [8]


def test_own_entries_are_compared_with_what_was_appended(path: Path) -> None:
    """A consistent forgery of the file under the writer's hands: leaf hash and nodes go with the bytes."""
    with Ledger.open(path, writable=True) as ledger:
        writer = RunWriter.open(ledger, small.SIGNERS["trainer"], str(ledger.find_run("demo")))
        index = writer.append("step", small.step(13))
        forged = ledger.connection.execute("SELECT payload FROM entries WHERE idx = ?", (index,)).fetchone()[0]
        data = schema.entry_bytes(forged.encode(), bytes(64))
        edit(
            path,
            f"UPDATE entries SET signature = zeroblob(64), leaf_hash = ? WHERE idx = {index}",
            values=(merkle.leaf_hash(data),),
        )
        with pytest.raises(LedgerDamaged, match="not those that this process has appended"):
            ledger.sign_checkpoint(LOG)


def test_an_entry_without_a_sound_signature_is_not_signed_over(path: Path) -> None:
    """Everything in the file fits together, but nobody signed the last entry."""
    with Ledger.open(path) as ledger:
        rows = [merkle.leaf_hash(data) for _index, data in ledger.entries()]
    with sqlite3.connect(path) as connection:
        (payload,) = connection.execute("SELECT payload FROM entries WHERE idx = 18").fetchone()
    connection.close()
    rows[18] = merkle.leaf_hash(schema.entry_bytes(payload.encode(), bytes(64)))
    tree = merkle.Frontier()
    made = [nodes.column(tree.append(leaf)) for leaf in rows]
    edit(path, "UPDATE entries SET signature = zeroblob(64), leaf_hash = ? WHERE idx = 18", values=(rows[18],))
    for index, stored in enumerate(made):
        edit(path, f"UPDATE entries SET nodes = ? WHERE idx = {index}", values=(stored,))
    with Ledger.open(path, writable=True) as ledger, pytest.raises(LedgerDamaged, match="entry 18: the signature"):
        ledger.sign_checkpoint(LOG)


def test_a_checkpoint_that_the_key_did_not_sign_vouches_for_nothing(path: Path) -> None:
    edit(path, "UPDATE entries SET payload = payload || ' ' WHERE idx = 11")
    stranger = keys.Signer.from_seed("log", b"\x55" * 32)
    with Ledger.open(path, writable=True) as ledger:
        from bitwitness.ledger.checkpoint import Checkpoint
        from bitwitness.ledger.note import sign_note

        head = Checkpoint(ledger.origin, ledger.size, ledger.root()).format()
        ledger._insert_checkpoint(ledger.size, sign_note(head, ledger.origin, stranger))
        with pytest.raises(LedgerDamaged, match="entry 11 was edited"):
            ledger.sign_checkpoint(LOG)


def test_only_the_tail_is_read(path: Path) -> None:
    """What the last checkpoint covers is not read again: fsck does that."""
    edit(path, "UPDATE entries SET payload = payload || ' ' WHERE idx = 6")
    with Ledger.open(path, writable=True) as ledger:
        ledger.sign_checkpoint(LOG)


# Files that are no files ----------------------------------------------------------------------------------


def test_fifos_and_devices_are_refused_at_once(project: Project, tmp_path: Path) -> None:
    for name in ("log.pem", "log.pub", "log.head"):
        file = project.keys_dir / name
        saved = file.read_bytes()
        for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
            file.unlink()
            make(file)
            with pytest.raises(KeyFileError, match="not a regular file"):
                grow(project)
        file.unlink()
        file.write_bytes(saved)
        file.chmod(0o600)
    grow(project)
