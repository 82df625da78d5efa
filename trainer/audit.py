"""The audit of a run: verify the ledger, announce, draw, replay, compare, sign.

An `audit-intent` is appended before the sample can be known, the units are drawn from its leaf hash, replayed
from the nearest stored state that meets the ledger, and the signed `audit` reports one outcome per unit. Expected
values come from the ledger, never from the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bitwitness.ledger import entries, merkle
from bitwitness.ledger.audit_rules import caught
from bitwitness.ledger.code import code_commitment
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.envelope import seal
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from . import records
from .arithmetic import this_builds
from .examiner import Examiner, UnitResult
from .history import LedgerNotVerified, RunHistory, open_verified_run, verified_leaves
from .material import LocalMaterial
from .record_check import Fault, check_record, require_steps
from .run import check_threads
from .sample import Unit, sample_seed, select, units
from .transcript import Transcript


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
        return caught(tampered, len(self.compared), self.total)


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
    Raises NoSuchRun, LedgerNotVerified, RecordWrong where steps are missing, and BitwitnessError where the audit
    cannot begin.
    """
    check_threads(threads)
    auditor, log = project.signer("auditor"), project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        history = open_verified_run(project, ledger, name)
        unfinished = history.open_intents(auditor.keyid)
        require_steps(history)
        faults = check_record(history, ledger.origin)
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
        examiner = Examiner(
            LocalMaterial(project), history, threads, windows_at_once, Transcript(seed, auditor.keyid), faults
        )
        results = with_faults(history, examiner.examine(chosen, report), examiner.faults)
        compared = tuple(sorted({step for item in results for step in item.compared if step > 0}))
        result = _overall(results)
        transcript = examiner.transcript.commit()
        predicate = {
            "arithmetic": this_builds(history.genesis["arithmetic"]),
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


def with_faults(history: RunHistory, results: list[UnitResult], faults: list[Fault]) -> list[UnitResult]:
    """Make every unit that holds a faulty step a mismatch; one that was not to be replayed joins the audit.

    What a replay found stands: it says more than the record's own contradiction.
    """
    by_unit = {(item.unit.first, item.unit.last): item for item in results}
    every = [(0, 0), *units(history.states, history.last_step)]
    for first, last in every:
        wrong = [fault for fault in faults if first <= fault.step <= last]
        item = by_unit.get((first, last)) or UnitResult(Unit(first, last, "chosen"), "inconclusive")
        if wrong and item.outcome != "mismatch":
            detail = "; ".join(fault.reason for fault in wrong[:5])
            reason, found = wrong[0].reason, wrong[0].found()
            by_unit[first, last] = UnitResult(item.unit, "mismatch", item.compared, reason, detail, found)
    return [by_unit[key] for key in every if key in by_unit]


def _overall(results: list[UnitResult]) -> str:
    """A mismatch anywhere is a mismatch; a match needs every unit; else the first outcome that is not a match."""
    outcomes = [item.outcome for item in results]
    if "mismatch" in outcomes:
        return "mismatch"
    return next((outcome for outcome in outcomes if outcome != "match"), "match")
