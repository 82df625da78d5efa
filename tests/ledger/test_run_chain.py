"""A run's chain: filled in right, resumed without a fork, ended once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import merkle
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import EntryError
from bitwitness.ledger.run_chain import RunEnded, RunWriter
from bitwitness.ledger.sqlite.run_tail import RunTail
from bitwitness.ledger.store import Ledger, NoSuchEntry
from bitwitness.ledger.verify_ledger import verify_ledger

from . import small_ledger as small

TRAINER = small.SIGNERS["trainer"]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with small.create(tmp_path / "ledger.db") as made:
        yield made


def test_chain_fields_are_what_the_ledger_holds(ledger: Ledger) -> None:
    writers = [small.begin(ledger, name) for name in ("one", "two")]
    for number in range(1, 20):  # two runs, their entries mixed
        for name, writer in zip(("one", "two"), writers, strict=True):
            writer.append("step", small.step(number, name))
    for writer in writers:
        chain = [data for _index, data in ledger.run_entries(writer.run)]
        leaves = [merkle.leaf_hash(data) for data in chain]
        assert writer.run == leaves[0].hex()
        assert writer.seq == len(chain) == 20
        assert writer.history == {"type": "history/1", "size": 20, "root": merkle.root(leaves).hex()}
        for seq, data in enumerate(chain):
            predicate = open_envelope(data).statement["predicate"]
            assert predicate["seq"] == seq
            history = {"type": "history/1", "size": seq, "root": merkle.root(leaves[:seq]).hex()}
            assert predicate["history"] == history
            if seq:
                assert (predicate["run"], predicate["prev"]) == (writer.run, leaves[seq - 1].hex())


def test_a_reopened_run_continues_exactly(ledger: Ledger) -> None:
    writer = small.begin(ledger)
    writer.append_all([("step", small.step(number)) for number in (1, 2, 3)])
    again = RunWriter.open(ledger, TRAINER, writer.run)
    assert (again.run, again.seq, again.history) == (writer.run, writer.seq, writer.history)
    again.append("step", small.step(4))


def test_a_batch_is_one_transaction(ledger: Ledger) -> None:
    writer = small.begin(ledger)
    size = ledger.size
    with pytest.raises(EntryError):
        writer.append_all([("step", small.step(1)), ("step", small.step(2) | {"observed": {}})])
    assert (ledger.size, writer.seq) == (size, 1)
    assert writer.append_all([("step", small.step(1)), ("step", small.step(2))]) == range(size, size + 2)


def test_nothing_follows_the_end(ledger: Ledger) -> None:
    writer = small.begin(ledger)
    writer.append("step", small.step(1))
    with pytest.raises(RunEnded):
        writer.append_all([("end", small.end(1)), ("step", small.step(2))])
    assert not writer.ended
    writer.append("end", small.end(1))
    assert writer.ended
    with pytest.raises(RunEnded):
        writer.append("step", small.step(2))
    with pytest.raises(RunEnded):
        RunWriter.open(ledger, TRAINER, writer.run)


@pytest.mark.parametrize(
    ("kind", "predicate"),
    [("step", small.step(2)), ("end", small.end(1)), ("halt", small.end(1) | {"reason": "error"})],
)
def test_the_ledger_itself_refuses_what_follows_the_end(
    ledger: Ledger, kind: str, predicate: dict[str, Any], tmp_path: Path
) -> None:
    if kind == "halt":
        predicate = {name: predicate[name] for name in ("step", "state", "reason", "observed")}
    chain = small.chain("demo", [("step", small.step(1)), ("end", small.end(1)), (kind, predicate)])
    with pytest.raises(RunEnded):
        ledger.append(chain)
    ledger.append(chain[:3])
    with pytest.raises(RunEnded):
        ledger.append(chain[3:])
    ledger.close()
    with Ledger.open(ledger.path, writable=True) as again, pytest.raises(RunEnded):
        again.append(chain[3:])
    assert not verify_ledger(ledger.path, None).faults


def test_an_unknown_run_cannot_be_resumed(ledger: Ledger) -> None:
    with pytest.raises(NoSuchEntry):
        RunWriter.open(ledger, TRAINER, "00" * 32)


def test_runs_are_found_by_name_and_by_hash(ledger: Ledger) -> None:
    writer = small.begin(ledger)
    for text in ("demo", writer.run, writer.run[:8]):
        assert ledger.find_run(text) == writer.run
    for text in ("dem", writer.run[:7], "0" * 8, ""):
        assert ledger.find_run(text) is None


def test_a_tail_costs_a_frontier_not_the_run() -> None:
    leaves = [bytes([number % 251]) * 32 for number in range(1000)]
    tail = RunTail("00" * 32, leaves)
    twin = tail.copy()
    twin.add(bytes(32), "step")
    assert tail.seq == 1000 and twin.seq == 1001
    assert tail.chain_fields()["history"]["root"] == merkle.root(leaves).hex()
    assert len(tail._tree.hashes) == (1000).bit_count()
