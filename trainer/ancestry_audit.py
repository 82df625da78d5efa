"""Audits that go back beyond a run's first step: of the runs before it, each up to where the next one begins.

Every run of the line gets its own audit, with intent, sample and result. The ledger holds a run's genesis to the state
that its parent's `state` entry commits to, so the boundary is checked bit for bit once the parent's steps up to it
replay to that state, and the child's first state is that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .audit import AuditReport, audit
from .history import open_verified_run
from .outcome import overall
from .plan import AuditPlan, plan_audit
from .venue import Place, Venue


@dataclass(frozen=True)
class Span:
    """The steps of one run of a line: after `first`, up to `until`, where the next one begins (None: to its last)."""

    run: str
    name: str
    first: int
    until: int | None


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


def line_of(place: Place, name: str) -> list[Span]:
    """Run `name` and those that it goes on from, the oldest first. Raises NoSuchRun, LedgerNotVerified."""
    found: list[Span] = []
    with place.open() as ledger:
        history = open_verified_run(place.project, ledger, name)
        while True:
            found.insert(0, Span(history.run, history.name, history.first, found[0].first if found else None))
            if history.parent is None:
                return found
            history = open_verified_run(place.project, ledger, history.genesis["init"]["run"])


def audit_ancestry(
    venue: Venue,
    name: str,
    *,
    samples: int = 0,
    steps: tuple[int, int] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> AncestryReport:
    """Audit run `name` and the runs that it goes on from: `samples` units of each, or `steps` a … b, whosever they are.

    `options` are those of audit(), and so are the errors.
    """
    spans = line_of(venue, name)
    reports = []
    for span in spans:
        share = _share(span, steps)
        if steps is None or share is not None:
            reports.append(
                audit(
                    venue,
                    span.run,
                    samples=samples,
                    steps=share,
                    until=span.until if steps is None else None,
                    report=report,
                    **options,
                )
            )
    return AncestryReport(tuple(reports), tuple(_boundaries(spans, reports)))


def plan_ancestry(
    venue: Venue, name: str, *, samples: int, steps: tuple[int, int] | None, threads: int, windows_at_once: int = 0
) -> list[AuditPlan]:
    """What audit_ancestry would take, for each of the runs, the oldest first."""
    spans = [(span, _share(span, steps)) for span in line_of(venue, name)]
    return [
        plan_audit(
            venue,
            span.run,
            samples=samples,
            steps=share,
            until=span.until,
            threads=threads,
            windows_at_once=windows_at_once,
        )
        for span, share in spans
        if steps is None or share is not None
    ]


def _share(span: Span, steps: tuple[int, int] | None) -> tuple[int, int] | None:
    """Those of `steps` that are this run's; with the step that it begins after stands its first state."""
    if steps is None:
        return None
    first, last = max(steps[0], span.first), steps[1] if span.until is None else min(steps[1], span.until)
    return (first, last) if first <= last and last >= span.first else None


def _boundaries(spans: list[Span], reports: list[AuditReport]) -> list[Boundary]:
    """Those of which the parent's interval and the child's first state are in the audits."""
    by_run, found = {report.run: report for report in reports}, []
    for before, after in pairwise(spans):
        step, outcomes = after.first, []
        for span in (before, after):
            if (report := by_run.get(span.run)) is not None:
                outcomes += [unit.outcome for unit in report.units if unit.unit.last == step and unit.part is None]
        if len(outcomes) == 2:
            outcome = next((outcome for outcome in outcomes if outcome != "match"), "match")
            found.append(Boundary(step, before.name, after.name, outcome))
    return found
