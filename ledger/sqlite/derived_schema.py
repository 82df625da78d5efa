"""The derived tables: what people browse. Everything in them follows from the entries (see derived.py).

Hashes are hex text. A float stands twice: as REAL for reading and sorting, and beside it (`…_bits`) as the hex of
the exact bits that were signed. `entry` columns hold the index of the entry that a row comes from.
"""

from __future__ import annotations

import sqlite3

from .schema import split_statements

VERSION = 4
LEAF_BLOCK = 4096

TABLES = """
CREATE TABLE derivation (
    entry INTEGER PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT;

CREATE TABLE keys (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    keyid TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    name TEXT,
    algorithm TEXT NOT NULL,
    public TEXT NOT NULL,
    replaces INTEGER REFERENCES keys (entry),
    time TEXT NOT NULL
) STRICT;

-- From `from_index` on, entries that the key signs no longer count.
CREATE TABLE key_revocations (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    key INTEGER NOT NULL REFERENCES keys (entry),
    from_index INTEGER NOT NULL,
    time TEXT NOT NULL
) STRICT;
CREATE INDEX key_revocations_by_key ON key_revocations (key, from_index);

CREATE TABLE log (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    kind TEXT NOT NULL,
    signer INTEGER NOT NULL REFERENCES keys (entry),
    run INTEGER REFERENCES runs (entry),
    seq INTEGER
) STRICT;
CREATE UNIQUE INDEX log_by_seq ON log (run, seq) WHERE seq IS NOT NULL;
CREATE INDEX log_by_run ON log (run, entry) WHERE run IS NOT NULL AND seq IS NULL;
CREATE INDEX log_by_kind ON log (kind, entry) WHERE kind <> 'step';

-- One payload, one entry: a second signature over the same payload is refused. Entries of a run need no row,
-- since one (run, seq) is one payload.
CREATE TABLE payloads (
    digest TEXT PRIMARY KEY,
    entry INTEGER NOT NULL REFERENCES entries (idx)
) STRICT, WITHOUT ROWID;

-- Where a leaf hash is, by its first eight bytes, for each full block of LEAF_BLOCK entries; the newest entries are
-- searched in `entries` itself. An index would be written at a hundred random places by a hundred entries.
CREATE TABLE leaf_places (
    prefix BLOB NOT NULL,
    entry INTEGER NOT NULL,
    PRIMARY KEY (prefix, entry)
) STRICT, WITHOUT ROWID;

CREATE TABLE datasets (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    root TEXT NOT NULL,
    size INTEGER NOT NULL,
    documents INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    tokenizer TEXT NOT NULL,
    vocabulary INTEGER NOT NULL,
    visibility TEXT NOT NULL,
    license TEXT,
    time TEXT NOT NULL
) STRICT;

CREATE TABLE runs (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    name TEXT NOT NULL UNIQUE,
    hash TEXT NOT NULL UNIQUE,
    planned_steps INTEGER NOT NULL,
    trainer INTEGER NOT NULL REFERENCES keys (entry),
    seed TEXT NOT NULL,
    init TEXT NOT NULL,
    parent INTEGER REFERENCES runs (entry),
    parent_step INTEGER,
    arithmetic TEXT NOT NULL,
    code TEXT NOT NULL,
    weights TEXT NOT NULL,
    state TEXT NOT NULL,
    config TEXT NOT NULL,
    time TEXT NOT NULL
) STRICT;

CREATE TABLE run_datasets (
    run INTEGER NOT NULL REFERENCES runs (entry),
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    dataset INTEGER NOT NULL REFERENCES datasets (entry),
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_events (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    run INTEGER NOT NULL REFERENCES runs (entry),
    step INTEGER NOT NULL,
    kind TEXT NOT NULL,
    reason TEXT,
    state TEXT NOT NULL,
    time TEXT NOT NULL
) STRICT;
CREATE INDEX run_events_by_run ON run_events (run, entry);

CREATE TABLE steps (
    run INTEGER NOT NULL REFERENCES runs (entry),
    step INTEGER NOT NULL,
    entry INTEGER NOT NULL REFERENCES entries (idx),
    loss REAL,
    loss_bits TEXT NOT NULL,
    norm REAL,
    norm_bits TEXT NOT NULL,
    learning_rate REAL,
    learning_rate_bits TEXT,
    tokens INTEGER NOT NULL,
    seconds REAL,
    time TEXT NOT NULL,
    weights TEXT NOT NULL,
    PRIMARY KEY (run, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE states (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    run INTEGER NOT NULL REFERENCES runs (entry),
    step INTEGER NOT NULL,
    state TEXT NOT NULL,
    weights TEXT NOT NULL,
    optimizer TEXT NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX states_by_run ON states (run, step);

CREATE TABLE evals (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    run INTEGER NOT NULL REFERENCES runs (entry),
    step INTEGER NOT NULL,
    dataset INTEGER NOT NULL REFERENCES datasets (entry),
    name TEXT NOT NULL,
    mean REAL,
    mean_bits TEXT NOT NULL,
    nll REAL,
    nll_bits TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    windows INTEGER NOT NULL,
    state TEXT NOT NULL,
    time TEXT NOT NULL
) STRICT;
CREATE INDEX evals_by_run ON evals (run, step);

CREATE TABLE audit_intents (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    hash TEXT NOT NULL UNIQUE,
    run INTEGER NOT NULL REFERENCES runs (entry),
    auditor INTEGER NOT NULL REFERENCES keys (entry),
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    samples INTEGER NOT NULL,
    beacon TEXT NOT NULL,
    size INTEGER NOT NULL,
    time TEXT NOT NULL
) STRICT;
CREATE INDEX audit_intents_by_run ON audit_intents (run, entry);

CREATE TABLE audits (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    hash TEXT NOT NULL UNIQUE,
    run INTEGER NOT NULL REFERENCES runs (entry),
    intent INTEGER NOT NULL UNIQUE REFERENCES audit_intents (entry),
    auditor INTEGER NOT NULL REFERENCES keys (entry),
    basis TEXT NOT NULL,
    result TEXT NOT NULL,
    steps INTEGER NOT NULL,
    seed TEXT NOT NULL,
    transcript TEXT NOT NULL,
    time TEXT NOT NULL
) STRICT;
CREATE INDEX audits_by_run ON audits (run, entry);

CREATE TABLE audit_units (
    audit INTEGER NOT NULL REFERENCES audits (entry),
    position INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    cause TEXT NOT NULL,
    reason TEXT,
    PRIMARY KEY (audit, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE rechecks (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    audit INTEGER NOT NULL REFERENCES audits (entry),
    run INTEGER NOT NULL REFERENCES runs (entry),
    auditor INTEGER NOT NULL REFERENCES keys (entry),
    result TEXT NOT NULL,
    reason TEXT,
    steps INTEGER NOT NULL,
    transcript TEXT NOT NULL,
    time TEXT NOT NULL
) STRICT;
CREATE INDEX rechecks_by_audit ON rechecks (audit, entry);
CREATE INDEX rechecks_by_run ON rechecks (run, entry);

CREATE TABLE releases (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    hash TEXT NOT NULL UNIQUE,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    run INTEGER NOT NULL REFERENCES runs (entry),
    step INTEGER NOT NULL,
    publisher INTEGER NOT NULL REFERENCES keys (entry),
    weights TEXT NOT NULL,
    state TEXT NOT NULL,
    dtype TEXT NOT NULL,
    license TEXT,
    time TEXT NOT NULL,
    UNIQUE (model, version)
) STRICT;

CREATE TABLE release_files (
    release INTEGER NOT NULL REFERENCES releases (entry),
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (release, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE endorsements (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    release INTEGER NOT NULL REFERENCES releases (entry),
    signer INTEGER NOT NULL REFERENCES keys (entry),
    statement TEXT NOT NULL,
    alias TEXT,
    reason TEXT,
    policy TEXT,
    time TEXT NOT NULL
) STRICT;
CREATE INDEX endorsements_by_release ON endorsements (release, entry);

CREATE TABLE statuses (
    entry INTEGER PRIMARY KEY REFERENCES entries (idx),
    sequence INTEGER NOT NULL,
    size INTEGER NOT NULL,
    revoked_keys INTEGER NOT NULL,
    revoked_releases INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    time TEXT NOT NULL
) STRICT;

CREATE VIEW models AS
    SELECT model, max(version) AS version, entry, run, step, weights, dtype, license, time
    FROM releases GROUP BY model;

-- The release that each alias names now: its last word counts, and an unalias ends it.
CREATE VIEW aliases AS
    SELECT model, alias, version, release, entry, signer, policy, time FROM (
        SELECT releases.model, endorsements.*, releases.version, row_number() OVER
            (PARTITION BY releases.model, endorsements.alias ORDER BY endorsements.entry DESC) AS place
        FROM endorsements JOIN releases ON releases.entry = endorsements.release WHERE alias IS NOT NULL
    ) WHERE place = 1 AND statement = 'alias';

-- What publishers last said of each release that they took back: deprecated (until restored) or revoked (for good).
CREATE VIEW release_states AS
    SELECT release, statement AS state, reason, entry, signer, time FROM endorsements AS said
    WHERE statement IN ('deprecated', 'revoked') AND entry = (
        SELECT entry FROM endorsements AS other
        WHERE other.release = said.release AND other.statement IN ('deprecated', 'restored', 'revoked')
        ORDER BY other.statement = 'revoked' DESC, other.entry DESC LIMIT 1);

CREATE VIEW run_summaries AS
    SELECT runs.entry AS run, runs.name, runs.hash,
        coalesce((SELECT CASE kind WHEN 'end' THEN 'ended' WHEN 'halt' THEN reason ELSE 'running' END
            FROM run_events WHERE run_events.run = runs.entry ORDER BY entry DESC LIMIT 1), 'running') AS status,
        runs.planned_steps, last.step AS last_step,
        last.loss AS last_loss, last.weights AS last_weights, last.time AS last_time,
        (SELECT mean FROM evals WHERE evals.run = runs.entry ORDER BY step DESC, entry DESC LIMIT 1) AS last_eval,
        (SELECT count(*) FROM audits WHERE audits.run = runs.entry) AS audits,
        (SELECT count(*) FROM audits WHERE audits.run = runs.entry AND result = 'match') AS audits_match
    FROM runs LEFT JOIN steps AS last
        ON last.run = runs.entry
        AND last.step = (SELECT max(step) FROM steps WHERE steps.run = runs.entry);
"""

_APPEND_ONLY = """
CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table}
BEGIN SELECT RAISE(ABORT, 'derived from the ledger: {table} cannot be updated'); END;
CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table}
BEGIN SELECT RAISE(ABORT, 'derived from the ledger: {table} cannot be deleted'); END;
CREATE TRIGGER {table}_in_order BEFORE INSERT ON {table}
BEGIN SELECT RAISE(ABORT, 'derived from the ledger: {table} get rows from new entries only')
    FROM log WHERE entry >= NEW.{entry}{behind} LIMIT 1; END;
"""

_STATEMENTS = split_statements(TABLES)
TABLE_NAMES = tuple(text.split()[2] for text in _STATEMENTS if text.startswith("CREATE TABLE"))
VIEW_NAMES = tuple(text.split()[2] for text in _STATEMENTS if text.startswith("CREATE VIEW"))

# The column that holds the index of the entry which a row comes from.
ENTRY_COLUMN = {name: "entry" for name in TABLE_NAMES} | {
    "run_datasets": "run",
    "audit_units": "audit",
    "release_files": "release",
}

# A block's rows come with its last entry.
_BEHIND = {"leaf_places": f" + {LEAF_BLOCK}"}

TRIGGERS = "".join(
    _APPEND_ONLY.format(table=table, entry=column, behind=_BEHIND.get(table, ""))
    for table, column in ENTRY_COLUMN.items()
    if table != "derivation"
)


def create(connection: sqlite3.Connection) -> None:
    """Make the empty derived tables in the open transaction of `connection`.

    Their rows are only ever inserted, so that triggers can refuse every edit; a new derivation drops the tables.
    """
    for statement in _STATEMENTS + split_statements(TRIGGERS):
        connection.execute(statement)
    connection.execute("INSERT INTO derivation (entry, version) VALUES (0, ?)", (VERSION,))
    for statement in split_statements(_APPEND_ONLY.format(table="derivation", entry="entry", behind="")):
        connection.execute(statement)


def drop(connection: sqlite3.Connection) -> None:
    """Drop whatever derived tables and views exist, in the open transaction of `connection`."""
    kinds = dict(connection.execute("SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view')"))
    for name in (*VIEW_NAMES, *reversed(TABLE_NAMES)):
        if name in kinds:
            connection.execute(f"DROP {kinds[name]} {name}")
