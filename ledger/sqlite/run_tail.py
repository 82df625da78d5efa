"""The growing end of one run: what the next entry of its chain must say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..entry.entries import EMPTY_HISTORY
from ..errors import BitwitnessError, EntryError
from ..merkle import Frontier


class RunTail:
    """How many entries a run has, the leaf hash of the last, and the tree over all of them.

    Each step costs O(log n) and the memory is that of at most 63 hashes.
    """

    def __init__(self, run: str, leaf_hashes: Iterable[bytes], *, ended: bool = False) -> None:
        """`leaf_hashes` are those of the run's entries so far, in order, the genesis first."""
        self.run = run
        self.prev = run
        self.ended = ended
        self._tree = Frontier()
        self._root: str | None = None
        for leaf_hash in leaf_hashes:
            self._append(leaf_hash)

    @property
    def seq(self) -> int:
        """The `seq` of the next entry."""
        return self._tree.size

    def copy(self) -> RunTail:
        twin = RunTail.__new__(RunTail)
        twin.run, twin.prev, twin.ended = self.run, self.prev, self.ended
        twin._tree, twin._root = self._tree.copy(), self._root
        return twin

    def add(self, leaf_hash: bytes, kind: str) -> None:
        """The run has one more entry, of this kind."""
        self._append(leaf_hash)
        self.ended = kind == "end"

    def _append(self, leaf_hash: bytes) -> None:
        self._tree.append(leaf_hash)
        self._root = None
        self.prev = leaf_hash.hex()

    def chain_fields(self) -> dict[str, Any]:
        """run, seq, prev and history of the next entry."""
        if self._root is None:
            self._root = self._tree.root().hex()
        history = {"type": EMPTY_HISTORY["type"], "size": self.seq, "root": self._root}
        return {"run": self.run, "seq": self.seq, "prev": self.prev, "history": history}

    def check(self, predicate: Mapping[str, Any]) -> None:
        """Check that an entry continues this run. Raises RunForked, RunEnded or EntryError."""
        if predicate["seq"] < self.seq:
            raise RunForked(self.run, predicate["seq"])
        if self.ended:
            raise RunEnded(self.run)
        for name, value in self.chain_fields().items():
            if predicate[name] != value:
                raise EntryError(f"is not what continues run {self.run[:16]}… at entry {self.seq}", f"predicate.{name}")


class RunForked(EntryError):
    """A second entry for one (run, seq). `run` is the genesis leaf hash in hex."""

    def __init__(self, run: str, seq: int) -> None:
        super().__init__(f"run {run[:16]}… already has an entry {seq}; a second one would fork the run")
        self.run = run
        self.seq = seq


class RunEnded(BitwitnessError):
    """The run has its `end`; nothing can follow. `run` is the genesis leaf hash in hex."""

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run[:16]}… has ended; begin a new run to go on from its last state")
        self.run = run
