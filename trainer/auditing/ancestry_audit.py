"""Audits that go back beyond a run's first step: of the runs before it, each up to where the next one begins.

Every run of the line gets its own audit, with intent, sample and result. The ledger holds a run's genesis to the state
that its parent's `state` entry commits to, so the boundary is checked bit for bit once the parent's steps up to it
replay to that state, and the child's first state is that one.

All runs are announced before any is replayed. So where one of the announced audits has no result yet, a result that the
same auditor signed for another run of the line, after that announcement and for the same request, is of the same line
of audits, which was stopped: it is told, not made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.store import Ledger

from ..ancestry import Span, line_of, next_steps, share
from ..history import RunHistory
from .announcing import Request, announce, stopped_before
from .answered import Answered, answered, answered_since, signed_report
from .audit import AuditReport, audit, screen_again
from .audit_work import AuditWork
from .beacons import BeaconPending, choose
from .outcome import overall
from .part_audit import require_part
from .plan import AuditPlan, plan_audit
from .screen import Screened
from .venue import Venue, WaitsForLog

Json = dict[str, Any]


@dataclass(frozen=True)
class Boundary:
    """Where a run goes on from another one after `step`.

    `outcome` is `match` if the steps up to it replay to the state that the next run begins with.
    """

    step: int
    parent: str
    child: str
    outcome: str


@dataclass(frozen=True)
class AncestryReport:
    """One report for each run, the oldest first, and the boundaries between them that were audited from both sides."""

    reports: tuple[AuditReport, ...]
    boundaries: tuple[Boundary, ...]

    @property
    def result(self) -> str:
        """A mismatch anywhere is one; a match needs all; else the first other result."""
        return overall(report.result for report in self.reports)


@dataclass(frozen=True)
class _Task:
    """What is audited of one run of the line: the arguments of audit() that differ from run to run."""

    history: RunHistory
    steps: tuple[int, int] | None = None
    until: int | None = None
    intent: int | None = None
    done: Answered | None = None
    """What this auditor signed of it before a stop."""
    screened: Screened = field(default_factory=Screened)

    def arguments(self) -> dict[str, Any]:
        return {"steps": self.steps, "until": self.until}


def audit_ancestry(
    venue: Venue,
    name: str,
    *,
    samples: int = 0,
    steps: tuple[int, int] | None = None,
    uncovered: bool = False,
    part: str | None = None,
    beacon: str | None = None,
    intents: Sequence[int] = (),
    screen: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> AncestryReport:
    """Audit run `name` and the runs that it goes on from: `samples` units of each, or `steps` a … b, whosever they are.

    `uncovered` takes the interval of the whole line that is this auditor's next, `intents` go on with announced audits,
    of whichever runs of the line. All runs are announced before any is replayed, so that one wait is enough for all:
    where some intents are not in the log yet, or their beacons do not exist, that is raised once, for all of them.
    Where this was stopped before, the runs whose audits are signed already are passed over (with `screen`, unless that
    shows now what such an audit does not say). `options` are those of audit(), and so are the errors.
    """
    with venue.open() as ledger:
        spans = line_of(venue.project, ledger, name)
        tasks = _tasks(venue, ledger, name, spans, steps, uncovered, part, intents)
        named: Json | None = None
        if beacon is not None:
            named = choose(beacon, venue.project.trust(), round(time.time()))  # one for all of them
        if not intents:
            tasks = _gone_on_with(venue, ledger, tasks, samples, part, named)
        if screen:
            tasks = [_screened(venue, ledger, task, options) for task in tasks]
    reports: list[AuditReport] = []
    pending: list[BeaconPending] = []
    with venue.together():
        announced = _announce_all(venue, tasks, samples, named)
        for task, work in zip(tasks, announced, strict=True):
            options |= {"samples": samples, "part": part, "beacon": named, "screen": screen}
            options |= {"work": work, "report": report}
            if task.done is not None:
                told = signed_report(task.history, venue.auditor.keyid, *task.done)
                reports.append(replace(told, screened=task.screened))
                continue
            try:
                reports.append(audit(venue, task.history.run, intent=task.intent, **task.arguments(), **options))
            except BeaconPending as error:
                pending.append(error)
    if pending:
        raise BeaconPending.of_line(name, pending)
    return AncestryReport(tuple(reports), tuple(_boundaries(spans, reports)))


def plan_ancestry(
    venue: Venue,
    name: str,
    *,
    samples: int,
    steps: tuple[int, int] | None,
    uncovered: bool = False,
    part: str | None = None,
    intents: Sequence[int] = (),
    threads: int,
    windows_at_once: int = 0,
) -> list[AuditPlan]:
    """What audit_ancestry would take, for each of the runs, the oldest first."""
    with venue.open() as ledger:
        spans = line_of(venue.project, ledger, name)
        tasks = _tasks(venue, ledger, name, spans, steps, uncovered, part, intents)
    return [
        plan_audit(
            venue,
            task.history.run,
            samples=samples,
            threads=threads,
            windows_at_once=windows_at_once,
            intent=task.intent,
            **task.arguments(),
        )
        for task in tasks
        if task.done is None
    ]


def _tasks(
    venue: Venue,
    ledger: Ledger,
    name: str,
    spans: list[Span],
    steps: tuple[int, int] | None,
    uncovered: bool,
    part: str | None,
    intents: Sequence[int],
) -> list[_Task]:
    """What is to be audited of each run, the oldest first. Raises BitwitnessError before anything is announced."""
    empty = next((span for span in spans if not span.history.steps), None)
    if empty is not None:
        raise BitwitnessError(
            f"run {empty.name} has no steps in the ledger yet; leave out --history or audit its parent"
        )
    if uncovered:
        found, turn = next_steps(venue.project, ledger, name, venue.auditor.keyid)
        (span,) = (span for span in spans if span.run == found.run)
        return [_Task(span.history, (turn.first, turn.last))]
    if intents:
        return _announced(spans, intents, venue.auditor.keyid)
    if steps is None:
        return [_Task(span.history, until=span.until) for span in spans]
    first, last = spans[0].first, spans[-1].last
    if not first <= steps[0] <= steps[1] <= last:
        raise BitwitnessError(
            f"steps {steps[0]}:{steps[1]} are not in the line of run {spans[-1].name}, "
            f"which has steps {first} to {last}"
        )
    tasks = [_Task(span.history, of_it) for span in spans if (of_it := share(span, steps)) is not None]
    if part is not None:
        # A first state is no step, and has no parts.
        tasks = [task for task in tasks if task.steps is not None and task.steps[1] > task.history.first]
        for task in tasks:
            require_part(task.history, part, venue.material)
    return tasks


def _announced(spans: list[Span], intents: Sequence[int], auditor: str) -> list[_Task]:
    """The runs of the line that these intents of the auditor are of, one of which at least has no result yet."""
    tasks = []
    for span in spans:
        done = {intent.index: (intent, audit) for intent, audit in answered(span.history, auditor)}
        for index in intents:
            if index in done or index in span.history.open_intents(auditor):
                tasks.append(_Task(span.history, until=span.until, intent=index, done=done.get(index)))
    found = {task.intent for task in tasks}
    if all(task.done for task in tasks):
        found = set()
    strange = sorted(set(intents) - found)
    if strange:
        names = ", ".join(span.name for span in spans)
        raise BitwitnessError(f"entry {strange[0]} is no open audit-intent of this auditor for one of the runs {names}")
    return tasks


def _gone_on_with(
    venue: Venue, ledger: Ledger, tasks: list[_Task], samples: int, part: str | None, beacon: Json | None
) -> list[_Task]:
    """The tasks, of which those that were done before a stop say so."""
    trust, auditor = venue.project.trust(), venue.auditor.keyid
    asked = [Request.of(task.history, trust, samples=samples, beacon=beacon, **task.arguments()) for task in tasks]
    stopped = [stopped_before(venue, ledger, task.history, one) for task, one in zip(tasks, asked, strict=True)]
    waiting = [found[1] for found in stopped if found is not None and found[1] is not None]
    if not waiting:
        return tasks
    since = max(waiting)
    return [
        replace(task, done=None if found else answered_since(task.history, auditor, one, part, since))
        for task, one, found in zip(tasks, asked, stopped, strict=True)
    ]


def _screened(venue: Venue, ledger: Ledger, task: _Task, options: Json) -> _Task:
    """Screen a run whose audit is signed, which does not say if that was done. What it does not say is audited anew."""
    if task.done is None:
        return task
    threads, windows_at_once = options["threads"], options.get("windows_at_once", 0)
    found = screen_again(venue, ledger, task.history, threads, windows_at_once)
    wrong = [unit for unit in task.done[1].predicate["units"] if unit["outcome"] == "mismatch"]
    said = all(any(unit["first"] <= fault.step <= unit["last"] for unit in wrong) for fault in found.faults)
    return replace(task, screened=found) if said else replace(task, done=None, intent=None)


def _announce_all(venue: Venue, tasks: list[_Task], samples: int, beacon: Json | None) -> list[AuditWork | None]:
    """Get all intents that are not announced yet into the log. Raises WaitsForLog once where some are not in it."""
    announced: list[AuditWork | None] = []
    waits: list[WaitsForLog] = []
    for task in tasks:
        if task.intent is not None or task.done is not None:
            announced.append(None)
            continue
        try:
            announced.append(announce(venue, task.history.run, samples=samples, beacon=beacon, **task.arguments()))
        except WaitsForLog as error:
            waits.append(error)
    if waits:
        raise WaitsForLog(waits[0].path, len(waits))
    return announced


def _boundaries(spans: list[Span], reports: list[AuditReport]) -> list[Boundary]:
    """Those of which the parent's interval and the child's first state are in the audits."""
    found = []
    for before, after in pairwise(spans):
        step, outcomes = after.first, []
        for span in (before, after):
            units = [unit for report in reports if report.run == span.run for unit in report.units]
            outcomes.append([unit.outcome for unit in units if unit.unit.last == step and unit.part is None])
        if all(outcomes):
            outcome = next((outcome for side in outcomes for outcome in side if outcome != "match"), "match")
            found.append(Boundary(step, before.name, after.name, outcome))
    return found
