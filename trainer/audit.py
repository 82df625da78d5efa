"""The audit of a run: verify the ledger, announce, draw, replay, compare, sign.

An `audit-intent` is appended before the sample can be known, the units are drawn from its leaf hash, replayed
from the nearest stored state that meets the ledger, and the signed `audit` reports one outcome per unit. Expected
values come from the ledger, never from the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bitwitness.ledger import entries, merkle
from bitwitness.ledger.code import code_commitment
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.envelope import seal
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from . import records
from .data import DataError, DatasetDamaged, DocumentErased, WindowStream
from .data.reads import training_stream
from .history import LedgerNotVerified, RunHistory, open_verified_run, verified_leaves
from .replay import Replayed, replay, stored_state
from .sample import Unit, sample_seed, select, units
from .state import State, StateMismatch, StateUnavailable, initial_state
from .step import Tap, Workspace
from .transcript import Transcript

Json = dict[str, Any]


@dataclass(frozen=True)
class UnitResult:
    """One unit's outcome: match, mismatch, unavailable, redacted or inconclusive; only match covers.

    `reason` goes into the ledger, so it names no file and no document; `detail` is for whoever runs the audit.
    """

    unit: Unit
    outcome: str
    compared: tuple[int, ...] = ()
    reason: str | None = None
    detail: str | None = None
    found: Json | None = None
    differences: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def to_json(self) -> Json:
        result: Json = {
            "cause": self.unit.cause,
            "first": self.unit.first,
            "last": self.unit.last,
            "outcome": self.outcome,
        }
        if self.reason is not None:
            result["reason"] = self.reason
        if self.found is not None:
            result["found"] = self.found
        return result


@dataclass(frozen=True)
class AuditReport:
    """What an audit found, and the index of the signed entry that says so."""

    run: str
    name: str
    result: str
    units: tuple[UnitResult, ...]
    compared: tuple[int, ...]
    total: int
    basis: str
    transcript: Commitment
    entry: int
    open_intents: tuple[int, ...] = ()
    """The entries of this auditor's earlier intents for the run that have no audit: they count as failed."""

    @property
    def one_step(self) -> float:
        """The probability with which one tampered step would have been among those compared: k/T."""
        return len(self.compared) / self.total if self.total else 1.0

    def fraction(self, tampered: float) -> float:
        """The probability that a tampered fraction f of the steps would have been met: 1 − (1 − f)^k."""
        if len(self.compared) == self.total:
            return 1.0
        return float(1.0 - (1.0 - tampered) ** len(self.compared))


def audit(
    project: Project,
    name: str,
    *,
    samples: int = 0,
    steps: tuple[int, int] | None = None,
    threads: int,
    windows_at_once: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> AuditReport:
    """Audit run `name`: init, the last step, releases and resumes always; `samples` units on top, or `steps` a … b.

    Appends the intent first and the signed result last. `report` is told (steps compared, steps to compare).
    Raises NoSuchRun, and BitwitnessError where the audit cannot begin.
    """
    auditor, log = project.signer("auditor"), project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        history = open_verified_run(project, ledger, name)
        unfinished = history.open_intents(auditor.keyid)
        if not history.steps:
            raise BitwitnessError(f"run {name} has no steps in the ledger yet; there is nothing to audit")
        first, last = steps or (0, history.last_step)
        if not 0 <= first <= last <= history.last_step:
            raise BitwitnessError(
                f"steps {first}:{last} are not in run {name}, which has steps 0 to {history.last_step}"
            )
        intent = _announce(ledger, history, auditor, first, last, samples)
        seed = sample_seed(intent)
        chosen = _choose(history, seed, samples, steps)
        examiner = _Examiner(project, history, threads, windows_at_once, Transcript(seed, auditor.keyid))
        results = examiner.examine(chosen, report)
        compared = tuple(sorted({step for item in results for step in item.compared if step > 0}))
        result = _overall(results)
        transcript = examiner.transcript.commit()
        predicate = {
            "arithmetic": records.arithmetic(),
            "basis": "self-chosen",
            "code": code_commitment().to_json(),
            "intent": intent.hex(),
            "observed": records.observed(records.new_host_id(), threads),
            "result": result,
            "run": history.run,
            "seed": seed.hex(),
            "signer": auditor.keyid,
            "steps": len(compared),
            "transcript": transcript.to_json(),
            "units": [item.to_json() for item in results],
        }
        data = seal(entries.statement("audit", None, predicate), auditor)
        entry = _conclude(project, ledger, history, intent, data)
        ledger.sign_checkpoint(log)
    return AuditReport(
        run=history.run,
        name=history.name,
        result=result,
        units=tuple(results),
        compared=compared,
        total=history.last_step,
        basis="self-chosen",
        transcript=transcript,
        entry=entry,
        open_intents=tuple(unfinished),
    )


def _conclude(project: Project, ledger: Ledger, history: RunHistory, intent: bytes, data: bytes) -> int:
    """Append the result, if the ledger still verifies and still says of the run what was audited.

    The checkpoint that follows signs the tree over just these entries. Raises LedgerNotVerified.
    """
    leaves = verified_leaves(project, ledger)
    audited = [(entry.index, entry.leaf_hash) for entry in history.entries]
    if intent not in leaves or any(index >= len(leaves) or leaves[index] != leaf for index, leaf in audited):
        raise LedgerNotVerified(f"{ledger.path} was changed during the audit; no result is signed")
    index = ledger.append([data])[0]
    if ledger.root() != merkle.root([*leaves, merkle.leaf_hash(data)]):
        raise LedgerNotVerified(f"{ledger.path} was changed during the audit; its tree is not signed")
    return index


def _announce(ledger: Ledger, history: RunHistory, auditor: Signer, first: int, last: int, samples: int) -> bytes:
    """Append the audit-intent and return its leaf hash, from which the sample is drawn."""
    predicate = {
        "beacon": {"kind": "none"},
        "first": first,
        "last": last,
        "run": history.run,
        "samples": samples,
        "signer": auditor.keyid,
        "size": ledger.size,
        "time": records.now(),
    }
    data = seal(entries.statement("audit-intent", None, predicate), auditor)
    ledger.append([data])
    return merkle.leaf_hash(data)


def _choose(history: RunHistory, seed: bytes, samples: int, steps: tuple[int, int] | None) -> list[Unit]:
    every = units(history.states, history.last_step)
    if steps is not None:
        first, last = steps
        return [Unit(a, b, "chosen") for a, b in ([(0, 0)] if first == 0 else []) + every if b >= first and a <= last]
    always = {history.last_step: "last"}
    always |= {step: "release" for step in history.released_steps()}
    for resume in history.resumes:
        step = resume.predicate["step"]
        always |= {step: "resume", min(step + 1, history.last_step): "resume"}
    return select(every, always, seed, samples)


def _overall(results: list[UnitResult]) -> str:
    """A mismatch anywhere is a mismatch; a match needs every unit; else the first outcome that is not a match."""
    outcomes = [item.outcome for item in results]
    if "mismatch" in outcomes:
        return "mismatch"
    return next((outcome for outcome in outcomes if outcome != "match"), "match")


class _Examiner:
    """Replays units of one run, with one workspace for all of them."""

    def __init__(
        self,
        project: Project,
        history: RunHistory,
        threads: int,
        windows_at_once: int,
        transcript: Transcript,
    ) -> None:
        self.history, self.transcript = history, transcript
        self.folder = project.runs_dir / history.name
        self.config = history.config
        self.workspace = Workspace(self.config, threads, windows_at_once, taps=True)
        self.stream, self.problem = self._open(project)

    def _open(self, project: Project) -> tuple[WindowStream | None, _Problem | None]:
        """Open the data, and compare what fixes the arithmetic; or say why no replay can begin."""
        recorded = self.history.genesis["arithmetic"]
        if recorded != records.arithmetic():
            return None, _Problem("inconclusive", "the run was computed with another operator table")
        try:
            return training_stream(self.history, project.data_dir), None
        except (DataError, DatasetDamaged) as error:
            return None, _problem(error)

    def examine(self, chosen: list[Unit], report: Callable[[int, int], None]) -> list[UnitResult]:
        total = sum(unit.last - unit.first + 1 for unit in chosen if unit.last)
        done, results = 0, []
        for unit in chosen:
            if unit.last == 0:
                results.append(self._init(unit))
                continue
            before = done

            def told(count: int, before: int = before) -> None:
                report(before + count, total)

            results.append(self._unit(unit, told))
            done += unit.last - unit.first + 1
        return results

    def _init(self, unit: Unit) -> UnitResult:
        if self.problem is not None and self.problem.outcome == "inconclusive":
            return self.problem.of(unit)
        try:
            state = stored_state(self.history, self.folder, self.workspace, 0)
        except StateMismatch as error:
            reason = "the seed gives another initial state"
            return UnitResult(unit, "mismatch", reason=reason, detail=str(error), found=self._found_init())
        rope = records.rope_digest(self.workspace.cos, self.workspace.sin)
        if rope != self.history.genesis["constants"].get("rope"):
            return UnitResult(unit, "mismatch", reason="the rotary tables differ", found=self._found_init())
        for name, tensor in self.workspace.layout.tensors(state.params).items():
            self.transcript.tap(0, f"init/{name}", tensor)
        return UnitResult(unit, "match", compared=(0,))

    def _found_init(self) -> Json:
        digest = initial_state(self.config, self.workspace.layout).commit().digest
        return {"computed": digest, "expected": self.history.state(0).digest, "field": "weights", "step": 0}

    def _unit(self, unit: Unit, report: Callable[[int], None]) -> UnitResult:
        if self.stream is None:
            assert self.problem is not None
            return self.problem.of(unit)
        compared: list[int] = []
        try:
            state = self._nearest(unit.first - 1)
            for replayed in replay(self.history, state, self.workspace, self.stream, unit.last, self._tap):
                compared.append(replayed.step)
                report(replayed.step - unit.first + 1)
                if replayed.differences:
                    return self._mismatch(unit, state, replayed, tuple(compared))
        except (DataError, DatasetDamaged, StateUnavailable, StateMismatch) as error:
            return _problem(error).of(unit, tuple(compared))
        return UnitResult(unit, "match", tuple(compared))

    def _mismatch(self, unit: Unit, state: State, replayed: Replayed, compared: tuple[int, ...]) -> UnitResult:
        step, fields = replayed.step, list(replayed.differences)
        thinned = "optimizer" not in self.history.computed(step)
        found = {
            "computed": state.commit(optimizer=not thinned).digest,
            "expected": self.history.state(step).digest,
            "field": fields[0],
            "step": step,
        }
        reason = f"first differs at step {step}: {', '.join(fields)}"
        return UnitResult(unit, "mismatch", compared, reason, found=found, differences=replayed.differences)

    def _nearest(self, step: int) -> State:
        """The latest stored state up to `step` that can be read and meets the ledger, else the initial state."""
        problem: StateUnavailable | StateMismatch | None = None
        for candidate in sorted((n for n in self.history.states if n <= step), reverse=True):
            try:
                return stored_state(self.history, self.folder, self.workspace, candidate)
            except (StateUnavailable, StateMismatch) as error:
                problem = problem or error
        try:
            return stored_state(self.history, self.folder, self.workspace, 0)
        except StateMismatch:
            if problem is not None:
                raise problem from None
            raise

    def _tap(self, step: int) -> Tap:
        return lambda name, values: self.transcript.tap(step, name, values)


@dataclass(frozen=True)
class _Problem:
    """Why something could not be replayed, as the ledger may say it (`reason`) and in full (`detail`)."""

    outcome: str
    reason: str
    detail: str | None = None

    def of(self, unit: Unit, compared: tuple[int, ...] = ()) -> UnitResult:
        return UnitResult(unit, self.outcome, compared, self.reason, self.detail)


def _problem(error: Exception) -> _Problem:
    """Tell what was withheld, damaged or erased apart from what was computed wrong."""
    if isinstance(error, DocumentErased):
        return _Problem("redacted", "a document that these steps read was erased", str(error))
    if isinstance(error, DatasetDamaged):
        return _Problem("unavailable", "the data at hand is not what the ledger commits to", str(error))
    if isinstance(error, DataError):
        return _Problem("unavailable", "the data is not at hand", str(error))
    if isinstance(error, StateMismatch):
        return _Problem("unavailable", "the stored state at hand is not what the ledger commits to", str(error))
    return _Problem("unavailable", "no stored state is at hand", str(error))
