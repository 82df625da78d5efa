"""The derived rows of one entry, made anew from its bytes by the code that makes the tables (derived.py).

Whoever can write the file can edit a derived table. A reader who takes rows from here needs the tables only to find
entries: what they say of one is not believed, nor which entry a hash or a key is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..entry import sealed
from ..entry.sealed import Sealed
from ..errors import BitwitnessError
from ..store import Ledger
from .derived import LOG_COLUMNS, ROWS, STEP_COLUMNS, Derivation, UnknownReference

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Given:
    """One entry, and what it gives to each derived table, in the order of its rows."""

    entry: Sealed
    tables: Mapping[str, list[dict[str, Any]]]

    @property
    def kind(self) -> str:
        return self.entry.kind.name

    @property
    def predicate(self) -> Json:
        predicate: Json = self.entry.envelope.statement["predicate"]
        return predicate


class EntryRows:
    """Rows of entries of one ledger, at one moment of it; what was read once is remembered."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._capture = ledger, _Capture(ledger)
        self._known: dict[int, Given | None] = {}

    def of(self, index: int) -> Given | None:
        """What entry `index` gives; None if it cannot be read, or names what the tables do not lead to."""
        if index not in self._known:
            try:
                entry = sealed.read(self._ledger.entry(index))
                self._known[index] = Given(entry, self._capture.rows(index, entry))
            except BitwitnessError:
                self._known[index] = None
        return self._known[index]


class _Capture(Derivation):
    """Keeps rows instead of writing them, and follows a reference only to the entry that has that hash or key."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger.connection)
        self._ledger = ledger
        self._made: dict[str, list[dict[str, Any]]] = {}

    def rows(self, index: int, entry: Sealed) -> dict[str, list[dict[str, Any]]]:
        self._made, kind, predicate = {}, entry.kind.name, entry.envelope.statement["predicate"]
        if kind == "step":
            self._steps.clear()
            self._keep_step(index, entry.envelope.keyid, predicate)
            ((step, log, _predicate),) = self._steps
            self._insert("steps", **dict(zip(STEP_COLUMNS, step, strict=True)))
            self._insert("log", **dict(zip(LOG_COLUMNS, log, strict=True)))
        else:
            ROWS[kind](self, index, entry.leaf_hash.hex(), predicate)
            self._log(index, entry, predicate)
        return self._made

    def _insert(self, table: str, **values: Any) -> None:
        # SQLite keeps no NaN.
        row = {name: None if value != value else value for name, value in values.items()}
        self._made.setdefault(table, []).append(row)

    def _lookup(self, table: str, column: str, value: str, what: str) -> int:
        found = super()._lookup(table, column, value, what)
        entry = sealed.read(self._ledger.entry(found))
        if column == "hash":
            same = entry.leaf_hash.hex() == value
        else:
            said = entry.envelope.statement["predicate"]
            same = entry.kind.name == "key" and said["action"] != "revoke" and said["key"]["keyid"] == value
        if not same:
            raise UnknownReference(what, value)
        return found

    def _released(self, release: str) -> int:
        entry = sealed.read(self._ledger.entry(self._lookup("releases", "hash", release, "release")))
        return self._run(entry.envelope.statement["predicate"]["run"])
