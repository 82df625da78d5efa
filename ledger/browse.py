"""Questions that the command line asks of a ledger: which entries, which one is meant, what is known of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlite_utils import Database

from . import merkle
from .entry.entries import KINDS, kind_of
from .entry.envelope import open_envelope
from .errors import BitwitnessError
from .jcs import f64_from_hex
from .merkle import MAX_SIZE
from .sqlite.derived import derived_size
from .store import Ledger, NoSuchEntry


@dataclass(frozen=True)
class Listed:
    """One entry as lists show it."""

    index: int
    kind: str
    hash: str
    run: str | None
    statement: dict[str, Any]

    @property
    def predicate(self) -> dict[str, Any]:
        predicate: dict[str, Any] = self.statement["predicate"]
        return predicate

    @property
    def time(self) -> str | None:
        time = self.predicate.get("time") or self.predicate.get("observed", {}).get("time")
        return None if time is None else str(time)

    def to_json(self) -> dict[str, Any]:
        """index, kind, hash, and the signed statement's parts under their own names."""
        listed = {"index": self.index, "kind": self.kind, "hash": self.hash}
        if self.run is not None:
            listed["run_name"] = self.run
        return {**listed, **{key: self.statement[key] for key in ("predicateType", "subject", "predicate")}}

    def summary(self) -> str:
        """A few words on what the entry says."""
        words = _SUMMARIES.get(self.kind)
        return words(self.predicate) if words else ""


def list_entries(
    ledger: Ledger, *, run: str | None = None, kind: str | None = None, limit: int | None = None
) -> Iterator[Listed]:
    """Entries in order; with `limit` the last so many. `run` is a name or hash prefix. Raises NoSuchEntry."""
    if kind is not None and kind not in KINDS:
        raise BitwitnessError(f"there is no kind {kind!r}; kinds are {', '.join(KINDS)}")
    newest = _not_derived_yet(ledger)
    where = ["log.entry < :derived"]
    values: dict[str, Any] = {"derived": newest[0].index if newest else ledger.size}
    if run is not None:
        where.append("log.run = (SELECT entry FROM runs WHERE hash = :run)")
        values["run"] = find_run(ledger, run)
        newest = [item for item in newest if item.predicate.get("run") == values["run"]]
    if kind is not None:
        newest = [item for item in newest if item.kind == kind]
        where.append("log.kind = :kind")
        values["kind"] = kind
    query = (
        "SELECT log.entry AS number, runs.name AS run FROM log LEFT JOIN runs ON runs.entry = log.run"
        f" WHERE {' AND '.join(where)} ORDER BY log.entry"
    )
    rows: Iterable[dict[str, Any]]
    if limit is None:
        rows = Database(ledger.connection).query(query, values)
    else:
        newest = newest[max(0, len(newest) - limit) :]
        last = list(Database(ledger.connection).query(f"{query} DESC LIMIT {limit - len(newest)}", values))
        rows = reversed(last)
    for row in rows:
        yield _listed(row["number"], ledger.entry(row["number"]), row["run"])
    yield from newest


def _not_derived_yet(ledger: Ledger) -> list[Listed]:
    """The newest entries, steps, that the derived tables do not have yet (derived.py)."""
    found = []
    for index, data in ledger.entries(derived_size(ledger.connection)):
        item = _listed(index, data, None)
        query = "SELECT name FROM runs WHERE hash = :run"
        names = [row["name"] for row in Database(ledger.connection).query(query, {"run": item.predicate.get("run")})]
        found.append(replace(item, run=names[0] if names else None))
    return found


def find_run(ledger: Ledger, text: str) -> str:
    """The identity of a run given by name or by 8 or more digits of its hash. Raises NoSuchEntry."""
    run = ledger.find_run(text)
    if run is None:
        raise NoSuchEntry(f"a run {text}", ledger.size)
    return run


def find_step(ledger: Ledger, run: str, step: int) -> int:
    """The index of the entry that records a step of a run (0: the genesis). Raises NoSuchEntry."""
    genesis = find_run(ledger, run)
    if not 0 <= step <= MAX_SIZE:  # more than SQLite's integers hold
        raise NoSuchEntry(f"step {step} of run {run}", ledger.size)
    if step == 0:
        query = "SELECT entry FROM runs WHERE hash = :run"
    else:
        query = "SELECT steps.entry FROM steps JOIN runs ON runs.entry = steps.run WHERE hash = :run AND step = :step"
    for row in Database(ledger.connection).query(query, {"run": genesis, "step": step}):
        return int(row["entry"])
    for item in _not_derived_yet(ledger):
        if item.kind == "step" and (item.predicate["run"], item.predicate["computed"]["step"]) == (genesis, step):
            return item.index
    raise NoSuchEntry(f"step {step} of run {run}", ledger.size)


def run_summary(ledger: Ledger, run: str) -> dict[str, Any]:
    """What the view run_summaries says of a run. `run` is the genesis leaf hash in hex."""
    (row,) = Database(ledger.connection).query("SELECT * FROM run_summaries WHERE hash = :run", {"run": run})
    return dict(row)


def enrolled_keys(ledger: Ledger) -> list[dict[str, Any]]:
    """The rows of table `keys`, each with `revoked_from`: the index from which the key no longer counts, or None."""
    query = (
        "SELECT keys.*, (SELECT min(from_index) FROM key_revocations WHERE key = keys.entry) AS revoked_from"
        " FROM keys ORDER BY entry"
    )
    return [dict(row) for row in Database(ledger.connection).query(query)]


def listed(ledger: Ledger, index: int) -> Listed:
    """One entry, with the name of its run."""
    query = "SELECT runs.name AS run FROM log LEFT JOIN runs ON runs.entry = log.run WHERE log.entry = :entry"
    for row in Database(ledger.connection).query(query, {"entry": index}):
        return _listed(index, ledger.entry(index), row["run"])
    for item in _not_derived_yet(ledger):
        if item.index == index:
            return item
    return _listed(index, ledger.entry(index), None)


def _listed(index: int, data: bytes, run: str | None) -> Listed:
    statement = open_envelope(data).statement
    return Listed(index, kind_of(statement), merkle.leaf_hash(data).hex(), run, statement)


def _audited(audit: Mapping[str, Any]) -> str:
    part = audit["units"][0].get("part")
    return f"{audit['steps']} steps compared" if part is None else f"{part} of {len(audit['units'])} steps"


_SUMMARIES = {
    "key": lambda p: f"{p['action']} {p['key']['role']} key {p['key']['keyid'][:16]}",
    "dataset": lambda p: f"{p['name']}: {p['documents']} documents, {p['tokens']} tokens",
    "run": lambda p: f"{p['name']}: {p['steps']} steps planned",
    "resume": lambda p: f"from the state of step {p['from']}, at step {p['step']}",
    "step": lambda p: f"step {p['computed']['step']}, loss {f64_from_hex(p['computed']['loss']):.4f}",
    "state": lambda p: f"state of step {p['step']} stored, {p['bytes']} bytes",
    "eval": lambda p: (
        f"step {p['step']} on {p['dataset']['name']}: {f64_from_hex(p['computed']['mean']):.4f} nats/token"
    ),
    "halt": lambda p: f"after step {p['step']}: {p['reason']}",
    "end": lambda p: f"after step {p['step']}",
    "audit-intent": lambda p: f"steps {p['first']} to {p['last']}, {p['samples']} units to draw",
    "audit": lambda p: f"{p['result']}: {_audited(p)}, {p['basis']}",
    "recheck": lambda p: f"{p['result']}: audit {p['audit'][:16]}, {p['steps']} steps computed again",
    "release": lambda p: f"{p['model']} version {p['version']}, from step {p['step']}",
    "endorse": lambda p: f"{p['statement']}{' ' + p['alias'] if 'alias' in p else ''}: release {p['release'][:16]}",
    "status": lambda p: f"number {p['sequence']}, over {p['ledger']['size']} entries",
}
