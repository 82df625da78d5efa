"""The base tables of a ledger file: what is kept, in which form, and the triggers that keep it append-only.

An entry is stored as its two independent parts, the payload (canonical JSON, readable in any SQLite tool) and the
raw signature; the envelope around them is a pure function of the two, so the signed bytes come back exactly and
every stored byte is bound by the leaf hash. This takes a third less room than the envelope itself.

An inner node of the Merkle tree stands in the row of the entry that completes it, the last one under it: so an append
is one row, and touches one page.
"""

from __future__ import annotations

import json
import sqlite3

from ..entry.envelope import assemble

APPLICATION_ID = 0x62697477  # "bitw", in the file's header
SCHEMA_VERSION = 2
FORMAT = "bitwitness-ledger/1"
# Rows of about 1,400 bytes: 16 KiB pages hold eleven with little waste; 4 KiB pages would hold two.
PAGE_SIZE = 16384

TABLES = """
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    format TEXT NOT NULL,
    origin TEXT NOT NULL
) STRICT;

CREATE TABLE entries (
    idx INTEGER PRIMARY KEY CHECK (idx >= 0),
    payload TEXT NOT NULL,
    signature BLOB NOT NULL CHECK (length(signature) = 64),
    leaf_hash BLOB NOT NULL CHECK (length(leaf_hash) = 32),
    nodes BLOB NOT NULL CHECK (length(nodes) % 32 = 0)
) STRICT;

CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY CHECK (id >= 0),
    size INTEGER NOT NULL CHECK (size >= 0),
    note TEXT NOT NULL
) STRICT;

CREATE INDEX checkpoints_by_size ON checkpoints (size);
"""

_NO_CHANGE = """
CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table}
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: {table} cannot be updated'); END;
CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table}
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: {table} cannot be deleted'); END;
"""

# INSERT OR REPLACE deletes rows without firing delete triggers, so an insert may only go at the end.
_APPEND_AT_END = """
CREATE TRIGGER {table}_in_order BEFORE INSERT ON {table}
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: {table} grow at the end only')
    FROM {table} WHERE {key} >= NEW.{key} LIMIT 1; END;
"""

_ONE_ROW = """
CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger WHEN (SELECT count(*) FROM ledger) > 0
BEGIN SELECT RAISE(ABORT, 'a ledger has one origin'); END;
"""

_KEYS = {"entries": "idx", "checkpoints": "id"}

TRIGGERS = "".join(
    [_NO_CHANGE.format(table=table) for table in ("ledger", *_KEYS)]
    + [_APPEND_AT_END.format(table=table, key=key) for table, key in _KEYS.items()]
    + [_ONE_ROW]
)


def create(connection: sqlite3.Connection, origin: str) -> None:
    """Make the base tables and triggers in the open transaction of `connection`, and set the origin."""
    for statement in split_statements(TABLES + TRIGGERS):
        connection.execute(statement)
    connection.execute("INSERT INTO ledger (id, format, origin) VALUES (1, ?, ?)", (FORMAT, origin))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def split_statements(script: str) -> list[str]:
    """The single statements of an SQL script (sqlite3's executescript would commit the open transaction)."""
    statements = []
    current = ""
    for line in script.splitlines(keepends=True):
        if not current and (not line.strip() or line.lstrip().startswith("--")):
            continue
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current.strip())
            current = ""
    if current.strip():
        statements.append(current.strip())
    return statements


def definitions(connection: sqlite3.Connection) -> dict[str, str]:
    """name -> SQL text of the tables, views, indexes and triggers in the file."""
    return dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


def entry_bytes(payload: bytes, signature: bytes) -> bytes:
    """The signed entry that is stored as `payload` and `signature`.

    Its keyid is the one that the payload states (docs/formats/entries.md makes the two equal). Raises ValueError,
    KeyError or TypeError if the payload is not such JSON, as can be in an edited file.
    """
    keyid = json.loads(payload)["predicate"]["signer"]
    if not isinstance(keyid, str):
        raise ValueError("predicate.signer is not a string")
    return assemble(payload, keyid, signature)
