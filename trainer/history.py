"""A run as its ledger tells it: genesis, steps, stored states, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, overload

from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.store import Ledger

from .config import RunConfig, config_from_ledger
from .state import Control, StateCommitment


class NoSuchRun(BitwitnessError):
    """The ledger has no run of this name or hash."""


@dataclass(frozen=True)
class Entry:
    """One entry of the run: its index in the ledger, kind, and predicate."""

    index: int
    kind: str
    predicate: dict[str, Any]


class RunHistory:
    """The entries of one run, in chain order."""

    def __init__(self, run: str, entries: list[Entry]) -> None:
        self.run, self.entries = run, entries
        self.genesis = entries[0].predicate
        self.steps = {e.predicate["computed"]["step"]: e for e in entries if e.kind == "step"}
        self.states = {e.predicate["step"]: e for e in entries if e.kind == "state"}
        self.evals = [e for e in entries if e.kind == "eval"]
        self.resumes = [e for e in entries if e.kind == "resume"]

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
    def last_step(self) -> int:
        return max(self.steps, default=0)

    def computed(self, step: int) -> dict[str, Any]:
        """What the ledger says that `step` computed."""
        computed = self.steps[step].predicate["computed"]
        assert isinstance(computed, dict)
        return computed

    def state(self, step: int) -> StateCommitment:
        """The state that `step` committed to; step 0 is in the genesis. Its moments may be thinned."""
        return _commitment(self.genesis if step == 0 else self.computed(step))

    def stored(self, step: int) -> StateCommitment:
        """The state of a `state` entry, or of the genesis: the moments are always committed there."""
        return _commitment(self.genesis if step == 0 else self.states[step].predicate)


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
    """Read a run by name, by its genesis hash, or by 8 or more digits of it. Raises NoSuchRun."""
    run = ledger.find_run(name)
    if run is None:
        if missing_ok:
            return None
        raise NoSuchRun(f"no run {name} in this ledger; `ledger log --kind run` lists them")
    entries = []
    for index, data in ledger.run_entries(run):
        statement = open_envelope(data).statement
        kind = statement["predicateType"].rsplit("/", 2)[1]
        entries.append(Entry(index, kind, statement["predicate"]))
    return RunHistory(run, entries)
