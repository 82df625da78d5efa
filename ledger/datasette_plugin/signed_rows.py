"""Rows of the derived tables with their values taken from the entries that they come from.

Whoever can write the file can edit a table, and an edited value must not stand on a page as if it had been signed. So
the tables only tell pages which entries there are: what is shown of each is made anew from its bytes (entry_rows.py),
and a page on which a row said otherwise, or led to no such entry, says so at its top. Whoever edits the tables can hide
a record from the pages, which `ledger fsck` finds, and change none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import jcs
from ..sqlite.entry_rows import EntryRows, Given
from ..store import Ledger
from ..verify import Check

if TYPE_CHECKING:
    from .answers import Asked
    from .evidence import Evidence

Row = dict[str, Any]

DIFFERS = "the derived tables differ from the signed entry: they were edited, see `ledger fsck`"


# Columns that a row gets besides its own: (its column that names another entry, the table of that, the column there).
_SIGNERS = ("auditor", "publisher", "signer", "trainer")
_JOINED = {
    "run_name": (("run",), "runs", "name"),
    "keyid": (_SIGNERS, "keys", "keyid"),
    "role": (_SIGNERS, "keys", "role"),
    "key_name": (_SIGNERS, "keys", "name"),
}


class SignedRows:
    """Rows of one ledger, at one moment of it, as its entries have them."""

    def __init__(self, ledger: Ledger) -> None:
        self._entries = EntryRows(ledger)
        self.edited = 0
        """How many rows said something else than their entry, led to none, or were missing."""

    def entry(self, index: int | None, kind: str) -> Given | None:
        """Entry `index`, if it is of this kind."""
        found = None if index is None else self._entries.of(index)
        return found if found is not None and found.kind == kind else None

    def rows(self, table: str, rows: Iterable[Row], **expected: Any) -> list[Row]:
        """Rows with an `entry` column, as their entries have them; without those that are of no such entry.

        Each gets the name of its run (`run_name`), and `keyid`, `key_name` and `role` of the key that signed it;
        `edited` says whether the table had other values. `expected` are columns that each row must have, such as the
        run whose rows were asked for.
        """
        found = []
        for row in rows:
            made = self._made(table, row, expected)
            if made is not None:
                found.append(made)
        return found

    def row(self, table: str, row: Row | None, **expected: Any) -> Row | None:
        """The same of one row, or None."""
        found = [] if row is None else self.rows(table, [row], **expected)
        return found[0] if found else None

    def of(self, index: int, table: str, rows: Sequence[Row] | None = None) -> list[Row]:
        """All rows that entry `index` gives to a table, of which `rows` is what the table has."""
        given = self._entries.of(index)
        found = [] if given is None else [dict(row) for row in given.tables.get(table, ())]
        self.edited += rows is not None and list(rows) != found
        return found

    def expect(self, counted: int, stated: int) -> None:
        """Hold a number of rows against what a signed entry says that there are."""
        self.edited += abs(counted - stated)

    def _made(self, table: str, row: Row, expected: Mapping[str, Any]) -> Row | None:
        given = self._entries.of(row["entry"])
        made = None if given is None else next(iter(given.tables.get(table, ())), None)
        if made is None or any(made[name] != value for name, value in expected.items()):
            self.edited += 1
            return None
        values = {name: value for name, value in made.items() if name in row}
        differs = any(row[name] != value for name, value in values.items())
        self.edited += differs
        joined = {name: self._joined(made, name) for name in _JOINED if name not in made}
        return {**row, **values, **joined, "edited": differs}

    def _joined(self, made: Row, name: str) -> Any:
        columns, table, column = _JOINED[name]
        index = next((made[one] for one in columns if made.get(one) is not None), None)
        other = [] if index is None else self.of(index, table)
        return other[0][column] if other else None


def judged(asked: Asked, found: Evidence) -> Evidence:
    """The evidence with one check more, when all rows of a page are read: where one differs it is not `verified`."""
    differs = asked.signed.edited > 0
    said = DIFFERS if differs else "the rows of the derived tables say what the entry does"
    return replace(found, checks=(*found.checks, Check("tables", not differs, said)))


def sources(asked: Asked, found: Evidence) -> list[dict[str, Any]]:
    """The releases that a release derives from, as their own entries have them: name, place in the log, run, factor."""
    shown = []
    for item in found.predicate.get("derivation", {}).get("sources", ()):
        index = asked.ledger.find(bytes.fromhex(item["release"]))
        if index is None:
            continue  # no ledger takes a release without its sources; fsck tells where one is gone
        release = asked.given(index, "releases")
        run = asked.given(release["run"], "runs")
        factor = f"{jcs.f32_from_hex(item['factor']):g}" if "factor" in item else None
        named = {name: release[name] for name in ("model", "version", "step")}
        shown.append({**named, "entry": index, "run": run["name"], "factor": factor})
    return shown
