"""The writer killed, or refused the disk, at every system call that writes: nothing acknowledged is ever lost.

strace injects the fault (SIGKILL, EIO, ENOSPC) at each call of each kind that appends, checkpoints and a close make.
Afterwards the ledger is sound, holds what was acknowledged, goes on, and no checkpoint is ahead of it. The same holds
for a witness.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.checkpoint import parse_checkpoint
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow.mirror import Mirror
from bitwitness.ledger.fsck import examine
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.note import Verifier, open_note, parse_note
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.sqlite.log_keys import WrongLogKey
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.witnessing.witness import Witness

from . import crash_writer, faults, outside
from . import small_ledger as small
from .followed import Log, follow

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
FAULTS = ("signal=KILL", "error=EIO", "error=ENOSPC")


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: the system calls are the same, and nobody waits for a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crash") / "ledger.db"
    with small.with_run(path, 2) as ledger:
        ledger.sign_checkpoint(small.SIGNERS["log"])
    return path


@pytest.fixture(scope="module")
def ledger_calls(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    folder = tmp_path_factory.mktemp("counted")
    ledger = folder / "ledger.db"
    shutil.copyfile(template, ledger)
    found = faults.calls(lambda: crash_writer.write_ledger(ledger), folder / "trace")
    # Each append, checkpoint and memory is synced, and a memory takes the other's place whole.
    assert found["pwrite64"] > 50 and found["fdatasync"] >= 15 and found["fsync"] >= 8 and renames(found) == 4, found
    return found


@pytest.fixture(scope="module")
def witness_calls(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    folder = tmp_path_factory.mktemp("counted")
    found = faults.calls(lambda: crash_writer.cosign(folder / "w.db"), folder / "trace")
    assert found["pwrite64"] > 10 and found["fdatasync"] >= len(crash_writer.SIZES), found
    return found


def renames(found: Counter[str]) -> int:
    return sum(found[call] for call in faults.RENAMING)


def acknowledged(said: str, what: str) -> int:
    lines = [line.split() for line in said.splitlines() if line != "closed"]
    return max((int(number) for name, number in lines if name == what), default=0)


def sign(ledger: Ledger, signers: tuple[Signer, Signer]) -> None:
    """With whichever of the log's keys counts now."""
    old, new = signers
    for choice in ((old,), (new,), (new, old)):
        try:
            ledger.sign_checkpoint(*choice)
            return
        except WrongLogKey:
            continue
    raise AssertionError("no log key may sign")


def check_ledger(ledger: Path, said: str, killed: bool) -> None:
    """The ledger after a fault: sound, with all that was acknowledged, and able to go on."""
    report = examine(ledger, small.TRUST, processes=1)
    assert report.exit_code == 0, report.to_json()["faults"]
    signers = crash_writer.log_keys(ledger.parent)
    first = len(small.key_entries()) + 4  # what the template's checkpoint covers, by a key without a memory
    with Ledger.open(ledger, writable=True) as opened:
        assert opened.size >= acknowledged(said, "size")
        latest = opened.latest_checkpoint()
        assert latest is not None
        signed = parse_checkpoint(parse_note(latest).text)
        assert acknowledged(said, "note") <= signed.size <= opened.size and opened.root(signed.size) == signed.root
        kept = acknowledged(said, "kept")
        if kept:
            (cosigned,) = [note for size, note in opened.newest_checkpoints(9) if size == kept and "w.example" in note]
            assert open_note(cosigned, [crash_writer.COSIGNER]).verified
        # What a key has signed it remembers: it did so before.
        for signer in signers:
            assert signer.memory is not None
            key_ids = {line.key_id for line in parse_note(latest).lines}
            if signed.size > first and Verifier(small.ORIGIN, signer.public).key_id in key_ids:
                (head,) = jcs.parse(signer.memory.read_bytes().strip())["heads"]
                assert signed.size <= head["size"] <= opened.size
        writer = RunWriter.open(opened, small.SIGNERS["trainer"], str(opened.find_run("demo")))
        writer.append("step", small.step(writer.seq))
        sign(opened, signers)
        if killed:  # the others leave the same files
            opened.close()
            assert examine(ledger, small.TRUST, processes=1).exit_code == 0


def check_witness(state: Path, said: str, _killed: bool) -> None:
    """The witness after a fault: it remembers what it cosigned, cosigns nothing else, and goes on."""
    log = small.SIGNERS["log"]
    witness = Witness(crash_writer.COSIGNER.name, small.SIGNERS["witness"], [small.TRUST.log], state)
    newest = witness.newest(small.ORIGIN)
    size = 0 if newest is None else newest[0]
    assert size >= acknowledged(said, "cosigned")
    assert size in (0, *crash_writer.SIZES)
    if size:
        other = [bytes(32) for _ in range(size)]
        assert witness.add_checkpoint(crash_writer.witness_request(size, size, log, other)).status == 409
    assert witness.add_checkpoint(crash_writer.witness_request(size, 9, log)).status == 200
    witness.close()


def at_every_call(
    fault: str, calls: Counter[str], folder: Path, prepare: Callable[[Path], Path], act: Callable[[Path], None],
    check: Callable[[Path, str, bool], None],
) -> None:  # fmt: skip
    met = 0
    for call, number in [(name, place) for name in calls for place in range(1, calls[name] + 1)]:
        (place := folder / f"{call}{number}").mkdir()
        path = prepare(place)
        done = faults.inject(lambda: act(path), fault, call, number)  # noqa: B023 (run at once)
        where = f"{fault} at {call} number {number}"
        met += done.code != 0
        # Killed, or an error in one line, or a fault that nobody need notice: never a traceback.
        assert done.code in ((0, -9) if fault == "signal=KILL" else (0, 1)), f"{where}: {done}"
        assert "\n" not in done.error, f"{where}: {done.error}"
        try:
            check(path, done.said, done.code == -9)
        except BaseException as error:
            raise AssertionError(f"after {where}: {error}") from error
        shutil.rmtree(place)
    total = sum(calls.values())
    # Killed it is wherever it is hit. An error that is met at the end, or in what SQLite can do without, is none.
    assert met == total if fault == "signal=KILL" else met > total // 2, (met, total)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_ledger_at_every_call_that_writes(
    fault: str, template: Path, ledger_calls: Counter[str], folder: Path
) -> None:
    def prepare(place: Path) -> Path:
        return Path(shutil.copyfile(template, place / "ledger.db"))

    at_every_call(fault, ledger_calls, folder, prepare, crash_writer.write_ledger, check_ledger)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_witness_at_every_call_that_writes(fault: str, witness_calls: Counter[str], folder: Path) -> None:
    at_every_call(
        fault, witness_calls, folder, lambda place: place / "w.db", crash_writer.cosign, check_witness
    )  # fmt: skip


def test_what_is_acknowledged_is_on_the_disk(template: Path, folder: Path) -> None:
    """A machine that loses its power keeps what was synced alone: nothing is said before all of it is."""
    ledger = Path(shutil.copyfile(template, folder / "ledger.db"))
    said = faults.unsynced(lambda: crash_writer.write_ledger(ledger), folder / "trace", folder)
    assert {text.split()[0] for text in said} == {"size", "note", "kept"} and len(said) >= 12, said
    assert not any(said.values()), said
    said = faults.unsynced(lambda: crash_writer.cosign(folder / "w.db"), folder / "trace", folder)
    assert len(said) == len(set(crash_writer.SIZES)) and not any(said.values()), said


def test_static_files_at_every_call_that_writes(template: Path, folder: Path) -> None:
    """Whoever looks at an export that was killed finds a whole log, if an older one, and the next export ends it."""
    (source := folder / "source").mkdir()
    log = Path(shutil.copyfile(template, source / "ledger.db"))

    def export(place: Path) -> None:
        with Ledger.open(log) as ledger:
            export_tiles(ledger, place / "out")
        crash_writer.say("closed")

    def prepare(place: Path) -> Path:
        shutil.copytree(folder / "older", place / "out")
        return place

    def check(place: Path, said: str, _killed: bool) -> None:
        entries, _names = outside.read_tiles(place / "out", small.TRUST.log.vkey, small.TRUST.root.raw)
        assert len(entries) in (older, newer) and (said == "" or len(entries) == newer)
        export(place)
        assert len(outside.read_tiles(place / "out", small.TRUST.log.vkey, small.TRUST.root.raw)[0]) == newer

    with Ledger.open(log) as ledger:
        older = export_tiles(ledger, folder / "older").size
    with Ledger.open(log, writable=True) as ledger:
        writer = RunWriter.open(ledger, small.SIGNERS["trainer"], str(ledger.find_run("demo")))
        writer.append_all([("step", small.step(writer.seq + number)) for number in range(250)])
        ledger.sign_checkpoint(small.SIGNERS["log"])
        newer = ledger.size
    (counted := folder / "counted").mkdir()
    prepare(counted)
    calls = faults.calls(lambda: export(counted), folder / "trace")
    assert renames(calls) == 6 and calls["fsync"] >= 12, calls  # bundles, tiles of two levels, the checkpoint
    del calls["openat"], calls["mkdir"], calls["fchown"]  # what comes before a write leaves what the write finds
    at_every_call("signal=KILL", calls, folder, prepare, export, check)


def test_a_mirror_at_every_call_that_writes(folder: Path) -> None:
    """What a mirror that was killed had seen still counts, and the next look takes in the rest."""
    (source := folder / "source").mkdir()
    log = Log(source)
    older = follow(Mirror(folder / "older", log.policy), log)
    log.append("more", 3)
    log.publish()

    def prepare(place: Path) -> Path:
        return Path(shutil.copytree(folder / "older", place / "copy"))

    def look(copy: Path) -> None:
        follow(Mirror(copy), log)
        crash_writer.say("closed")

    def check(copy: Path, _said: str, _killed: bool) -> None:
        assert follow(Mirror(copy), log) == older + 4
        assert not (copy / "forks").exists() and not list((copy / "unserved").glob("*.checkpoint"))

    (counted := folder / "counted").mkdir()
    path = prepare(counted)
    calls = faults.calls(lambda: look(path), folder / "trace")
    assert renames(calls) == 2 and calls["fdatasync"] >= 4, calls
    at_every_call("signal=KILL", calls, folder, prepare, look, check)


def test_the_second_writer_is_told_who_holds_the_lock(template: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    shutil.copyfile(template, ledger)
    with Ledger.open(ledger, writable=True):
        done = subprocess.run(
            [sys.executable, "-m", "tests.ledger.crash_writer", str(ledger)],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0 and f"is being written by process {os.getpid()}" in done.stderr
    check_ledger(ledger, "", True)


def test_a_reader_sees_only_whole_appends(template: Path, tmp_path: Path) -> None:
    """Each append is of seven entries and a checkpoint; what a reader sees is always a multiple, under its root."""
    ledger = tmp_path / "ledger.db"
    shutil.copyfile(template, ledger)
    code = (
        "import sys, pathlib; from tests.ledger import small_ledger as small;"
        "from bitwitness.ledger.store import Ledger; from bitwitness.ledger.run_chain import RunWriter\n"
        f"with Ledger.open(pathlib.Path({str(ledger)!r}), writable=True) as ledger:\n"
        "    writer = RunWriter.open(ledger, small.SIGNERS['trainer'], ledger.find_run('demo'))\n"
        "    for _ in range(150):\n"
        "        writer.append_all([('step', small.step(writer.seq + n)) for n in range(7)])\n"
        "        ledger.sign_checkpoint(small.SIGNERS['log'])\n"
    )
    with Ledger.open(ledger) as opened:
        start = opened.size
        writer = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT)
        sizes = set()
        while writer.poll() is None:
            with opened.snapshot():
                size = opened.size
                latest = opened.latest_checkpoint()
                assert latest is not None
                signed = parse_checkpoint(parse_note(latest).text)
                assert signed.size in (size, size - 7) and opened.root(signed.size) == signed.root
                assert (size - start) % 7 == 0
                if size:
                    opened.entry(size - 1), opened.inclusion_proof(size // 2)
                sizes.add(size)
        assert writer.returncode == 0 and opened.size == start + 150 * 7
        assert len(sizes) > 5
