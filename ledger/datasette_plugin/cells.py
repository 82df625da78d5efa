"""Links from the cells of Datasette's table pages to our pages."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from .attached import attached_ledger
from .views import links_of

_HASH = re.compile("[0-9a-f]{64}")

# (table, column) of values that are leaf hashes; of other hashes (weights, states) there is no page.
_LEAVES = frozenset(
    {("datasets", "hash"), ("runs", "hash"), ("audit_intents", "hash"), ("releases", "hash"), ("run_summaries", "hash")}
)


def cell(datasette: Any, database: str, table: str | None, column: str, value: Any) -> Markup | None:
    """The cell as a link, or None to leave it to Datasette."""
    entry = column in ("entry", "idx") and table != "derivation"
    if not (entry or column in ("hash", "keyid")):
        return None
    attached = attached_ledger(datasette)
    links = links_of(datasette)
    if attached is None or links is None or attached.name != database:
        return None
    if isinstance(value, dict):  # Datasette has looked up the label of a foreign key
        value = value.get("value")
    if entry and isinstance(value, int):
        return Markup('<a href="{}">{}</a>').format(links.entry(value), value)
    if isinstance(value, str) and _HASH.fullmatch(value):
        if column == "keyid":
            return Markup('<a href="{}">{}</a>').format(links.key(value), value)
        if (table, column) in _LEAVES:
            return Markup('<a href="{}">{}</a>').format(links.entry(value), value)
    return None
