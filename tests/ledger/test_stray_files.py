"""Files of other databases beside ours, from which SQLite would take pages: what they lie beside stays as it is."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bitwitness.ledger import cli, keys
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.follow.mirror import Mirror
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.witnessing.witness import Witness

from . import small_ledger as small
from .followed import Log, follow


@pytest.fixture(scope="module")
def strays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hot `-journal` and a full `-wal` of other databases, as killed programs leave them."""
    folder = tmp_path_factory.mktemp("strays")
    for mode, suffix in (("delete", "-journal"), ("wal", "-wal")):
        with closing(sqlite3.connect(folder / f"{mode}.db", isolation_level=None)) as other:
            other.execute(f"PRAGMA page_size = {4096 if mode == 'delete' else 8192}")
            other.execute(f"PRAGMA journal_mode = {mode}")
            other.execute("PRAGMA cache_size = 1")
            other.execute("CREATE TABLE t (a)")
            other.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 50)
            other.execute("BEGIN")
            other.execute("UPDATE t SET a = 'y' || a")
            shutil.copyfile(folder / f"{mode}.db{suffix}", folder / f"other{suffix}")
            other.execute("ROLLBACK")
    return folder


def put(strays: Path, database: Path, suffix: str) -> Path:
    for own in ("-wal", "-shm"):
        Path(f"{database}{own}").unlink(missing_ok=True)
    stray = Path(f"{database}{suffix}")
    shutil.copyfile(strays / f"other{suffix}", stray)
    return stray


@pytest.mark.parametrize("suffix", ["-journal", "-wal"])
def test_a_ledger_beside_another_databases_log_stays_as_it_is(strays: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "ledger.db"
    small.with_run(path).close()
    before = path.read_bytes()
    stray = put(strays, path, suffix)
    for writable in (False, True, True):
        with pytest.raises(BitwitnessError, match=f"ledger.db{suffix}.* move (it|that) elsewhere"):
            Ledger.open(path, writable=writable)
        assert path.read_bytes() == before
    stray.unlink()
    with Ledger.open(path, writable=True) as ledger:
        assert small.begin(ledger, "more").run


def test_a_witness_keeps_its_memory_beside_another_databases_log(strays: Path, tmp_path: Path) -> None:
    state = tmp_path / "w.db"
    signer = keys.Signer.from_seed("witness", bytes([7]) * 32)
    logs = [small.TRUST.log]
    Witness("w.example", signer, logs, state).close()
    before = state.read_bytes()
    for suffix in ("-journal", "-wal"):
        stray = put(strays, state, suffix)
        for _ in range(2):
            with pytest.raises(BitwitnessError, match=r"in the way|not the memory of a witness"):
                Witness("w.example", signer, logs, state)
            assert state.read_bytes() == before
        stray.unlink()
    Witness("w.example", signer, logs, state).close()
    # Without the file itself what is beside it is what is left of a memory.
    state.unlink()
    Path(f"{state}-wal").write_bytes(b"x")
    with pytest.raises(BitwitnessError, match=r"w\.db-wal is in the way"):
        Witness("w.example", signer, logs, state)
    assert Path(f"{state}-wal").read_bytes() == b"x"


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_nothing_is_written_through_a_link_beside_a_ledger(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, victim = tmp_path / "ledger.db", tmp_path / "victim"
    small.with_run(path).close()
    victim.write_bytes(b"somebody's")
    Path(f"{path}{suffix}").symlink_to(victim)
    for writable in (False, True):
        with pytest.raises(BitwitnessError, match=f"ledger.db{suffix} is in the way"):
            Ledger.open(path, writable=writable)
    assert victim.read_bytes() == b"somebody's"


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_init_makes_no_project_around_what_another_left(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stray = tmp_path / f"ledger.db{suffix}"
    stray.write_bytes(b"x")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert f"{stray} exists" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [stray]


def test_a_ledger_that_its_key_refuses_is_left_as_it_was(tmp_path: Path) -> None:
    """The log of an older copy, which the log key's memory finds out, is not moved into the file."""
    project = Project.create(tmp_path / "p")
    wal = Path(f"{project.ledger_path}-wal")
    with project.open_ledger(writable=True) as ledger:
        fresh = enrolment(project.signer("root"), keys.generate("auditor").public, "auditor")
        ledger.append([fresh])
        assert wal.stat().st_size
        shutil.copyfile(ledger.path, tmp_path / "file")
        shutil.copyfile(wal, tmp_path / "wal")
    shutil.copyfile(tmp_path / "file", project.ledger_path)
    shutil.copyfile(tmp_path / "wal", wal)
    memory = project.key_path("log").with_suffix(keys.MEMORY_SUFFIX)
    memory.write_text(memory.read_text().replace('"size":5', '"size":7'))
    for _ in range(2):
        with pytest.raises(BitwitnessError, match="rolled back"):
            project.open_ledger(writable=True)
        assert project.ledger_path.read_bytes() == (tmp_path / "file").read_bytes()


def test_a_copy_whose_making_failed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    mirror = Mirror(tmp_path / "copy", log.policy)

    def full(*_given: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("bitwitness.ledger.sqlite.derived_schema.create", full)
        with pytest.raises(BitwitnessError, match=r"ledger\.db is full"):
            follow(mirror, log)
    assert not [path.name for path in mirror.folder.iterdir() if ".db" in path.name and path.suffix != ".lock"]
    # One that was killed leaves its files, which are taken for nothing.
    for suffix in ("", "-wal", "-journal"):
        (mirror.folder / f".ledger.db.new{suffix}").write_bytes(b"half")
    assert follow(mirror, log) > 0
    assert not list(mirror.folder.glob(".ledger.db.new*"))
