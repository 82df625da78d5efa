"""Announcing an audit: its intent gets into the log before its sample can be known, and is never drawn anew.

An audit that was stopped is gone on with. What is open, and what is answered, is what this auditor signed: the folder
of work (audit_work.py) only says that he has not given the audit up, and anyone may have written there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger.entry import entries
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.errors import BitwitnessError, EntryError
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import Trust

from ..history import Entry, RunHistory, open_verified_run
from ..record_check import require_steps
from .audit_work import AuditWork
from .beacons import NONE, choose
from .venue import Venue

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What an audit of a run asks for, as its intent says it: steps `span`, `samples` drawn from them, a beacon.

    `drawn` is false where the steps were chosen by hand. With `open_end` a sample is of the steps up to what was the
    run's last one when it was announced.
    """

    span: tuple[int, int]
    samples: int
    beacon: Json
    drawn: bool
    open_end: bool

    @classmethod
    def of(
        cls,
        history: RunHistory,
        trust: Trust | None,
        *,
        samples: int,
        steps: tuple[int, int] | None,
        until: int | None,
        beacon: str | Json | None,
    ) -> Request:
        """From the arguments of audit(). Raises BitwitnessError where the run has not these steps."""
        span = steps or (history.first, history.last_step if until is None else until)
        _require_span(history, span)
        if isinstance(beacon, str):
            beacon = choose(beacon, trust, round(time.time()))
        return cls(span, samples, beacon or NONE, steps is None, until is None)

    def is_of(self, intent: Json, run: str) -> bool:
        """Whether an intent asked for the same of `run`."""
        asked: Json = {"beacon": self.beacon, "first": self.span[0], "run": run, "samples": self.samples}
        if not (self.drawn and self.open_end):
            asked["last"] = self.span[1]
        return all(intent.get(name) == value for name, value in asked.items())

    def is_answered_by(self, audit: Json, part: str | None) -> bool:
        """Whether an audit that follows such an intent computed what was asked for, of each step only `part`."""
        drawn = any(unit["cause"] == "init" for unit in audit["units"])  # as every drawn one has, and no other
        return drawn == self.drawn and all(unit.get("part") == part for unit in audit["units"])


def announce(
    venue: Venue,
    name: str,
    *,
    samples: int = 0,
    steps: tuple[int, int] | None = None,
    until: int | None = None,
    beacon: str | Json | None = None,
) -> AuditWork:
    """Get the intent of an audit with these arguments into the log, or on its way; audit() then goes on with it.

    Raises what audit() raises before its sample is drawn, and WaitsForLog.
    """
    trust = venue.project.trust()
    with venue.open() as ledger:
        history = open_verified_run(venue.project, ledger, name)
        require_steps(history)
        request = Request.of(history, trust, samples=samples, steps=steps, until=until, beacon=beacon)
        return intend(venue, ledger, history, request)[0]


def intend(venue: Venue, ledger: Ledger, history: RunHistory, request: Request) -> tuple[AuditWork, Entry]:
    """Get the audit-intent into the log: the sample is drawn from its leaf hash. Its index is −1 if it is not there.

    An audit like this one that was stopped before is gone on with: its intent, once made, is never drawn anew.
    """
    stopped = stopped_before(venue, ledger, history, request)
    if stopped is not None:
        return stopped[0], _hand_over(venue, ledger, *stopped, drawn=request.drawn)
    size = ledger.size
    predicate = {
        "beacon": request.beacon,
        "first": request.span[0],
        "last": request.span[1],
        "root": ledger.root(size).hex(),
        "run": history.run,
        "samples": request.samples,
        "signer": venue.auditor.keyid,
        "size": size,
        "time": rfc3339.now(),
    }
    intent = seal(entries.statement("audit-intent", None, predicate), venue.auditor)
    work = AuditWork.begin(venue.work, intent, venue.auditor)
    return work, _hand_over(venue, ledger, work, None, drawn=request.drawn)


def stopped_before(
    venue: Venue, ledger: Ledger, history: RunHistory, request: Request
) -> tuple[AuditWork, int | None] | None:
    """An audit of this request that was announced and has no result, with its intent's index if the log has it."""
    for work in AuditWork.unfinished(venue.work, venue.auditor):
        if not request.is_of(work.predicate, history.run):
            continue
        index = ledger.find(work.leaf_hash)
        if index is not None and index not in history.open_intents(venue.auditor.keyid):
            work.finish()  # it was answered; only this folder does not know
            continue
        return work, index
    return None


def announced_entry(work: AuditWork, index: int | None) -> Entry:
    """The intent of an audit at `index` of the log, or not in it yet."""
    return Entry(-1 if index is None else index, "audit-intent", work.predicate, work.leaf_hash)


def _hand_over(venue: Venue, ledger: Ledger, work: AuditWork, index: int | None, *, drawn: bool) -> Entry:
    if index is None:
        try:
            index = venue.announce(ledger, work.intent, drawn=drawn)
        except EntryError:
            work.finish()  # the log will never take it
            raise
    return announced_entry(work, index)


def _require_span(history: RunHistory, span: tuple[int, int]) -> None:
    """Raise BitwitnessError unless the run has these steps."""
    first, last = span
    if first > last:
        raise BitwitnessError(f"steps {first}:{last}: the first comes after the last; turn them round")
    if history.first <= first and last <= history.last_step:
        return
    elsewhere = ""
    if history.parent is not None:
        elsewhere = (
            f"; those up to {history.first} are steps of run {history.parent.name}, and --history reaches across"
        )
    raise BitwitnessError(
        f"steps {first}:{last} are not in run {history.name}, which has steps {history.first} to {history.last_step}"
        f"{elsewhere}"
    )
