"""The ledger's numbers: durable appends, proofs, verification, memory and disk, on entries of a real run's size.

While the ledger grows to the million a reader in another process checks whatever it sees (tests/ledger/watcher.py).

`python -m tests.bench.ledger [ENTRIES]` runs them alone; a million unless given. `… single [ROUNDS]` takes the ratio of
single appends only, as for a disk that strace makes slower (docs/performance.md).
"""

from __future__ import annotations

import json
import os
import random
import resource
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bitwitness.ledger import jcs
from bitwitness.ledger.commitments import Commitment, state_digest
from bitwitness.ledger.run_chain import Record, RunWriter
from bitwitness.ledger.sqlite import derived, schema
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.verify_ledger import verify_ledger
from tests.ledger import small_ledger as small
from tests.ledger.watcher import Watcher

from .peak import peak_bytes

MILLION = 1_000_000
BATCH = 100
TOKENS = 2048
ROUND = 2 * derived.MOST_WAITING


def bench_ledger(entries: int = MILLION) -> dict[str, float]:
    """All keys; `entries` stands for the million, and a tenth of it for the hundred thousand."""
    with tempfile.TemporaryDirectory() as folder:
        results = {"append_single_vs_sqlite": append_single_vs_sqlite(Path(folder))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        tenth = entries // 10
        results["append_batch_per_s"] = grow(path, tenth)
        results["bytes_per_step"] = _disk(Path(folder)) / tenth
        results["verify_all_100k_s"] = verify_seconds(path)
        rss = grow_watched(path, entries)
        results["prove_p99_ms_1m"] = prove_p99_ms(path)
        results["rss_1m_mb"] = max(rss, _child_rss("verify", path))
    return {name: round(value, 3) for name, value in results.items()}


def step(number: int) -> Record:
    """What the trainer appends for one step of 2,048 tokens: the fields of `trainer.step.StepRecord`, at its size."""
    control = {"step": number, "tokens": TOKENS * number, "cursor": 4 * number}
    weights, optimizer = small.tree("weights/1", 38, f"w {number}"), small.tree("optimizer/1", 76, f"o {number}")
    rate = _f32(3e-4 / (1 + number))
    computed = {
        "step": number,
        "control": control,
        "weights": weights,
        "optimizer": optimizer,
        "state": state_digest(control, Commitment.from_json(optimizer), Commitment.from_json(weights)),
        "loss": jcs.f64_hex(5.0 / number),
        "norm": jcs.f64_hex(1.0 + 1.0 / number),
        "tokens": TOKENS,
        "scalars": {
            "learning_rate": rate,
            "clip": _f32(1.0),
            "grad_scale": _f32(1.0 / TOKENS),
            "step_size": rate,
            "inv_sqrt_bias2": _f32(1.0),
            "decay": _f32(0.99997),
        },
    }
    return "step", {"computed": computed, "observed": {"time": small.TIME, "seconds_us": 1_484_849}}


def _f32(value: float) -> str:
    return struct.pack(">f", value).hex()


def append_single_vs_sqlite(folder: Path, rounds: int = 21) -> float:
    """The rate of signed durable entries, one a commit, over that of bare inserts of the same bytes.

    Both take turns, on pages of one size with the same settings; the ratio is that of the median times of a round. A
    round is so long that each has its share of what is written for many entries together.
    """
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    bare.execute(f"PRAGMA page_size = {schema.PAGE_SIZE}")
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = FULL")
    bare.execute("CREATE TABLE entries (idx INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT")
    ours, theirs = _Turns(), _Turns()
    with small.create(folder / "ledger.db") as ledger:
        writer = small.begin(ledger)
        for _ in range(rounds):
            # What the trainer computed: not the ledger's time.
            records = [step(writer.seq + number) for number in range(ROUND)]
            first = ledger.size
            with ours:
                for kind, predicate in records:
                    writer.append(kind, predicate)
            data = [entry for _index, entry in ledger.entries(first)]
            with theirs:
                for entry in data:
                    bare.execute("INSERT INTO entries (data) VALUES (?)", (entry,))
    bare.close()
    print(f"a signed entry: {ours.said()}; a bare insert: {theirs.said()}", file=sys.stderr)
    return median(theirs.seconds) / median(ours.seconds)


class _Turns:
    """One side's rounds: their times, and the processor's among them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.busy: list[float] = []

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds.append(time.perf_counter() - self._start[0])
        self.busy.append(time.process_time() - self._start[1])

    def said(self) -> str:
        whole, busy = (1e6 / ROUND * median(times) for times in (self.seconds, self.busy))
        return f"{whole:.0f} µs, {busy:.0f} of the processor (at least {1e6 / ROUND * min(self.busy):.0f})"


def grow(path: Path, entries: int) -> float:
    """Bring a ledger of one run to so many entries, in batches of 100; entries a second."""
    ledger = Ledger.open(path, writable=True) if path.exists() else small.create(path)
    with ledger:
        run = ledger.find_run("demo")
        trainer = small.SIGNERS["trainer"]
        writer = small.begin(ledger) if run is None else RunWriter.open(ledger, trainer, run)
        before, seconds = ledger.size, 0.0
        while ledger.size < entries:
            records = [step(writer.seq + number) for number in range(BATCH)]
            start = time.perf_counter()
            writer.append_all(records)
            seconds += time.perf_counter() - start
        ledger.sign_checkpoint(small.SIGNERS["log"])
        return (ledger.size - before) / max(seconds, 1e-9)


def grow_watched(path: Path, entries: int) -> float:
    """`grow` in a process of its own, beside a reader that checks each moment it sees; the writer's peak in MB."""
    with tempfile.TemporaryFile("w+") as output, Watcher(path) as watcher:
        writer = subprocess.Popen(_command("grow", path, entries), stdout=output)
        try:
            before = watcher.look()
            while writer.poll() is None:
                watcher.look()
            if writer.returncode or watcher.look() < entries:
                raise RuntimeError(f"the writer ended with {writer.returncode}")
        finally:
            writer.kill()  # nothing where it has ended
            writer.wait()
        seen = set(watcher.sizes)
        if entries > before and len(seen) < 3:
            raise RuntimeError("the reader never saw the ledger grow")
        if any((size - before) % BATCH for size in seen):
            raise RuntimeError("the reader saw part of a batch")
        print(f"a reader saw {len(seen)} moments from {before} to {max(seen)} entries, all whole", file=sys.stderr)
        output.seek(0)
        return float(output.read())


def prove_p99_ms(path: Path, proofs: int = 2000) -> float:
    """The 99th percentile of an inclusion and of a consistency proof at random places, in milliseconds."""
    rng = random.Random(1)
    times = []
    with Ledger.open(path) as ledger:
        size = ledger.size
        for number in range(proofs):
            place = rng.randrange(1, size)
            start = time.perf_counter()
            if number % 2:
                ledger.inclusion_proof(place, size)
            else:
                ledger.consistency_proof(place, size)
            times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[len(times) * 99 // 100]


def verify_seconds(path: Path) -> float:
    """Every signature, hash and link of the ledger, with all cores."""
    start = time.perf_counter()
    report = verify_ledger(path, small.TRUST)
    seconds = time.perf_counter() - start
    if report.faults or not report.complete:
        raise RuntimeError(f"the ledger does not verify: {report.faults[:3]}")
    return seconds


def _disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _child_rss(what: str, path: Path, entries: int = 0) -> float:
    """The peak resident memory in MB of a process of its own with its workers."""
    return float(subprocess.run(_command(what, path, entries), capture_output=True, text=True, check=True).stdout)


def _command(what: str, path: Path, entries: int) -> list[str]:
    return [sys.executable, "-m", "tests.bench.ledger", what, str(path), str(entries)]


def _peak_mb(workers: int = 0) -> float:
    """Of this process and of so many that have ended, each taken for the largest of them: no less than all had."""
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if workers else 0
    return peak_bytes() / (1 << 20) + workers * largest / 1024


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["grow"]:
        grow(Path(arguments[1]), int(arguments[2]))
        print(_peak_mb())
    elif arguments[:1] == ["single"]:
        with tempfile.TemporaryDirectory() as folder:
            print(round(append_single_vs_sqlite(Path(folder), *map(int, arguments[1:])), 3))
    elif arguments[:1] == ["verify"]:
        verify_seconds(Path(arguments[1]))
        print(_peak_mb(len(os.sched_getaffinity(0))))
    else:
        print(json.dumps(bench_ledger(*map(int, arguments)), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
