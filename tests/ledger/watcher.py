"""A reader beside a writer: every moment that it sees of a growing ledger must be one whole, sound ledger."""

from __future__ import annotations

import random
from pathlib import Path
from types import TracebackType

from bitwitness.ledger import merkle
from bitwitness.ledger.checkpoint import parse_checkpoint
from bitwitness.ledger.entry.entries import KINDS
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.note import parse_note
from bitwitness.ledger.sqlite import derived
from bitwitness.ledger.store import Ledger

STEP = KINDS["step"].predicate_type


class Watcher:
    """Follows one ledger file through its own connection; `look` checks one moment of it against all before.

    At most `waiting` of its newest entries, all of them steps, may have no derived rows yet: none where the writer
    appends batches.
    """

    def __init__(self, path: Path, waiting: int = 0) -> None:
        self._ledger = Ledger.open(path)
        self._waiting = waiting
        self._tree = merkle.Frontier()
        self._rng = random.Random(7)
        self.sizes: list[int] = []

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.close()

    def look(self) -> int:
        """Check the ledger as it stands now; return its size. Costs O(entries since the last look).

        Leaf hashes and nodes give one root, it extends the root of the last look, a random entry is proven under it,
        its bytes are those of its leaf hash, derived tables cover exactly these entries or those before the few that
        may wait, and no checkpoint signs more than they cover.
        """
        ledger, before = self._ledger, self._tree.size
        old = self._tree.root()
        with ledger.snapshot():
            size, root = ledger.size, ledger.root()
            query = "SELECT leaf_hash FROM entries WHERE idx >= ? ORDER BY idx"
            for (leaf_hash,) in ledger.connection.execute(query, (before,)):
                self._tree.append(leaf_hash)
            assert (self._tree.size, self._tree.root()) == (size, root)
            if before:
                merkle.verify_consistency(before, size, old, root, ledger.consistency_proof(before))
            if size:
                index = self._rng.randrange(size)
                leaf_hash = merkle.leaf_hash(ledger.entry(index))
                merkle.verify_inclusion(index, size, leaf_hash, ledger.inclusion_proof(index), root)
                assert ledger.find(leaf_hash) == index
            covered = derived.derived_size(ledger.connection)
            assert size - self._waiting <= covered <= size
            assert all(open_envelope(data).statement["predicateType"] == STEP for _, data in ledger.entries(covered))
            steps, last = ledger.connection.execute("SELECT count(*), max(entry) FROM steps").fetchone()
            logged = ledger.connection.execute("SELECT count(*), total(kind = 'step') FROM log").fetchone()
            assert logged == (covered, steps) and (last is None or last < covered)
            note = ledger.latest_checkpoint()
            if note is not None:
                signed = parse_checkpoint(parse_note(note).text)
                assert signed.size <= covered and ledger.root(signed.size) == signed.root
        self.sizes.append(size)
        return size
