"""The writer killed, or refused the disk, at every system call that writes: nothing acknowledged is ever lost.

strace injects the fault (SIGKILL, EIO, ENOSPC) at the n-th call of each kind of an append, a checkpoint and a close.
Afterwards the ledger is sound, holds what was acknowledged, goes on, and no checkpoint is ahead of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bitwitness.ledger.checkpoint import parse_checkpoint
from bitwitness.ledger.fsck import examine
from bitwitness.ledger.note import parse_note
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.store import Ledger

from . import small_ledger as small

ROOT = Path(__file__).resolve().parents[2]
CALLS = ("pwrite64", "write", "fsync", "fdatasync", "ftruncate", "unlink", "rename", "fallocate")
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}


def strace(*options: str, ledger: Path) -> subprocess.CompletedProcess[str]:
    command = ["strace", "-f", "-qq", *options, sys.executable, "-m", "tests.ledger.crash_writer", str(ledger)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crash") / "ledger.db"
    with small.with_run(path, 2) as ledger:
        ledger.sign_checkpoint(small.SIGNERS["log"])
    return path


@pytest.fixture(scope="module")
def counts(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often each call is made when nothing goes wrong."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian: apt-get install strace)")
    folder = tmp_path_factory.mktemp("counted")
    ledger, trace = folder / "ledger.db", folder / "trace"
    shutil.copyfile(template, ledger)
    done = strace("-o", str(trace), "-e", f"trace={','.join(CALLS)}", ledger=ledger)
    if done.returncode != 0 and "ptrace" in done.stderr.lower():
        pytest.skip("strace may not trace processes here")
    assert done.stdout.endswith("closed\n"), done.stderr
    found = Counter(re.findall(r"^(?:\d+ +)?(\w+)\(", trace.read_text(), re.MULTILINE))
    assert found["pwrite64"] > 10 and found["fdatasync"] + found["fsync"] >= 6, found
    return found


def check(ledger: Path, said: str) -> None:
    """The ledger after a fault: sound, with all that was acknowledged, and able to go on."""
    acknowledged = [line.split() for line in said.splitlines() if line != "closed"]
    size = max([int(number) for what, number in acknowledged if what == "size"], default=0)
    note = max([int(number) for what, number in acknowledged if what == "note"], default=0)
    report = examine(ledger, small.TRUST, processes=1)
    assert report.exit_code == 0, report.to_json()["faults"]
    with Ledger.open(ledger, writable=True) as opened:
        assert opened.size >= size
        latest = opened.latest_checkpoint()
        assert latest is not None
        signed = parse_checkpoint(parse_note(latest).text)
        assert note <= signed.size <= opened.size and opened.root(signed.size) == signed.root
        run = opened.find_run("demo")
        assert run is not None
        writer = RunWriter.open(opened, small.SIGNERS["trainer"], run)
        writer.append("step", small.step(writer.seq))
        opened.sign_checkpoint(small.SIGNERS["log"])
    assert examine(ledger, small.TRUST, processes=1).exit_code == 0


@pytest.mark.parametrize("fault", ["signal=KILL", "error=EIO", "error=ENOSPC"])
def test_at_every_call_that_writes(fault: str, template: Path, counts: Counter[str], tmp_path: Path) -> None:
    points = [(call, number) for call in CALLS for number in range(1, counts[call] + 1)]
    if fault != "signal=KILL":  # the same states of the file, seen from inside: every fourth is enough
        points = [(call, number) for call, number in points if call != "write"][::4]
    stopped = 0
    for call, number in points:
        folder = tmp_path / f"{call}{number}"
        folder.mkdir()
        ledger = folder / "ledger.db"
        shutil.copyfile(template, ledger)
        done = strace("-o", os.devnull, "-e", f"inject={call}:{fault}:when={number}", ledger=ledger)
        stopped += done.returncode != 0
        if fault != "signal=KILL":
            assert done.returncode in (0, 1), done.stderr
        try:
            check(ledger, done.stdout)
        except BaseException as error:
            raise AssertionError(f"after {fault} at {call} number {number}: {error}") from error
    assert stopped > len(points) // 2


def test_the_second_writer_is_told_who_holds_the_lock(template: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    shutil.copyfile(template, ledger)
    with Ledger.open(ledger, writable=True):
        done = subprocess.run(
            [sys.executable, "-m", "tests.ledger.crash_writer", str(ledger)],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0 and f"is being written by process {os.getpid()}" in done.stderr
    check(ledger, "")


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
