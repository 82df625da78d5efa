"""What a page function returns: a page, a file, another address, or that there is nothing here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..store import Ledger
from .links import Links
from .signed_rows import SignedRows


@dataclass(frozen=True)
class Page:
    """An HTML page: `section` marks the place in the navigation."""

    template: str
    title: str
    section: str
    context: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class File:
    """Bytes to be kept, under a name if people save them. `immutable` ones never change, since entries do not."""

    data: bytes
    name: str | None
    content_type: str
    immutable: bool = False
    compress: bool = False
    """Whether to send it compressed to who takes that."""


@dataclass(frozen=True)
class Moved:
    """Another address has it."""

    location: str


class NotHere(Exception):
    """There is no such page; `message` says what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True)
class Asked:
    """One request: the ledger (one moment of it), the parts of the address, and the query's first values."""

    ledger: Ledger
    links: Links
    parts: Mapping[str, str]
    query: Mapping[str, str]
    origin: str
    """Scheme and host of this server as the reader wrote them."""

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """All rows of a query as dictionaries."""
        cursor = self.ledger.connection.execute(sql, parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    @cached_property
    def signed(self) -> SignedRows:
        """Rows as their entries have them."""
        return SignedRows(self.ledger)

    def records(self, table: str, sql: str, *parameters: Any, **expected: Any) -> list[dict[str, Any]]:
        """All rows of a query of a derived table, as their entries have them (SignedRows.rows)."""
        return self.signed.rows(table, self.rows(sql, *parameters), **expected)

    def record(self, table: str, sql: str, *parameters: Any, **expected: Any) -> dict[str, Any] | None:
        """The first of them."""
        return self.signed.row(table, self.row(sql, *parameters), **expected)

    def given(self, index: int, table: str) -> dict[str, Any]:
        """The row that entry `index` gives to a table. Raises NotHere where the tables lead to no such entry."""
        found = self.signed.of(index, table)
        if not found:
            self.signed.expect(0, 1)
            raise NotHere(f"The tables of this ledger lead to entry {index} for what it is not: `ledger fsck`.")
        return found[0]

    def row(self, sql: str, *parameters: Any) -> dict[str, Any] | None:
        """The first row of a query."""
        found = self.rows(sql, *parameters)
        return found[0] if found else None

    def value(self, sql: str, *parameters: Any) -> Any:
        """The first column of the first row, or None."""
        found = self.ledger.connection.execute(sql, parameters).fetchone()
        return None if found is None else found[0]

    def number(self, name: str) -> int | None:
        """A number of the query, or None where it is absent or not one."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


View = Callable[[Asked], Page | File | Moved]
