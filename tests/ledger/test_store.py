"""The store: what it gives back, what it refuses, and that nothing is lost or half done."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from bitwitness.ledger import keys, merkle
from bitwitness.ledger.checkpoint import open_checkpoint
from bitwitness.ledger.entry import envelope, sealed
from bitwitness.ledger.errors import BitwitnessError, EntryError, FoundWrong, SignatureError
from bitwitness.ledger.note import Verifier
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.sqlite import derived_schema, guard, schema
from bitwitness.ledger.sqlite.admission import SignerNotEnrolled
from bitwitness.ledger.sqlite.derived import Conflict, UnknownReference
from bitwitness.ledger.sqlite.ledger_file import reporting
from bitwitness.ledger.sqlite.lock import LedgerLocked, LedgerReadOnly
from bitwitness.ledger.sqlite.run_tail import RunForked
from bitwitness.ledger.store import Ledger, LedgerDamaged, LedgerFull, LedgerNotFound, NoSuchEntry, NotALedger

from . import small_ledger as small

LOG = Verifier(small.ORIGIN, small.SIGNERS["log"].public)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with small.create(path) as made:
        yield made


# What comes back ------------------------------------------------------------------------------------------


def test_entries_come_back_to_the_byte(ledger: Ledger) -> None:
    wanted = [*small.key_entries(), small.DATASET]
    assert [data for _index, data in ledger.entries()] == wanted
    assert [index for index, _data in ledger.entries(2, 4)] == [2, 3]
    for index, data in enumerate(wanted):
        assert ledger.entry(index) == data
        assert ledger.leaf_hash(index) == merkle.leaf_hash(data)
        assert ledger.find(merkle.leaf_hash(data)) == index
        assert ledger.find_prefix(merkle.leaf_hash(data).hex()[:8]) == [index]
    assert ledger.find(bytes(32)) is None
    for missing in (-1, len(wanted)):
        with pytest.raises(NoSuchEntry):
            ledger.entry(missing)


def test_roots_and_proofs_of_every_size(path: Path) -> None:
    with small.with_run(path, 40) as ledger:
        leaves = [merkle.leaf_hash(data) for _index, data in ledger.entries()]
        for size in range(len(leaves) + 1):
            assert ledger.root(size) == merkle.root(leaves[:size])
            for index in range(size):
                assert ledger.inclusion_proof(index, size) == merkle.inclusion_proof(index, leaves[:size])
                assert ledger.consistency_proof(index + 1, size) == merkle.consistency_proof(index + 1, leaves[:size])
        with pytest.raises(NoSuchEntry):
            ledger.root(len(leaves) + 1)
        with pytest.raises(FoundWrong):
            ledger.inclusion_proof(7, 7)


def test_reopened_ledger_goes_on_with_the_same_tree(path: Path) -> None:
    with small.with_run(path, 6) as ledger:
        size, root = ledger.size, ledger.root()
    for writable in (False, True):
        with Ledger.open(path, writable=writable) as again:
            assert (again.size, again.root()) == (size, root)
    with Ledger.open(path, writable=True) as again:
        run = again.find_run("demo")
        assert run is not None
        RunWriter.open(again, small.SIGNERS["trainer"], run).append("step", small.step(7))
        assert again.root() == merkle.root([merkle.leaf_hash(data) for _index, data in again.entries()])


def test_a_reader_cannot_write(path: Path) -> None:
    small.create(path).close()
    with Ledger.open(path) as reader:
        with pytest.raises(BitwitnessError, match="reading only"):
            reader.append([])
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.connection.execute("DELETE FROM entries")


# What is refused ------------------------------------------------------------------------------------------


def test_the_first_entry_enrols_the_root_key(path: Path) -> None:
    entries = small.key_entries()
    with Ledger.create(path, small.ORIGIN) as ledger:
        for wrong in ([entries[1]], [small.DATASET], [small.revocation("root", 0)]):
            with pytest.raises(EntryError):
                ledger.append(wrong)
        assert ledger.size == 0
        assert ledger.append(entries) == range(6)


def test_an_existing_file_is_not_replaced(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(BitwitnessError, match="never overwritten"):
        Ledger.create(path, small.ORIGIN)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: b"", FoundWrong),
        (lambda data: data + b"\n", FoundWrong),
        (lambda data: data.replace(b'"sig":"', b'"sig":"AA'), FoundWrong),
        (lambda data: b"\xff" * 100, FoundWrong),
        (lambda data: b"[" * 70000, FoundWrong),
    ],
)
def test_malformed_entries_are_refused(
    ledger: Ledger, change: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    before = ledger.size, ledger.root()
    with pytest.raises(error):
        ledger.append([change(small.DATASET)])
    assert (ledger.size, ledger.root()) == before


def test_a_batch_is_taken_whole_or_not_at_all(ledger: Ledger) -> None:
    before = ledger.size, ledger.root()
    good = small.seal("run", small.genesis() | {"seq": 0, "history": small.tree("history/1", 0, "")
                      | {"root": merkle.EMPTY_ROOT.hex()}})  # fmt: skip
    with pytest.raises(Conflict):
        ledger.append([good, small.DATASET])
    assert (ledger.size, ledger.root()) == before
    assert ledger.find_run("demo") is None
    assert ledger.append([good]) == range(before[0], before[0] + 1)


def test_signers_must_be_enrolled_for_their_role_and_not_revoked(ledger: Ledger) -> None:
    stranger = keys.Signer.from_seed("trainer", b"\x77" * 32)
    dataset = envelope.open_envelope(small.DATASET).statement["predicate"] | {"name": "other"}
    del dataset["signer"]
    with pytest.raises(SignerNotEnrolled, match="not enrolled"):
        ledger.append([small.seal("dataset", dataset, signer=stranger)])
    with pytest.raises(SignerNotEnrolled, match="auditor key"):
        ledger.append([small.seal("dataset", dataset, role="auditor")])
    with pytest.raises(SignerNotEnrolled, match="needs a root key"):
        trainer = small.SIGNERS["trainer"]
        key = envelope.open_envelope(small.key_entries()[1]).statement["predicate"] | {"action": "enrol"}
        ledger.append([small.seal("key", key, signer=trainer)])
    ledger.append([small.revocation("trainer", ledger.size + 1)])
    with pytest.raises(SignerNotEnrolled, match="revoked"):
        ledger.append([small.seal("dataset", dataset)])


def test_a_signature_by_another_key_is_refused(ledger: Ledger) -> None:
    opened = envelope.open_envelope(small.DATASET)
    statement = opened.statement | {"predicate": opened.statement["predicate"] | {"name": "other"}}
    payload = small.jcs.encode(statement)
    forged = envelope.assemble(payload, opened.keyid, opened.signature)
    with pytest.raises(SignatureError):
        ledger.append([forged])


def test_one_payload_is_one_entry(ledger: Ledger) -> None:
    opened = envelope.open_envelope(small.DATASET)
    again = envelope.assemble(opened.payload, opened.keyid, bytes(64))
    with pytest.raises(Conflict, match="already in the ledger"):
        ledger.append([replace(sealed.read(again), verified=True)])  # as if that signature were sound
    with pytest.raises(Conflict, match="already in the ledger"):
        ledger.append([small.DATASET])


def test_what_an_entry_names_must_be_in_the_ledger(ledger: Ledger) -> None:
    intent = {"run": "00" * 32, "size": 3, "first": 0, "last": 1, "samples": 1, "beacon": {"kind": "none"},
              "root": "00" * 32, "time": small.TIME}  # fmt: skip
    with pytest.raises(UnknownReference) as raised:
        ledger.append([small.seal("audit-intent", intent)])
    assert raised.value.value == "00" * 32
    with pytest.raises(UnknownReference, match="dataset"):
        predicate = small.genesis()
        predicate["datasets"][0]["entry"] = "11" * 32
        RunWriter.begin(ledger, small.SIGNERS["trainer"], predicate)


def test_a_run_name_is_taken_once(ledger: Ledger) -> None:
    small.begin(ledger)
    with pytest.raises(Conflict, match="'demo' is already in this ledger"):
        RunWriter.begin(ledger, small.SIGNERS["trainer"], small.genesis() | {"seed": small.jcs.u64_hex(2)})
    with pytest.raises(Conflict, match="this run is already"):
        small.begin(ledger)


def test_a_key_is_revoked_or_rotated_only_as_what_it_is(ledger: Ledger) -> None:
    stranger = keys.Signer.from_seed("trainer", b"\x77" * 32)
    key = {"algorithm": "ed25519", "keyid": stranger.keyid, "public": stranger.public.raw.hex(), "role": "trainer"}
    with pytest.raises(UnknownReference):
        ledger.append([small.seal("key", {"action": "revoke", "key": key, "from": 9, "time": small.TIME})])
    replaces = small.SIGNERS["auditor"].keyid
    with pytest.raises(EntryError, match="auditor key"):
        ledger.append([small.seal("key", {"action": "rotate", "key": key, "replaces": replaces, "time": small.TIME})])


# Append-only ----------------------------------------------------------------------------------------------


def test_no_row_of_any_table_can_be_edited(path: Path) -> None:
    from . import serve_sample

    project = serve_sample.build(path.parent / "sample", 40)
    connection = sqlite3.connect(project.ledger_path, isolation_level=None)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    assert set(tables) >= {"ledger", "entries", "checkpoints", *derived_schema.TABLE_NAMES}
    for table in tables:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if not connection.execute(f"SELECT 1 FROM {table}").fetchone():
            continue
        for column in columns:
            with pytest.raises(sqlite3.IntegrityError, match=r"append-only|derived|one origin"):
                connection.execute(f"UPDATE {table} SET {column} = {column}")
        with pytest.raises(sqlite3.IntegrityError, match=r"append-only|derived|one origin"):
            connection.execute(f"DELETE FROM {table}")
        with pytest.raises(sqlite3.IntegrityError, match=r"append-only|derived|one origin"):
            connection.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table} LIMIT 1")
    connection.close()


# Runs -----------------------------------------------------------------------------------------------------


def test_a_second_entry_for_one_place_in_a_run_is_refused(path: Path) -> None:
    with small.with_run(path, 3) as ledger:
        run = str(ledger.find_run("demo"))
        first = RunWriter.open(ledger, small.SIGNERS["trainer"], run)
        second = RunWriter.open(ledger, small.SIGNERS["trainer"], run)
        first.append("step", small.step(4))
        with pytest.raises(RunForked) as raised:
            second.append("step", small.step(4) | {"observed": {"time": "2026-01-02T03:04:06Z"}})
        assert raised.value.seq == 4
        with pytest.raises(EntryError, match="step 5 must follow"):
            first.append("step", small.step(4))
        assert first.append("step", small.step(5)) == ledger.size - 1


def test_only_the_trainer_of_a_run_continues_it(path: Path) -> None:
    with small.with_run(path, 3) as ledger:
        run = str(ledger.find_run("demo"))
        other = keys.Signer.from_seed("trainer", b"\x55" * 32)
        ledger.append([small.enrolment(small.SIGNERS["root"], other.public, "trainer", time=small.TIME)])
        with pytest.raises(SignerNotEnrolled, match="not the trainer"):
            RunWriter.open(ledger, other, run).append("step", small.step(4))
        fresh = keys.Signer.from_seed("trainer", b"\x56" * 32)
        ledger.append([small.rotation("trainer", fresh)])
        with pytest.raises(SignerNotEnrolled, match="revoked"):
            RunWriter.open(ledger, small.SIGNERS["trainer"], run).append("step", small.step(4))
        RunWriter.open(ledger, fresh, run).append("step", small.step(4))


# Checkpoints ----------------------------------------------------------------------------------------------


def test_checkpoints_are_signed_stored_and_not_repeated(ledger: Ledger) -> None:
    assert ledger.latest_checkpoint() is None
    note = ledger.sign_checkpoint(small.SIGNERS["log"])
    checkpoint, _note = open_checkpoint(note, [LOG], small.ORIGIN)
    assert (checkpoint.size, checkpoint.root) == (ledger.size, ledger.root())
    assert ledger.sign_checkpoint(small.SIGNERS["log"]) == note == ledger.latest_checkpoint()
    assert ledger.connection.execute("SELECT count(*) FROM checkpoints").fetchone() == (1,)
    assert ledger.latest_checkpoint(at_least=ledger.size + 1) is None
    small.begin(ledger)
    assert ledger.sign_checkpoint(small.SIGNERS["log"]) != note
    with pytest.raises(BitwitnessError, match="log key"):
        ledger.sign_checkpoint(small.SIGNERS["trainer"])


def test_a_tree_that_does_not_extend_its_checkpoint_is_not_built_upon(path: Path) -> None:
    with small.with_run(path, 5) as ledger:
        ledger.sign_checkpoint(small.SIGNERS["log"])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TRIGGER entries_no_update")
    connection.execute("UPDATE entries SET nodes = zeroblob(96) WHERE idx = 7")  # the last is level 3, index 0
    connection.close()
    with pytest.raises(LedgerDamaged, match="checkpoint"):
        Ledger.open(path, writable=True)
    with Ledger.open(path) as reader:
        assert reader.size == 13


def test_entries_behind_the_checkpoint_must_be_there(path: Path) -> None:
    with small.with_run(path, 5) as ledger:
        ledger.sign_checkpoint(small.SIGNERS["log"])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("DROP TRIGGER entries_no_delete; DELETE FROM entries WHERE idx = 12")
    connection.close()
    with pytest.raises(LedgerDamaged, match="12 entries, but a checkpoint signed 13"):
        Ledger.open(path, writable=True)


# One writer, many readers, no loss ------------------------------------------------------------------------


def test_a_second_writer_is_told_who_writes(path: Path) -> None:
    with small.create(path):
        with pytest.raises(LedgerLocked) as raised:
            Ledger.open(path, writable=True)
        assert raised.value.pid == os.getpid()
        script = (
            "import sys; from pathlib import Path; from bitwitness.ledger.store import Ledger\n"
            "from bitwitness.ledger.sqlite.lock import LedgerLocked, LedgerReadOnly\n"
            "try: Ledger.open(Path(sys.argv[1]), writable=True)\n"
            "except LedgerLocked as error: print(error.pid)"
        )
        answer = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == str(os.getpid())
    Ledger.open(path, writable=True).close()


def test_a_forked_child_does_not_keep_the_lock(path: Path) -> None:
    ledger = small.create(path)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"1")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    ledger.close()
    try:
        Ledger.open(path, writable=True).close()
    finally:
        os.write(done[1], b"1")
        os.waitpid(child, 0)
        for end in (*ready, *done):
            os.close(end)


def test_readers_see_only_whole_batches(path: Path) -> None:
    with small.create(path) as ledger:
        start = ledger.size + 1
        writer = small.begin(ledger)
        seen: list[int] = []
        stop = threading.Event()

        def read() -> None:
            with Ledger.open(path) as reader:
                while not stop.is_set():
                    with reader.snapshot():
                        size = reader.size
                        assert reader.root() == reader.root(size)
                        (steps,) = reader.connection.execute("SELECT count(*) FROM steps").fetchone()
                        assert steps == size - start
                    seen.append(size)

        thread = threading.Thread(target=read)
        thread.start()
        for batch in range(30):
            writer.append_all([("step", small.step(batch * 10 + number)) for number in range(1, 11)])
        stop.set()
        thread.join()
    assert seen == sorted(seen)
    assert {(size - start) % 10 for size in seen} == {0}
    assert len(set(seen)) > 1


_WRITER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.ledger import small_ledger as small
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.run_chain import RunWriter
ledger = Ledger.open(Path(sys.argv[1]), writable=True)
writer = RunWriter.open(ledger, small.SIGNERS["trainer"], ledger.find_run("demo"))
for number in range(writer.seq, 100000):
    print(writer.append("step", small.step(number)), flush=True)
    if number % 7 == 0:
        ledger.sign_checkpoint(small.SIGNERS["log"])
"""


def test_a_killed_writer_loses_nothing_that_it_acknowledged(path: Path) -> None:
    from bitwitness.ledger.fsck import examine

    with small.create(path) as ledger:
        small.begin(ledger)
    root = Path(__file__).resolve().parents[2]
    for acknowledged in (3, 11, 24):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdout=subprocess.PIPE,
            cwd=root,
            env=os.environ | {"PYTHONPATH": "."},
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(acknowledged)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.wait()
        last = int([line for line in lines if line.endswith(b"\n")][-1])
        with Ledger.open(path, writable=True) as ledger:
            assert ledger.size > last
            run = str(ledger.find_run("demo"))
            resumed = RunWriter.open(ledger, small.SIGNERS["trainer"], run)
            resumed.append("step", small.step(resumed.seq))
        report = examine(path)
        assert report.exit_code == 0, report.checks


def test_a_full_disk_loses_nothing(path: Path) -> None:
    with small.create(path) as ledger:
        writer = small.begin(ledger)
        (pages,) = ledger.connection.execute("PRAGMA page_count").fetchone()
        ledger.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        done = 0
        with pytest.raises(LedgerFull) as raised:
            for done in range(1, 1000):
                writer.append("step", small.step(done))
        assert raised.value.size == ledger.size == 7 + done
        ledger.connection.execute("PRAGMA max_page_count = 1000000")
        writer.append("step", small.step(done))
        assert ledger.root() == merkle.root([merkle.leaf_hash(data) for _index, data in ledger.entries()])


@pytest.mark.parametrize(
    ("name", "free", "files", "full"),
    [
        ("SQLITE_IOERR_READ", 1 << 19, 5, True),
        ("SQLITE_IOERR_READ", 1 << 30, 0, True),
        ("SQLITE_IOERR_SHMSIZE", 1 << 30, 5, True),
        ("SQLITE_IOERR_READ", 1 << 30, 5, False),
    ],
)
def test_an_error_of_the_disk_says_whether_it_may_be_full(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, free: int, files: int, full: bool
) -> None:
    disk = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_files=10, f_favail=files)
    monkeypatch.setattr(os, "statvfs", lambda asked: disk if asked == path.parent else None)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = getattr(sqlite3, name)
    with pytest.raises(BitwitnessError) as raised, reporting(path):
        raise error
    told = "disk I/O error" + "; the disk may be full" * full
    assert str(raised.value) == f"{path} cannot be used: {told}"
    assert guard.reason(error, path) == told  # what `ledger verify` and `ledger fsck` say


def test_a_lock_that_the_full_disk_does_not_take(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said of the ledger, in one line, and nobody holds the lock then."""
    small.create(path).close()
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(LedgerReadOnly, match=f"{path.name} cannot be written: no space left on device"):
            Ledger.open(path, writable=True)
    Ledger.open(path, writable=True).close()


def test_an_interrupt_in_the_middle_of_an_append_takes_it_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small.with_run(path, 2) as ledger:
        before = ledger.size, ledger.root()
        run = str(ledger.find_run("demo"))
        writer = RunWriter.open(ledger, small.SIGNERS["trainer"], run)

        def interrupted(*arguments: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(ledger._derivation, "apply", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.append("step", small.step(3))
        assert (ledger.size, ledger.root()) == before
        assert writer.append("step", small.step(3)) == before[0]


# Damaged files --------------------------------------------------------------------------------------------


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(LedgerNotFound):
        Ledger.open(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("not a database, only some text that is long enough to have a header" * 3)
    (tmp_path / "empty.db").write_bytes(b"")
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE entries (idx)")
    connection.close()
    for name in ("text.db", "empty.db", "other.db", "."):
        with pytest.raises(NotALedger) as raised:
            Ledger.open(tmp_path / name)
        assert "\n" not in str(raised.value)


def test_a_file_cut_anywhere_is_refused_in_one_line(path: Path) -> None:
    small.with_run(path, 30).close()
    data = path.read_bytes()
    for length in [*range(0, 200, 20), *range(200, len(data), 9973), len(data) - 1]:
        path.write_bytes(data[:length])
        for writable in (False, True):
            with pytest.raises((NotALedger, LedgerDamaged)) as raised:
                Ledger.open(path, writable=writable)
            assert "\n" not in str(raised.value)


def test_an_edited_entry_is_never_handed_out(path: Path) -> None:
    small.with_run(path, 5).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TRIGGER entries_no_update")
    connection.execute("UPDATE entries SET payload = replace(payload, 'text', 'next') WHERE idx = 6")
    connection.close()
    with Ledger.open(path) as ledger, pytest.raises(LedgerDamaged, match="entry 6 was edited"):
        ledger.entry(6)


def test_an_edited_end_is_not_built_upon(path: Path) -> None:
    small.with_run(path, 5).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TRIGGER entries_no_update")
    connection.execute("UPDATE entries SET payload = '[]' WHERE idx = 12")
    connection.close()
    with pytest.raises(LedgerDamaged, match="entry 12 was edited"):
        Ledger.open(path, writable=True)
    Ledger.open(path).close()


def test_a_checkpoint_that_cannot_be_read_says_what_to_do(path: Path) -> None:
    small.create(path).close()
    for number, note in enumerate(("", "x\n\n\u2014 a b\n", "x\n\n\u2014 a AAAAAAA=\n")):
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("INSERT INTO checkpoints (id, size, note) VALUES (?, 7, ?)", (number, note))
        with Ledger.open(path) as ledger, pytest.raises(LedgerDamaged, match=r"newest checkpoint .* run `ledger fsck`"):
            ledger.latest_checkpoint()


def test_a_replaced_log_key_without_an_end_says_what_to_do(path: Path) -> None:
    new = keys.Signer.from_seed("log", b"\x77" * 32)
    with small.create(path) as ledger:
        ledger.append([small.rotation("log", new)])
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        (trigger,) = raw.execute("SELECT sql FROM sqlite_schema WHERE name = 'key_revocations_no_delete'").fetchone()
        raw.execute("DROP TRIGGER key_revocations_no_delete")
        raw.execute("DELETE FROM key_revocations")
        raw.execute(trigger)
    with Ledger.open(path, writable=True) as ledger, pytest.raises(FoundWrong, match="run `ledger rebuild`"):
        ledger.sign_checkpoint(small.SIGNERS["log"], new)


def test_random_damage_gives_one_line(path: Path) -> None:
    """Bytes overwritten all over the file: an error of ours, or answers that are still right."""
    small.with_run(path, 60).close()
    data = path.read_bytes()
    with Ledger.open(path) as ledger:
        size, root = ledger.size, ledger.root()
        entries = list(ledger.entries())
    for start in range(100, len(data) - 64, len(data) // 60):
        path.write_bytes(data[:start] + b"\xa5" * 64 + data[start + 64 :])
        for extra in ("-wal", "-shm"):
            path.with_name(path.name + extra).unlink(missing_ok=True)
        try:
            with Ledger.open(path, writable=True) as ledger:
                assert list(ledger.entries()) == entries
                if (ledger.size, ledger.root()) != (size, root):
                    continue  # a damaged node leads to another root, which no checkpoint signs
        except BitwitnessError as error:
            assert "\n" not in str(error)


def test_schema_is_the_documented_one(ledger: Ledger) -> None:
    (application,) = ledger.connection.execute("PRAGMA application_id").fetchone()
    assert application == schema.APPLICATION_ID
    for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
        assert ledger.connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)
    rows = ledger.connection.execute("PRAGMA table_list").fetchall()
    assert all(row[5] for row in rows if row[2] == "table" and not row[1].startswith("sqlite_")), (
        "all tables are STRICT"
    )


def test_a_writer_through_a_link_meets_the_same_lock(path: Path) -> None:
    with small.create(path):
        link = path.with_name("link.db")
        link.symlink_to(path)
        with pytest.raises(LedgerLocked):
            Ledger.open(link, writable=True)


def test_a_ledger_in_a_read_only_folder_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bitwitness.ledger.fsck import examine

    small.with_run(path, 3).close()
    path.parent.chmod(0o555)
    try:
        monkeypatch.setattr(os, "access", lambda *arguments: False)  # which root would not be told
        with Ledger.open(path) as ledger:
            assert ledger.size == 11
        assert examine(path, small.TRUST).exit_code == 0
        assert not path.with_name("ledger.db-shm").exists()
    finally:
        path.parent.chmod(0o755)


def test_a_ledger_that_cannot_be_locked_is_told(path: Path) -> None:
    small.create(path).close()
    lock = path.with_name("ledger.db.lock")
    lock.unlink()
    lock.mkdir()
    with pytest.raises(LedgerReadOnly, match="is a directory"):
        Ledger.open(path, writable=True)


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "fifo", "file"])
def test_what_stands_in_place_of_the_lock_is_not_touched(path: Path, tmp_path: Path, kind: str) -> None:
    small.create(path).close()
    lock, other = path.with_name("ledger.db.lock"), tmp_path / "other"
    lock.unlink()
    other.write_text("mine")
    if kind == "link":
        lock.symlink_to(other)
    elif kind == "dangling link":
        lock.symlink_to(tmp_path / "new")
    elif kind == "hard link":
        lock.hardlink_to(other)
    elif kind == "fifo":
        os.mkfifo(lock)
    else:
        lock.write_text("123\nand more")
    with pytest.raises(BitwitnessError, match="not the lock file of a ledger") as raised:
        Ledger.open(path, writable=True)
    assert "\n" not in str(raised.value)
    assert other.read_text() == "mine" and not (tmp_path / "new").exists()
    if kind == "file":
        assert lock.read_text() == "123\nand more"


def test_the_lock_of_a_killed_writer_is_taken_over(path: Path) -> None:
    small.create(path).close()
    path.with_name("ledger.db.lock").write_text("4711\n")
    Ledger.open(path, writable=True).close()


@pytest.mark.parametrize("writable", [False, True])
def test_a_ledger_that_is_a_fifo_or_a_device_is_refused_at_once(tmp_path: Path, writable: bool) -> None:
    os.mkfifo(tmp_path / "fifo.db")
    (tmp_path / "zero.db").symlink_to("/dev/zero")
    for name in ("fifo.db", "zero.db"):
        with pytest.raises(NotALedger, match="not a regular file"):
            Ledger.open(tmp_path / name, writable=writable)
