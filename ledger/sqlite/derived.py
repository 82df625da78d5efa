"""Derived tables: the rows that follow from entries, made by the same code for an append and for a rebuild.

Nothing here is evidence. `ledger rebuild` makes all of it again from the entries, and `ledger fsck` compares.

The tables always tell of the first so many entries (derived_size), all of them but for a few: rows of steps that are
appended singly, one after the other, wait for each other, at most MOST_WAITING of them and PATIENCE. Whatever else is
appended writes theirs, too, and so do a checkpoint, the end of the writer, and whoever reads through it.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import jcs
from ..entry.sealed import Sealed
from ..errors import BitwitnessError, EntryError
from . import derived_schema, many_rows

Json = Mapping[str, Any]
Row = many_rows.Row


class UnknownReference(EntryError):
    """An entry names another one (a run, dataset, intent, release or key) that is not in this ledger."""

    def __init__(self, what: str, value: str) -> None:
        super().__init__(f"the {what} {value} is not in this ledger")
        self.what = what
        self.value = value


class Conflict(BitwitnessError):
    """A name or number that only one entry may have is taken. `column` is the table and column, as SQLite says."""

    def __init__(self, what: str, column: str) -> None:
        super().__init__(what)
        self.column = column


class Derivation:
    """Writes derived rows into the open transaction of a connection. One per connection and sequence of appends.

    It must be told of every entry in order; after forget() and in the beginning that goes on after those that the
    tables have.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._runs: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        # Steps are nearly all entries: their rows go in together, many at a time.
        self._steps: list[tuple[Row, Row, Json]] = []
        self._written = -math.inf  # when rows were last written
        self._block: list[bytes] | None = None  # leaf hashes of the block of entries that is not full yet
        self._places: list[Row] = []  # of blocks that are full
        self.behind = True
        """Whether entries that the tables do not have may be unknown here."""

    def forget(self) -> None:
        """Drop what was remembered; to be called when a transaction is rolled back."""
        self._runs.clear()
        self._keys.clear()
        self._steps.clear()
        self._block = None
        self._places.clear()
        self.behind = True

    def apply(self, index: int, entry: Sealed) -> None:
        """Add the rows of entry `index`, those of steps at the next flush().

        Raises UnknownReference, or Conflict for a name that is taken.
        """
        kind = entry.kind.name
        predicate = entry.envelope.statement["predicate"]
        self._place(index, entry.leaf_hash)
        if kind == "step":
            self._keep_step(index, entry.envelope.keyid, predicate)
            return
        self.flush()
        try:
            if not entry.kind.chained:
                digest = hashlib.sha256(entry.envelope.payload).hexdigest()
                self._insert("payloads", digest=digest, entry=index)
            ROWS[kind](self, index, entry.leaf_hash.hex(), predicate)
            self._log(index, entry, predicate)
        except sqlite3.IntegrityError as error:
            raise _conflict(str(error), kind, predicate) from None

    def _place(self, index: int, leaf_hash: bytes) -> None:
        """Remember where a leaf hash is; the block that it fills is written at the next flush()."""
        start = index - index % derived_schema.LEAF_BLOCK
        if self._block is None:
            query = "SELECT leaf_hash FROM entries WHERE idx >= ? AND idx < ? ORDER BY idx"
            stored = self._connection.execute(query, (start, index)) if index > start else ()
            self._block = [row[0] for row in stored]
        self._block.append(leaf_hash)
        if len(self._block) == derived_schema.LEAF_BLOCK:
            self._places += sorted((leaf_hash[:8], start + place) for place, leaf_hash in enumerate(self._block))
            self._block = []

    def _log(self, index: int, entry: Sealed, predicate: Json) -> None:
        run = entry.leaf_hash.hex() if entry.kind.name == "run" else predicate.get("run")
        self._insert(
            "log",
            entry=index,
            kind=entry.kind.name,
            signer=self._key(entry.envelope.keyid),
            run=self._released(predicate["release"]) if "release" in predicate else run and self._run(run),
            seq=predicate.get("seq"),
        )

    def _released(self, release: str) -> int:
        """The run of a release: what is said of the one is listed with what is said of the other."""
        found = self._connection.execute("SELECT run FROM releases WHERE hash = ?", (release,)).fetchone()
        if found is None:
            raise UnknownReference("release", release)
        return int(found[0])

    def _insert(self, table: str, **values: Any) -> None:
        self._connection.execute(many_rows.insertion(table, tuple(values)), tuple(values.values()))

    @property
    def waiting(self) -> int:
        """How many steps wait for flush()."""
        return len(self._steps)

    def may_wait(self) -> bool:
        """Whether the rows of steps may wait on, beyond this transaction."""
        return len(self._steps) < MOST_WAITING and not self._places and time.monotonic() - self._written < PATIENCE

    def flush(self) -> None:
        """Write the rows of steps that apply() has kept back, into the open transaction."""
        if self._places:
            many_rows.insert(self._connection, "leaf_places", ("prefix", "entry"), self._places)
            self._places.clear()
        self._written = time.monotonic()
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        try:
            many_rows.insert(self._connection, "steps", STEP_COLUMNS, [row for row, _log, _predicate in steps])
            many_rows.insert(self._connection, "log", LOG_COLUMNS, [row for _step, row, _predicate in steps])
        except sqlite3.IntegrityError as error:
            raise _conflict(str(error), "step", self._refused(steps)) from None

    def _refused(self, kept: list[tuple[Row, Row, Json]]) -> Json:
        """The predicate of the first step whose row did not get in."""
        there = self._connection.execute
        for step, _log, predicate in kept:
            if not there("SELECT 1 FROM steps WHERE run = ? AND step = ? AND entry = ?", step[:3]).fetchone():
                return predicate
        return next(p for _step, log, p in kept if not there("SELECT 1 FROM log WHERE entry = ?", log[:1]).fetchone())

    def _lookup(self, table: str, column: str, value: str, what: str) -> int:
        found = self._connection.execute(f"SELECT entry FROM {table} WHERE {column} = ?", (value,)).fetchone()
        if found is None:
            raise UnknownReference(what, value)
        return int(found[0])

    def _run(self, run: str) -> int:
        if run not in self._runs:
            self._runs[run] = self._lookup("runs", "hash", run, "run")
        return self._runs[run]

    def _key(self, keyid: str) -> int:
        if keyid not in self._keys:
            self._keys[keyid] = self._lookup("keys", "keyid", keyid, "key")
        return self._keys[keyid]

    def _dataset(self, entry: str) -> int:
        return self._lookup("datasets", "hash", entry, "dataset entry")

    def _key_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        key, action, time = p["key"], p["action"], p["time"]
        if action == "revoke":
            self._insert("key_revocations", entry=index, key=self._key(key["keyid"]), from_index=p["from"], time=time)
            return
        replaced = self._key(p["replaces"]) if action == "rotate" else None
        self._insert(
            "keys",
            entry=index,
            keyid=key["keyid"],
            role=key["role"],
            name=key.get("name"),
            algorithm=key["algorithm"],
            public=key["public"],
            replaces=replaced,
            time=time,
        )
        if replaced is not None:  # the old key ends where its successor begins
            self._insert("key_revocations", entry=index, key=replaced, from_index=index, time=time)

    def _dataset_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        self._insert(
            "datasets",
            entry=index,
            hash=leaf_hash,
            name=p["name"],
            root=p["dataset"]["root"],
            size=p["dataset"]["size"],
            documents=p["documents"],
            tokens=p["tokens"],
            bytes=p["bytes"],
            tokenizer=p["tokenizer"]["name"],
            vocabulary=p["tokenizer"]["vocabulary"],
            visibility=p["visibility"],
            license=p.get("license"),
            time=p["time"],
        )

    def _run_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        init = p["init"]
        forked = init["kind"] == "parent"
        self._insert(
            "runs",
            entry=index,
            name=p["name"],
            hash=leaf_hash,
            planned_steps=p["steps"],
            trainer=self._key(p["signer"]),
            seed=p["seed"],
            init=init["kind"],
            parent=self._run(init["run"]) if forked else None,
            parent_step=init["step"] if forked else None,
            arithmetic=p["arithmetic"]["digest"],
            code=p["code"]["root"],
            weights=p["weights"]["root"],
            state=p["state"],
            config=jcs.encode(p["config"]).decode("utf-8"),
            time=p["observed"]["time"],
        )
        for position, used in enumerate(p["datasets"]):
            self._insert(
                "run_datasets",
                run=index,
                position=position,
                name=used["name"],
                role=used["role"],
                dataset=self._dataset(used["entry"]),
            )

    def _keep_step(self, index: int, keyid: str, p: Json) -> None:
        computed, observed = p["computed"], p["observed"]
        learning_rate = computed["scalars"].get("learning_rate")
        microseconds = observed.get("seconds_us")
        run = self._run(p["run"])
        step = (
            run,
            computed["step"],
            index,
            *_DOUBLES(bytes.fromhex(computed["loss"] + computed["norm"])),
            None if learning_rate is None else _SINGLE(bytes.fromhex(learning_rate))[0],
            computed["loss"],
            computed["norm"],
            learning_rate,
            computed["tokens"],
            None if microseconds is None else microseconds / 1e6,
            observed["time"],
            computed["weights"]["root"],
        )
        log = (index, "step", self._key(keyid), run, p["seq"])
        self._steps.append((step, log, p))

    def _state_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        self._insert(
            "states",
            entry=index,
            run=self._run(p["run"]),
            step=p["step"],
            state=p["state"],
            weights=p["weights"]["root"],
            optimizer=p["optimizer"]["root"],
            bytes=p["bytes"],
        )

    def _eval_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        computed = p["computed"]
        self._insert(
            "evals",
            entry=index,
            run=self._run(p["run"]),
            step=p["step"],
            dataset=self._dataset(p["dataset"]["entry"]),
            name=p["dataset"]["name"],
            mean=jcs.f64_from_hex(computed["mean"]),
            mean_bits=computed["mean"],
            nll=jcs.f64_from_hex(computed["nll"]),
            nll_bits=computed["nll"],
            tokens=computed["tokens"],
            windows=computed["windows"],
            state=p["state"],
            time=p["observed"]["time"],
        )

    def _event_rows(self, index: int, kind: str, p: Json) -> None:
        self._insert(
            "run_events",
            entry=index,
            run=self._run(p["run"]),
            step=p["step"],
            kind=kind,
            reason=p.get("reason"),
            state=p["state"],
            time=p["observed"]["time"],
        )

    def _intent_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        self._insert(
            "audit_intents",
            entry=index,
            hash=leaf_hash,
            run=self._run(p["run"]),
            auditor=self._key(p["signer"]),
            first=p["first"],
            last=p["last"],
            samples=p["samples"],
            beacon=p["beacon"]["kind"],
            size=p["size"],
            time=p["time"],
        )

    def _audit_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        self._insert(
            "audits",
            entry=index,
            hash=leaf_hash,
            run=self._run(p["run"]),
            intent=self._lookup("audit_intents", "hash", p["intent"], "audit-intent"),
            auditor=self._key(p["signer"]),
            basis=p["basis"],
            result=p["result"],
            steps=p["steps"],
            seed=p["seed"],
            transcript=p["transcript"]["root"],
            time=p["observed"]["time"],
        )
        for position, unit in enumerate(p["units"]):
            self._insert(
                "audit_units",
                audit=index,
                position=position,
                first=unit["first"],
                last=unit["last"],
                # One part is not the step: pages must not show it as compared.
                outcome="partial" if "part" in unit and unit["outcome"] == "match" else unit["outcome"],
                cause=unit["cause"],
                reason=unit.get("reason"),
            )

    def _recheck_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        self._insert(
            "rechecks",
            entry=index,
            audit=self._lookup("audits", "hash", p["audit"], "audit"),
            run=self._run(p["run"]),
            auditor=self._key(p["signer"]),
            result=p["result"],
            reason=p.get("reason"),
            steps=p["steps"],
            transcript=p["transcript"]["root"],
            time=p["observed"]["time"],
        )

    def _release_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        self._insert(
            "releases",
            entry=index,
            hash=leaf_hash,
            model=p["model"],
            version=p["version"],
            run=self._run(p["run"]),
            step=p["step"],
            publisher=self._key(p["signer"]),
            weights=p["weights"]["root"],
            state=p["state"],
            dtype=p["dtype"],
            license=p.get("license"),
            time=p["time"],
        )
        for position, file in enumerate(p["files"]):
            self._insert(
                "release_files",
                release=index,
                position=position,
                name=file["name"],
                sha256=file["sha256"],
                bytes=file["bytes"],
            )

    def _endorse_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        self._insert(
            "endorsements",
            entry=index,
            release=self._lookup("releases", "hash", p["release"], "release"),
            signer=self._key(p["signer"]),
            statement=p["statement"],
            alias=p.get("alias"),
            reason=p.get("reason"),
            policy=p.get("policy"),
            time=p["time"],
        )

    def _status_rows(self, index: int, leaf_hash: str, p: Json) -> None:
        self._insert(
            "statuses",
            entry=index,
            sequence=p["sequence"],
            size=p["ledger"]["size"],
            revoked_keys=len(p["revoked_keys"]),
            revoked_releases=len(p["revoked_releases"]),
            runs=p["runs"]["size"],
            time=p["time"],
        )


MOST_KEPT = 1000
"""So many steps of one append may wait for flush(), which whoever applies entries sees to."""
MOST_WAITING = 128
"""Fewer steps than this have no rows yet when an append is durable."""
PATIENCE = 0.2
"""Where no rows have been written for so many seconds, an append writes all that wait and its own."""

STEP_COLUMNS = (
    "run", "step", "entry", "loss", "norm", "learning_rate", "loss_bits", "norm_bits", "learning_rate_bits", "tokens",
    "seconds", "time", "weights",
)  # fmt: skip
# Of hex digits that the kind's schema has checked: one NaN, which SQLite makes NULL.
_DOUBLES, _SINGLE = struct.Struct(">dd").unpack, struct.Struct(">f").unpack
LOG_COLUMNS = ("entry", "kind", "signer", "run", "seq")

_Rows = Callable[[Derivation, int, str, Json], None]


def _event(kind: str) -> _Rows:
    return lambda derivation, index, leaf_hash, predicate: derivation._event_rows(index, kind, predicate)


ROWS: dict[str, _Rows] = {
    "key": Derivation._key_rows,
    "dataset": Derivation._dataset_rows,
    "run": Derivation._run_rows,
    "resume": _event("resume"),
    "state": Derivation._state_rows,
    "eval": Derivation._eval_rows,
    "halt": _event("halt"),
    "end": _event("end"),
    "audit-intent": Derivation._intent_rows,
    "audit": Derivation._audit_rows,
    "recheck": Derivation._recheck_rows,
    "release": Derivation._release_rows,
    "endorse": Derivation._endorse_rows,
    "status": Derivation._status_rows,
}


def _conflict(message: str, kind: str, p: Json) -> Conflict:
    """Say in the user's words which name is taken; SQLite says `UNIQUE constraint failed: table.column`."""
    column = message.rpartition(": ")[2]
    said: dict[str, Callable[[], str]] = {
        "runs.name": lambda: f"a run named {p['name']!r} is already in this ledger; choose another name",
        "runs.hash": lambda: "this run is already in the ledger",
        "keys.keyid": lambda: f"key {p['key']['keyid']} is already enrolled",
        "steps.run, steps.step": lambda: f"step {p['computed']['step']} of this run is already in the ledger",
        "audits.intent": lambda: "this audit-intent already has its audit",
        "releases.model, releases.version": lambda: f"model {p['model']} has a version {p['version']} already",
        "log.run, log.seq": lambda: f"entry {p.get('seq')} of this run is already in the ledger",
        "payloads.digest": lambda: "this statement is already in the ledger, under one signature or another",
    }
    words = said.get(column)
    return Conflict(words() if words else f"the {kind} entry does not fit into this ledger: {message}", column)


def derived_size(connection: sqlite3.Connection) -> int:
    """How many entries, from the first, the derived tables cover."""
    return int(connection.execute("SELECT coalesce(max(entry) + 1, 0) FROM log").fetchone()[0])


def version(connection: sqlite3.Connection) -> int | None:
    """The version of the derived tables in the file, None where they are missing."""
    try:
        row = connection.execute("SELECT version FROM derivation").fetchone()
    except sqlite3.OperationalError:
        return None
    return None if row is None else int(row[0])


def derive(connection: sqlite3.Connection, entries: Iterable[tuple[int, Sealed]]) -> int:
    """Make all derived tables anew in the open transaction, from all entries in order; return their number."""
    derived_schema.drop(connection)
    derived_schema.create(connection)
    derivation = Derivation(connection)
    number = 0
    for index, entry in entries:
        derivation.apply(index, entry)
        if derivation.waiting >= MOST_KEPT:
            derivation.flush()
        number += 1
    derivation.flush()
    return number
