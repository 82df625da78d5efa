"""The rows that one append writes: entries, inner nodes of the tree, and what is derived of the entries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from . import many_rows, nodes
from .derived import MOST_KEPT, Derivation
from .merkle import Node
from .sealed import Sealed

_ENTRY = ("idx", "payload", "signature", "leaf_hash")
_NODE = ("pos", "level", "idx", "hash")


class AppendRows:
    """Writes into the open transaction of a connection; flush() before it ends.

    Steps are nearly all entries: their rows wait for each other. Whatever looks for an entry of another kind finds it.
    """

    def __init__(self, connection: sqlite3.Connection, derivation: Derivation) -> None:
        self._connection = connection
        self._derivation = derivation
        self._entries: list[many_rows.Row] = []
        self._nodes: list[many_rows.Row] = []

    def add(self, index: int, entry: Sealed, completed: Iterable[Node]) -> None:
        """Take entry `index` in, and the inner nodes that it completes. Raises what Derivation.apply does."""
        envelope = entry.envelope
        self._entries.append((index, envelope.payload.decode("utf-8"), envelope.signature, entry.leaf_hash))
        for level, number, digest in completed:
            self._nodes.append((nodes.position(level, number), level, number, digest))
        if entry.kind.name != "step":
            self._write_entries()  # derived rows refer to theirs
        self._derivation.apply(index, entry)
        if self._derivation.waiting >= MOST_KEPT:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self._write_entries()
        many_rows.insert(self._connection, "nodes", _NODE, self._nodes)
        self._nodes.clear()
        self._derivation.flush()

    def _write_entries(self) -> None:
        many_rows.insert(self._connection, "entries", _ENTRY, self._entries)
        self._entries.clear()
