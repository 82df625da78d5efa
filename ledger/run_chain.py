"""A run's signed chain: begin it, take it up again, append to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .entry import entries, sealed
from .keys import Signer
from .sqlite.run_tail import RunEnded, RunTail
from .store import Ledger

__all__ = ["Record", "RunEnded", "RunWriter", "Subject"]

Subject = list[dict[str, Any]]
Record = tuple[str, Mapping[str, Any]]
"""(kind, predicate without signer and chain fields)."""


class RunWriter:
    """Appends the entries of one run; fills in signer, run, seq, prev and history.

    The ledger has one writer, and refuses whatever does not continue the chain as it stands, so two RunWriters
    cannot fork a run.
    """

    def __init__(self, ledger: Ledger, signer: Signer, tail: RunTail) -> None:
        """Use begin() or open()."""
        self._ledger = ledger
        self._signer = signer
        self._tail = tail

    @classmethod
    def begin(
        cls, ledger: Ledger, signer: Signer, predicate: Mapping[str, Any], subject: Subject | None = None
    ) -> RunWriter:
        """Append a genesis (`predicate` without signer, seq and history) and return the writer of its run.

        Raises Conflict if a run of that name is in the ledger.
        """
        full = {**predicate, "seq": 0, "history": dict(entries.EMPTY_HISTORY)}
        genesis = sealed.seal("run", full, signer, subject)
        ledger.append([genesis])
        return cls(ledger, signer, RunTail(genesis.leaf_hash.hex(), (genesis.leaf_hash,)))

    @classmethod
    def open(cls, ledger: Ledger, signer: Signer, run: str) -> RunWriter:
        """Go on with a run of the ledger. Raises NoSuchEntry, RunEnded.

        Reads the leaf hashes of the run's entries, so the next entry continues exactly what the ledger holds.
        """
        writer = cls(ledger, signer, ledger.run_tail(run))
        if writer.ended:
            raise RunEnded(run)
        return writer

    @property
    def run(self) -> str:
        """The run's identity: the hex leaf hash of its genesis."""
        return self._tail.run

    @property
    def seq(self) -> int:
        """The number of entries so far, which is the next entry's `seq`."""
        return self._tail.seq

    @property
    def history(self) -> dict[str, Any]:
        """The commitment over all entries so far, which is the next entry's `history`."""
        history: dict[str, Any] = self._tail.chain_fields()["history"]
        return history

    @property
    def ended(self) -> bool:
        """Whether the run's `end` is written."""
        return self._tail.ended

    def append(self, kind: str, predicate: Mapping[str, Any], subject: Subject | None = None) -> int:
        """Sign and append one entry; return its index in the ledger. A `subject` of None follows the kind's rule."""
        return self._append([(kind, predicate, subject)])[0]

    def append_all(self, records: Sequence[Record]) -> range:
        """Sign and append several entries in one durable transaction, all or none; return their indexes."""
        return self._append([(kind, predicate, None) for kind, predicate in records])

    def _append(self, records: Sequence[tuple[str, Mapping[str, Any], Subject | None]]) -> range:
        tail = self._tail.copy()
        made = []
        for kind, predicate, subject in records:
            if tail.ended:
                raise RunEnded(self.run)
            entry = sealed.seal(kind, {**predicate, **tail.chain_fields()}, self._signer, subject)
            tail.add(entry.leaf_hash, kind)
            made.append(entry)
        indexes = self._ledger.append(made)
        self._tail = tail
        return indexes
