"""The audit of a run: verify the ledger, announce, draw, replay, compare, sign.

An `audit-intent` is appended before the sample can be known, the units are drawn from its leaf hash, replayed
from the nearest stored state that meets the ledger, and the signed `audit` reports one outcome per unit. Expected
values come from the ledger, never from the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bitwitness.ledger.code import code_commitment
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.entry import entries
from bitwitness.ledger.entry.audit_rules import met, tampered_steps
from bitwitness.ledger.entry.beacon import sample_seed
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from .. import records
from ..history import Entry, LedgerNotVerified, RunHistory, open_verified_run, verified_leaves
from ..machine import machine_fault
from ..models.arithmetic import this_builds
from ..record_check import Fault, check_record, require_steps
from ..run import check_threads
from ..sample import Unit
from . import eval_audit
from .announcing import Request, announced_entry, intend
from .audit_work import AuditWork
from .beacons import obtain
from .coverage import next_interval
from .examiner import Examiner
from .outcome import UnitResult, overall, unproven
from .part_audit import require_part
from .screen import Screened
from .transcript import Transcript
from .venue import LocalVenue, Venue

Json = dict[str, Any]


@dataclass(frozen=True)
class AuditReport:
    """What an audit found, and the index of the signed entry that says so, if it is in the log."""

    run: str
    name: str
    result: str
    units: tuple[UnitResult, ...]
    compared: tuple[int, ...]
    total: int
    basis: str
    transcript: Commitment
    entry: int | None
    resumed: bool = False
    """Whether an audit that was stopped before was gone on with."""
    open_intents: tuple[int, ...] = ()
    """The entries of this auditor's earlier intents for the run that have no audit: they count as failed."""
    screened: Screened = field(default_factory=Screened)
    """What the screen between stored states, which needs no data, could compare."""
    first: int = 0
    """The step that the run begins after; what is before it are steps of another run."""

    drawn: tuple[int, int] | None = None
    """How many units were drawn, of how many that are not in every audit; None where they were chosen by hand."""
    passed_over: tuple[str, ...] = ()
    """What is told of stored states that could not be used."""
    ended: bool = False
    """Whether the run has its last step."""
    signed_before: bool = False
    """Whether this was not made now, but is what the auditor had signed before a stop (answered.py)."""
    signed_steps: int | None = None
    """How many steps the signed audit says were compared, where this report was read from it."""

    @property
    def steps(self) -> int:
        """The number of the run's own steps, of which the audit could have been."""
        return self.total - self.first

    @property
    def count(self) -> int:
        """The number of steps that were compared."""
        return len(self.compared) if self.signed_steps is None else self.signed_steps

    def caught(self, tampered: float = 0.0) -> float | None:
        """The probability that a tampered fraction of the steps is met, at least one: by the draw, as was announced.

        The tampered steps are none of those that every audit replays, and each lies in a unit of its own, as long as
        there are units. None where steps were chosen by hand: that says nothing of the others.
        """
        if self.drawn is None:
            return None
        count, units = self.drawn
        return met(count, units, min(tampered_steps(tampered, self.steps), units))


def audit(
    where: Project | Venue,
    name: str,
    *,
    samples: int = 0,
    steps: tuple[int, int] | None = None,
    until: int | None = None,
    uncovered: bool = False,
    screen: bool = False,
    part: str | None = None,
    evals: str | None = None,
    beacon: str | Json | None = None,
    intent: int | None = None,
    work: AuditWork | None = None,
    round_file: bytes | None = None,
    threads: int,
    windows_at_once: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> AuditReport:
    """Audit run `name`: init, the last step, releases and resumes always; `samples` units on top, or `steps` a … b.

    With `until` the sample is drawn from the steps up to that one, as if it were the last (ancestry_audit.py).
    `screen` also compares all stored states that are at hand (screen.py), which reads them all. `uncovered` takes the
    steps that are this auditor's next (coverage.py); with `part` (part_audit.py) only that part of each of `steps` is
    computed again; with `evals` only these held-out losses (eval_audit.find_steps). Appends the intent first and the
    signed result last. The sample is drawn from `beacon` where one is named (beacons.choose); `intent` is the entry of
    one of this auditor's open intents, which is answered in place of a new one, `work` what announce() returned for
    the same arguments, and `round_file` what was downloaded of a randomness round. `report` is told (steps compared,
    steps to compare). Raises NoSuchRun, LedgerNotVerified, RecordWrong where steps are missing, BeaconPending where
    the audit is announced and its beacon does not exist yet, and BitwitnessError where it cannot begin.
    """
    check_threads(threads)
    by_hand = steps is not None or uncovered
    if by_hand and (beacon is not None or intent is not None):
        raise BitwitnessError("steps chosen by hand go with no beacon and with no announced sample; leave out --steps")
    if evals is not None and (by_hand or part is not None or screen or beacon or intent):
        raise BitwitnessError("--eval names what is computed again; it goes with no steps, parts, beacon or screen")
    if part is not None and steps is None:
        raise BitwitnessError("one part is audited of steps that you name: give --steps A:B, too")
    venue: Venue = LocalVenue(where) if isinstance(where, Project) else where
    auditor = venue.auditor
    with venue.open() as ledger:
        history = open_verified_run(venue.project, ledger, name)
        unfinished = history.open_intents(auditor.keyid)
        require_steps(history)
        faults = check_record(history, ledger.origin)
        if not history.steps:
            raise BitwitnessError(f"run {name} has no steps in the ledger yet; there is nothing to audit")
        if part is not None:
            require_part(history, part, venue.material)
        alone: list[int] | None = None  # with --eval: the steps whose held-out losses are computed again
        if evals is not None:
            alone, part = eval_audit.find_steps(history, evals), eval_audit.EVAL
            steps = alone[0], alone[-1]
        trust = venue.project.trust()
        if uncovered:
            steps = next_interval(venue.project, ledger, name, auditor.keyid, venue.material)
        if intent is not None:
            announced = history.reopen(auditor.keyid, intent)
            work = AuditWork.of(venue.work, ledger.entry(intent), auditor)
        elif work is None:
            request = Request.of(history, trust, samples=samples, steps=steps, until=until, beacon=beacon)
            work, announced = intend(venue, ledger, history, request)
        else:
            announced = announced_entry(work, ledger.find(work.leaf_hash))
        unfinished = [index for index in unfinished if index != announced.index]
        said, given = announced.predicate, None
        earlier = history.as_of(said["size"])
        if earlier is not history:
            history, faults = earlier, check_record(earlier, ledger.origin)
        if said["beacon"]["kind"] != "none":
            signed = venue.checkpoint(ledger)
            given = obtain(ledger, name, announced.index, said["beacon"], signed, trust, round_file)
        seed = sample_seed(announced.leaf_hash, b"" if given is None else given.value)
        if part is None:
            chosen = _choose(history, seed, said["samples"], steps, said["last"])
        else:
            chosen = _single_steps(history, (said["first"], said["last"]), alone)
        transcribed = Transcript(seed, auditor.keyid)
        examiner = Examiner(venue.material, history, threads, windows_at_once, transcribed, faults, work.replay)
        screened = examiner.screen() if screen else Screened(0, len(history.states), ())
        results = _examine(examiner, chosen, part, threads, report)
        compared = tuple(sorted({step for item in results for step in item.compared if step > history.first}))
        result = overall(item.outcome for item in results)
        transcript = examiner.transcript.commit()
        predicate: Json = {
            **({} if given is None else {"beacon": given.given}),
            "arithmetic": this_builds(history.genesis["arithmetic"]),
            "basis": "self-chosen" if given is None else "beacon",
            "code": code_commitment().to_json(),
            "intent": announced.leaf_hash.hex(),
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
        venue.refresh(ledger)
        leaves = still_verified(venue.project, ledger, history, announced)
        entry = venue.conclude(ledger, data, leaves, work.finish)
    return AuditReport(
        run=history.run,
        name=history.name,
        result=result,
        units=tuple(results),
        compared=compared,
        total=history.last_step if until is None else until,
        basis=predicate["basis"],
        transcript=transcript,
        entry=entry,
        resumed=work.resumed,
        open_intents=tuple(unfinished),
        screened=screened,
        first=history.first,
        drawn=drawn_of(history, chosen, said["last"]),
        passed_over=tuple(examiner.passed_over),
        ended=history.ended,
    )


def screen_again(venue: Venue, ledger: Ledger, history: RunHistory, threads: int, windows_at_once: int = 0) -> Screened:
    """Only the screen of an audit of this run, as it stands in the verified ledger."""
    faults, unused = check_record(history, ledger.origin), Transcript(bytes(32), venue.auditor.keyid)
    return Examiner(venue.material, history, threads, windows_at_once, unused, faults).screen()


def drawn_of(history: RunHistory, chosen: list[Unit], last: int) -> tuple[int, int] | None:
    """How many of the units of an audit up to step `last` were drawn, of how many; None where some were chosen."""
    causes = [unit.cause for unit in chosen]
    if "chosen" in causes:
        return None
    count = causes.count("sample")
    always = len(causes) - count - causes.count("init")
    return count, len(history.units(last)) - always


def _examine(
    examiner: Examiner, chosen: list[Unit], part: str | None, threads: int, report: Callable[[int, int], None]
) -> list[UnitResult]:
    """The outcome of every unit. A machine that computes wrong, before or after, proves nothing."""
    broken, results = machine_fault(threads), []
    if broken is None:
        results = examiner.examine(chosen, report, part)
        broken = machine_fault(threads)
    if broken is not None:
        return unproven(chosen, broken)
    return results if part is not None else with_faults(examiner.history, results, examiner.faults)


def still_verified(project: Project, ledger: Ledger, history: RunHistory, intent: Entry) -> list[bytes]:
    """The leaves of the ledger, if it still verifies and still says of the run what was audited.

    Raises LedgerNotVerified.
    """
    leaves = verified_leaves(project, ledger)
    audited = [(entry.index, entry.leaf_hash) for entry in (*history.entries, intent) if entry.index >= 0]
    if any(index >= len(leaves) or leaves[index] != leaf for index, leaf in audited):
        raise LedgerNotVerified(f"{ledger.path} was changed during the audit; no result is signed")
    return leaves


def _choose(
    history: RunHistory, seed: bytes, samples: int, steps: tuple[int, int] | None, last_step: int
) -> list[Unit]:
    """The units of an audit of the steps up to `last_step`, which was the run's last one when it was announced."""
    if steps is not None:
        start, (first, last) = history.first, steps
        every = ([(start, start)] if first == start else []) + history.units()
        return [Unit(a, b, "chosen") for a, b in every if b >= first and a <= last]
    return history.select(last_step, seed, samples)


def _single_steps(history: RunHistory, span: tuple[int, int], alone: list[int] | None) -> list[Unit]:
    """The steps of `span` each as a unit, of which one part is computed again; only those of `alone` if it is given."""
    steps = range(max(history.first + 1, span[0]), span[1] + 1)
    return [Unit(step, step, "chosen") for step in steps if alone is None or step in alone]


def with_faults(history: RunHistory, results: list[UnitResult], faults: list[Fault]) -> list[UnitResult]:
    """Make every unit that holds a faulty step a mismatch; one that was not to be replayed joins the audit.

    What a replay found stands: it says more than the record's own contradiction.
    """
    by_unit = {(item.unit.first, item.unit.last): item for item in results}
    every = [(history.first, history.first), *history.units()]
    for first, last in every:
        wrong = [fault for fault in faults if first <= fault.step <= last]
        item = by_unit.get((first, last)) or UnitResult(Unit(first, last, "chosen"), "inconclusive")
        if wrong and item.outcome != "mismatch":
            detail = "; ".join(fault.reason for fault in wrong[:5])
            reason, found = wrong[0].reason, wrong[0].found()
            compared, start = item.compared, item.start
            by_unit[first, last] = UnitResult(item.unit, "mismatch", compared, reason, detail, found, start=start)
    return [by_unit[key] for key in every if key in by_unit]
