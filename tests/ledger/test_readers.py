"""Readers beside a writer in another process, and what is found in a ledger of more than one block of entries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bitwitness.ledger import fsck, merkle
from bitwitness.ledger.sqlite import derived, derived_schema
from bitwitness.ledger.store import Ledger

from . import small_ledger as small
from .watcher import Watcher

STEPS = (derived_schema.LEAF_BLOCK // 50 + 8) * 50
_WRITER = """
import sys
from pathlib import Path
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.store import Ledger
from tests.ledger import small_ledger as small

with Ledger.open(Path(sys.argv[1]), writable=True) as ledger:
    writer = RunWriter.open(ledger, small.SIGNERS["trainer"], ledger.find_run("demo"))
    together = int(sys.argv[3])
    for first in range(1, int(sys.argv[2]), together):
        writer.append_all([("step", small.step(number)) for number in range(first, first + together)])
        if first % 500 == 1:
            ledger.sign_checkpoint(small.SIGNERS["log"])
"""


def test_a_reader_sees_only_consistent_states_while_another_process_appends(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with small.create(path) as ledger:
        small.begin(ledger)
    root = Path(__file__).parents[2]
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(STEPS), "50"], cwd=root)
    with Watcher(path) as watcher:
        first = watcher.look()
        while writer.poll() is None:
            watcher.look()
        assert watcher.look() == first + STEPS
    assert writer.returncode == 0
    seen = set(watcher.sizes)
    assert len(seen) > 5, "the reader never saw the ledger grow"
    assert {(size - first) % 50 for size in seen} == {0}, "half an append was seen"

    with Ledger.open(path) as ledger:  # full blocks are found by their index, the newest entries without one
        blocks = ledger.connection.execute("SELECT count(*), max(entry) FROM leaf_places").fetchone()
        assert blocks == (derived_schema.LEAF_BLOCK, derived_schema.LEAF_BLOCK - 1)
        for index in (0, 77, *range(derived_schema.LEAF_BLOCK - 2, derived_schema.LEAF_BLOCK + 2), ledger.size - 1):
            leaf_hash = merkle.leaf_hash(ledger.entry(index))
            assert ledger.find(leaf_hash) == index
            assert ledger.find_prefix(leaf_hash.hex()[:10]) == [index]
            assert ledger.find_prefix(leaf_hash.hex()) == [index]
        assert ledger.find(bytes(32)) is None
        before = list(ledger.connection.execute("SELECT * FROM leaf_places"))
    assert not fsck.examine(path).faults
    Ledger.rebuild(path)
    with Ledger.open(path) as ledger:
        assert list(ledger.connection.execute("SELECT * FROM leaf_places")) == before


def test_a_reader_beside_single_appends_sees_tables_of_the_first_entries(tmp_path: Path) -> None:
    path, steps = tmp_path / "ledger.db", 4 * derived.MOST_WAITING
    with small.create(path) as ledger:
        small.begin(ledger)
    root = Path(__file__).parents[2]
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(steps + 1), "1"], cwd=root)
    with Watcher(path, derived.MOST_WAITING - 1) as watcher:
        first = watcher.look()
        while writer.poll() is None:
            watcher.look()
        assert watcher.look() == first + steps
    assert writer.returncode == 0 and len(set(watcher.sizes)) > 5
    assert not fsck.examine(path).faults
