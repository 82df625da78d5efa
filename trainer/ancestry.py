"""The line of a run: itself and the runs that it goes on from, each with the steps that lead to the next one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bitwitness.ledger.entry.audit_rules import met, tampered_steps
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from .auditing.coverage import FRACTIONS, Coverage, Turn, open_coverage
from .history import RunHistory, open_verified_run


@dataclass(frozen=True)
class Span:
    """The steps of one run of a line: after `first`, up to `until`, where the next one begins (None: to its last)."""

    history: RunHistory
    until: int | None

    @property
    def run(self) -> str:
        return self.history.run

    @property
    def name(self) -> str:
        return self.history.name

    @property
    def first(self) -> int:
        return self.history.first

    @property
    def last(self) -> int:
        """The last of its steps in the line."""
        return self.history.last_step if self.until is None else self.until


def line_of(project: Project, ledger: Ledger, name: str) -> list[Span]:
    """Run `name` and those that it goes on from, the oldest first. Raises NoSuchRun, LedgerNotVerified."""
    found: list[Span] = []
    history = open_verified_run(project, ledger, name)
    while True:
        found.insert(0, Span(history, found[0].first if found else None))
        if history.parent is None:
            return found
        history = open_verified_run(project, ledger, history.genesis["init"]["run"])


def share(span: Span, steps: tuple[int, int]) -> tuple[int, int] | None:
    """Those of `steps` that are this run's; with the step that it begins after stands its first state."""
    first, last = max(steps[0], span.first), steps[1] if span.until is None else min(steps[1], span.until)
    return (first, last) if first <= last and last >= span.first else None


@dataclass(frozen=True)
class LineCoverage:
    """The coverage of a run and of those that it goes on from, as one history.

    `runs` are the oldest first, each up to where the next one begins.
    """

    runs: tuple[Coverage, ...]

    @property
    def steps(self) -> int:
        return sum(one.steps for one in self.runs)

    @property
    def covered(self) -> int:
        """The number of steps that at least one auditor covered."""
        return sum(one.covered for one in self.runs)

    def histogram(self) -> dict[int, int]:
        """How many steps are covered by 0, 1, 2, … distinct auditors; every number up to the highest has a key."""
        each = [one.histogram() for one in self.runs]
        return {number: sum(h.get(number, 0) for h in each) for number in range(max(map(len, each)))}

    def caught(self, tampered: float) -> float:
        """The probability that a tampered fraction of all these steps would have been met, had they lain scattered."""
        return met(self.covered, self.steps, tampered_steps(tampered, self.steps))

    def next_turns(self, auditor: str, count: int = 1) -> list[tuple[Coverage, Turn]]:
        """The next `count` intervals for `auditor`, by the order of Coverage.next_turns, among equals the oldest."""
        turns = [(one, turn) for one in self.runs for turn in one.next_turns(auditor, len(one.intervals))]
        return sorted(turns, key=lambda pair: (pair[1].covered, pair[1].rank))[:count]

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "covered": {str(number): steps for number, steps in self.histogram().items()},
            "caught": {str(f): {"scattered": self.caught(f)} for f in FRACTIONS},
            "runs": [one.to_json() for one in self.runs],
        }


def line_coverage(project: Project, ledger: Ledger, name: str) -> LineCoverage:
    """The coverage of run `name` with its history. Raises what open_coverage() raises."""
    spans = line_of(project, ledger, name)
    return LineCoverage(tuple(_up_to(open_coverage(project, ledger, span.run), span.last) for span in spans))


def _up_to(found: Coverage, last: int) -> Coverage:
    """The coverage of the steps up to `last`, a stored state, as if there were no more."""
    return replace(
        found,
        last_step=last,
        segments=tuple(replace(s, last=min(s.last, last)) for s in found.segments if s.first <= last),
        intervals=tuple(pair for pair in found.intervals if pair[1] <= last),
    )


def next_steps(project: Project, ledger: Ledger, name: str, auditor: str) -> tuple[Coverage, Turn]:
    """The interval of a line that is this auditor's next. Raises BitwitnessError if it has covered every one."""
    found = line_coverage(project, ledger, name).next_turns(auditor)
    if not found:
        raise BitwitnessError(
            f"this auditor has covered every step of run {name}, and of those that it goes on from, already; "
            f"`ledger coverage {name} --history`"
        )
    return found[0]
