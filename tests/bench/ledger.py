"""The ledger's numbers: durable appends, proofs, verification, memory and disk, on entries of real form.

`python -m tests.bench.ledger [ENTRIES]` runs them alone; a million unless given.
"""

from __future__ import annotations

import json
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.verify_ledger import verify_ledger
from tests.ledger import small_ledger as small

MILLION = 1_000_000
BATCH = 100
ROUND = 200


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
        rss = _child_rss("grow", path, entries)
        results["prove_p99_ms_1m"] = prove_p99_ms(path)
        results["rss_1m_mb"] = max(rss, _child_rss("verify", path))
    return {name: round(value, 3) for name, value in results.items()}


def append_single_vs_sqlite(folder: Path, rounds: int = 9) -> float:
    """The rate of signed durable entries, one a commit, over that of bare inserts of the same bytes, in turns."""
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = FULL")
    bare.execute("CREATE TABLE entries (idx INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT")
    ratios = []
    with small.create(folder / "ledger.db") as ledger:
        writer = small.begin(ledger)
        for _ in range(rounds):
            start, first = time.perf_counter(), ledger.size
            for _ in range(ROUND):
                writer.append("step", small.step(writer.seq))
            ours = time.perf_counter() - start
            data = [entry for _index, entry in ledger.entries(first)]
            start = time.perf_counter()
            for entry in data:
                bare.execute("INSERT INTO entries (data) VALUES (?)", (entry,))
            ratios.append((time.perf_counter() - start) / ours)
    bare.close()
    return median(ratios)


def grow(path: Path, entries: int) -> float:
    """Bring a ledger of one run to so many entries, in batches of 100; entries a second."""
    ledger = Ledger.open(path, writable=True) if path.exists() else small.create(path)
    with ledger:
        run = ledger.find_run("demo")
        trainer = small.SIGNERS["trainer"]
        writer = small.begin(ledger) if run is None else RunWriter.open(ledger, trainer, run)
        before, seconds = ledger.size, 0.0
        while ledger.size < entries:
            # What the trainer computed: not the ledger's time.
            records = [("step", small.step(writer.seq + number)) for number in range(BATCH)]
            start = time.perf_counter()
            writer.append_all(records)
            seconds += time.perf_counter() - start
        ledger.sign_checkpoint(small.SIGNERS["log"])
        return (ledger.size - before) / max(seconds, 1e-9)


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
    """The peak resident memory in MB of a process of its own, or of the largest of its workers."""
    command = [sys.executable, "-m", "tests.bench.ledger", what, str(path), str(entries)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _peak_mb() -> float:
    own, workers = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(own, workers) / 1024


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["grow"]:
        grow(Path(arguments[1]), int(arguments[2]))
        print(_peak_mb())
    elif arguments[:1] == ["verify"]:
        verify_seconds(Path(arguments[1]))
        print(_peak_mb())
    else:
        print(json.dumps(bench_ledger(*map(int, arguments)), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
