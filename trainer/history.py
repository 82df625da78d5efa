"""A run as its ledger tells it: genesis, steps, stored states, and how it ended.

`open_run` reads what the ledger file holds now; whoever signs a conclusion uses `open_verified_run`, which believes
neither the file's derived tables nor any row that the independent verifier has not passed.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

from bitwitness.ledger import merkle
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.ledger.verify_rows import connect, entry_bytes

from .config import RunConfig, config_from_ledger
from .sample import Mark, Unit, select, units
from .state import Control, StateCommitment


class NoSuchRun(BitwitnessError):
    """The ledger has no run of this name or hash."""


class LedgerNotVerified(FoundWrong):
    """The ledger's rows do not hold: nothing that they say of a run is believed."""


@dataclass(frozen=True)
class Parent:
    """Where a run goes on from: the name of its parent, and the predicate of the `state` entry there."""

    name: str
    state: dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One entry of the run, or about it: its index in the ledger, kind, and predicate."""

    index: int
    kind: str
    predicate: dict[str, Any]
    leaf_hash: bytes = b""


class RunHistory:
    """The entries of one run, in chain order; `about` are those of others that name it, in ledger order."""

    def __init__(self, run: str, entries: list[Entry], about: list[Entry] | None = None) -> None:
        self.run, self.entries, self.about = run, entries, about or []
        self.datasets: dict[str, dict[str, Any]] = {}
        """The `dataset` entries that the genesis names, by leaf hash. Only of a run that was opened verified."""
        self.parent: Parent | None = None
        """What the genesis goes on from, if it does. Only of a run that was opened verified."""
        self.forks: list[Entry] = []
        """The geneses of runs that go on from this one. Only of a run that was opened verified."""
        self.genesis = entries[0].predicate
        self.steps = {e.predicate["computed"]["step"]: e for e in entries if e.kind == "step"}
        self.states = {e.predicate["step"]: e for e in entries if e.kind == "state"}
        self.evals = [e for e in entries if e.kind == "eval"]
        self.resumes = [e for e in entries if e.kind == "resume"]

    def as_of(self, size: int) -> RunHistory:
        """The run as the first `size` entries of the ledger tell it."""
        entries = [entry for entry in self.entries if entry.index < size]
        others = (*self.about, *self.forks)
        if len(entries) == len(self.entries) and all(entry.index < size for entry in others):
            return self
        earlier = RunHistory(self.run, entries, [entry for entry in self.about if entry.index < size])
        earlier.datasets, earlier.parent = self.datasets, self.parent
        earlier.forks = [entry for entry in self.forks if entry.index < size]
        return earlier

    @cached_property
    def config(self) -> RunConfig:
        return config_from_ledger(self.genesis["config"])

    @property
    def name(self) -> str:
        return str(self.genesis["name"])

    @property
    def ended(self) -> bool:
        return any(entry.kind == "end" for entry in self.entries)

    @property
    def first(self) -> int:
        """The step that the run begins after: 0, or that of another run which it goes on from."""
        first: int = self.genesis["control"]["step"]
        return first

    @property
    def last_step(self) -> int:
        return max(self.steps, default=self.first)

    def units(self, last: int | None = None) -> list[tuple[int, int]]:
        """The intervals between stored states, up to step `last` (the run's); without the initial state."""
        return units(self.states, self.last_step if last is None else last, self.first)

    def select(self, last: int, seed: bytes, samples: int) -> list[Unit]:
        """The units of an audit up to step `last`: those that are always in one, and a sample drawn from `seed`."""
        return select(self.genesis, self.marks(), last, seed, samples)

    def computed(self, step: int) -> dict[str, Any]:
        """What the ledger says that `step` computed."""
        computed = self.steps[step].predicate["computed"]
        assert isinstance(computed, dict)
        return computed

    def state(self, step: int) -> StateCommitment:
        """The state that `step` committed to; the first is in the genesis. Its moments may be thinned."""
        return _commitment(self.genesis if step == self.first else self.computed(step))

    def stored(self, step: int) -> StateCommitment:
        """The state of a `state` entry, or of the genesis: the moments are always committed there."""
        return _commitment(self.genesis if step == self.first else self.states[step].predicate)

    def marks(self) -> list[Mark]:
        """What the units of an audit depend on, in ledger order. Only of a run that was opened verified."""
        found = [entry for entry in (*self.entries, *self.about) if entry.kind in ("state", "resume", "release")]
        marks = [Mark(entry.index, entry.kind, entry.predicate["step"]) for entry in found]
        marks += [Mark(fork.index, "fork", fork.predicate["init"]["step"]) for fork in self.forks]
        return sorted(marks, key=lambda mark: mark.entry)

    def open_intents(self, auditor: str) -> list[int]:
        """The indexes of this auditor's intents that no audit followed. Only of a run that was opened verified."""
        done = {entry.predicate["intent"] for entry in self.about if entry.kind == "audit"}
        return [
            entry.index
            for entry in self.about
            if entry.kind == "audit-intent"
            and entry.predicate["signer"] == auditor
            and entry.leaf_hash.hex() not in done
        ]

    def reopen(self, auditor: str, index: int) -> Entry:
        """The intent at `index`, if it is this auditor's, open, and announced a sample. Raises BitwitnessError."""
        if index not in self.open_intents(auditor):
            raise BitwitnessError(f"entry {index} is no open audit-intent of this auditor for run {self.name}")
        found = next(entry for entry in self.about if entry.index == index)
        if found.predicate["first"] > self.first:
            raise BitwitnessError(f"intent {index} announced steps chosen by hand; announce them anew with --steps")
        return found


def _commitment(fields: dict[str, Any]) -> StateCommitment:
    optimizer = fields.get("optimizer")
    return StateCommitment(
        Control(**fields["control"]),
        Commitment.from_json(fields["weights"], type="weights/1"),
        None if optimizer is None else Commitment.from_json(optimizer, type="optimizer/1"),
    )


@overload
def open_run(ledger: Ledger, name: str) -> RunHistory: ...
@overload
def open_run(ledger: Ledger, name: str, *, missing_ok: Literal[True]) -> RunHistory | None: ...
def open_run(ledger: Ledger, name: str, *, missing_ok: bool = False) -> RunHistory | None:
    """Read a run by name, by its genesis hash, or by 8 or more digits of it. Raises NoSuchRun.

    Checks no signature: for showing a run, not for vouching for it.
    """
    run = ledger.find_run(name)
    if run is None:
        if missing_ok:
            return None
        raise NoSuchRun(f"no run {name} in this ledger; `ledger log --kind run` lists them")
    return RunHistory(run, [_entry(index, data) for index, data in ledger.run_entries(run)])


def open_verified_run(project: Project, ledger: Ledger, name: str) -> RunHistory:
    """Read a run after the whole ledger was verified, from exactly the bytes that were verified.

    Which entries belong to it, too, comes from their bytes and not from a table beside them. Raises NoSuchRun,
    LedgerNotVerified.
    """
    run = ledger.find_run(name)
    if run is None:
        raise NoSuchRun(f"no run {name} in this ledger; `ledger log --kind run` lists them")
    history = verified_run(ledger.path, verified_leaves(project, ledger), run)
    if name != history.name and not run.startswith(name):
        raise LedgerNotVerified(f"the ledger's tables call run {history.name} {name}; run `ledger fsck`")
    return history


def verified_leaves(project: Project, ledger: Ledger) -> list[bytes]:
    """Verify the whole ledger under the project's policy and return the leaf hashes of its entries, in order.

    Without a trust.toml the ledger's own root key and origin stand in. The tree that the log would sign next must be
    the tree of these leaves. Raises LedgerNotVerified, TrustError.
    """
    leaves: list[bytes] = []
    trust = project.trust()
    report = verify_ledger(
        ledger.path, trust, processes=1, on_nodes=lambda nodes: leaves.extend(n[2] for n in nodes if n[0] == 0)
    )
    if report.faults or not report.complete:
        first = f"{report.faults[0]}" if report.faults else "it could not be checked to the end"
        more = f" (and {len(report.faults) - 1} more faults)" if len(report.faults) > 1 else ""
        raise LedgerNotVerified(f"{ledger.path} does not verify: {first}{more}; see `ledger verify {ledger.path.name}`")
    if ledger.size != len(leaves) or ledger.root() != report.root:
        raise LedgerNotVerified(f"{ledger.path}: its stored tree is not that of its entries; run `ledger fsck`")
    return leaves


def verified_run(path: Path, leaves: list[bytes], run: str) -> RunHistory:
    """Build a run's history from the file's rows, each of which must have the verified leaf hash at its index."""
    query = "SELECT idx, payload, signature FROM entries WHERE leaf_hash = ? OR instr(payload, ?) > 0 ORDER BY idx"
    try:
        with closing(connect(path)) as connection:
            rows = connection.execute(query, (bytes.fromhex(run), run)).fetchall()
            history = _history(path, rows, leaves, run)

            def named(leaf: str) -> dict[str, Any]:
                index = leaves.index(bytes.fromhex(leaf))  # the verifier has seen that it is there
                row = connection.execute("SELECT idx, payload, signature FROM entries WHERE idx = ?", (index,))
                return _verified_entry(path, row.fetchone(), leaves).predicate

            for use in history.genesis["datasets"]:
                history.datasets[use["entry"]] = named(use["entry"])
            init = history.genesis["init"]
            if init["kind"] == "parent":
                history.parent = Parent(named(init["run"])["name"], named(init["entry"]))
            return history
    except sqlite3.DatabaseError as error:
        raise LedgerNotVerified(f"{path} cannot be read: {error}") from None


def verified_keys(path: Path, leaves: list[bytes]) -> list[Entry]:
    """The `key` entries of a verified ledger, in order."""
    query = "SELECT idx, payload, signature FROM entries WHERE instr(payload, ?) > 0 ORDER BY idx"
    with closing(connect(path)) as connection:
        rows = connection.execute(query, ("bitwitness.dev/key/v1",)).fetchall()
    return [entry for entry in (_verified_entry(path, row, leaves) for row in rows) if entry.kind == "key"]


def _verified_entry(path: Path, row: tuple[Any, ...] | None, leaves: list[bytes]) -> Entry:
    index, payload, signature = row if row is not None else (-1, b"", b"")
    data = entry_bytes(payload, signature) if index >= 0 else b""
    if not 0 <= index < len(leaves) or merkle.leaf_hash(data) != leaves[index]:
        raise LedgerNotVerified(f"{path}: entry {index} was changed while the ledger was read")
    return _entry(index, data)


def _history(path: Path, rows: list[tuple[Any, ...]], leaves: list[bytes], run: str) -> RunHistory:
    chain: list[Entry] = []
    about: list[Entry] = []
    forks: list[Entry] = []
    for row in rows:
        entry = _verified_entry(path, row, leaves)
        if entry.leaf_hash.hex() == run and entry.kind == "run":
            chain.append(entry)
        elif entry.predicate.get("run") == run:
            (chain if "seq" in entry.predicate else about).append(entry)
        elif entry.kind == "run" and entry.predicate["init"].get("run") == run:
            forks.append(entry)
    if not chain or [entry.predicate["seq"] for entry in chain] != list(range(len(chain))):
        raise LedgerNotVerified(f"{path}: the chain of run {run[:16]}... is not whole; run `ledger fsck`")
    history = RunHistory(run, chain, about)
    history.forks = forks
    return history


def _entry(index: int, data: bytes) -> Entry:
    statement = open_envelope(data).statement
    kind = statement["predicateType"].rsplit("/", 2)[1]
    return Entry(index, kind, statement["predicate"], merkle.leaf_hash(data))
