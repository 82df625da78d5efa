"""The rows that one append writes: entries with the tree nodes that they complete, and what is derived of them.

A step is one row of `entries`; what is derived of a single one may wait for company (derived.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from ..entry.sealed import Sealed
from ..merkle import Node
from . import many_rows, nodes
from .derived import MOST_KEPT, Derivation

_ENTRY = ("idx", "payload", "signature", "leaf_hash", "nodes")
_INSERT_ONE = many_rows.insertion("entries", _ENTRY)


class AppendRows:
    """One append, through a connection that is in no transaction; nothing of it is there before commit().

    Whoever gives it up, for an error or otherwise, rolls back what may be open.
    """

    def __init__(self, connection: sqlite3.Connection, derivation: Derivation) -> None:
        self._connection = connection
        self._derivation = derivation
        self._entries: list[many_rows.Row] = []
        self._number = 0

    def add(self, index: int, entry: Sealed, completed: Iterable[Node]) -> None:
        """Take entry `index` in, and the perfect subtrees that it completes. Raises what Derivation.apply does."""
        envelope = entry.envelope
        row = (index, envelope.payload.decode("utf-8"), envelope.signature, entry.leaf_hash, nodes.column(completed))
        self._entries.append(row)
        self._number += 1
        if entry.kind.name != "step":
            self._write_entries()  # derived rows refer to theirs
        self._derivation.apply(index, entry)
        if self._derivation.waiting >= MOST_KEPT:
            self._write_entries()
            self._derivation.flush()

    def write(self) -> None:
        """Have the connection see the entries that were taken in so far."""
        if self._entries:
            self._write_entries()

    def commit(self) -> None:
        """Make it durable."""
        if self._number == 1 and self._entries and self._derivation.may_wait():
            self._connection.execute(_INSERT_ONE, self._entries[0])  # one statement is a transaction of its own
            return
        self._write_entries()
        self._derivation.flush()
        self._connection.execute("COMMIT")

    def _write_entries(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        many_rows.insert(self._connection, "entries", _ENTRY, self._entries)
        self._entries.clear()
