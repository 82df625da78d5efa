"""Audits that this auditor has signed the result of already: found among the verified entries, and told again.

`ledger audit --history` that was stopped passes over the runs whose audits were done. That they were, the log says:
the intent that asked for the same, and the audit that answers it, both signed by this auditor.
"""

from __future__ import annotations

from typing import Any

from bitwitness.ledger.commitments import Commitment

from ..history import Entry, RunHistory
from ..sample import Unit
from .announcing import Request
from .audit import AuditReport, drawn_of
from .outcome import UnitResult

Json = dict[str, Any]

Answered = tuple[Entry, Entry]
"""An audit-intent, and the audit that answers it."""


def answered(history: RunHistory, auditor: str) -> list[Answered]:
    """This auditor's audits of a run that was opened verified, with their intents, in ledger order."""
    intents = {entry.leaf_hash.hex(): entry for entry in history.about if entry.kind == "audit-intent"}
    audits = [entry for entry in history.about if entry.kind == "audit" and entry.predicate["signer"] == auditor]
    return [(intents[entry.predicate["intent"]], entry) for entry in audits]


def answered_since(
    history: RunHistory, auditor: str, request: Request, part: str | None, since: int
) -> Answered | None:
    """The newest audit of this request that this auditor signed after entry `since` of the log."""
    found = (
        (intent, audit)
        for intent, audit in reversed(answered(history, auditor))
        if audit.index > since
        and request.is_of(intent.predicate, history.run)
        and request.is_answered_by(audit.predicate, part)
    )
    return next(found, None)


def signed_report(history: RunHistory, auditor: str, intent: Entry, audit: Entry) -> AuditReport:
    """What a signed audit says, as its report told it, but for what no entry holds (both values of a difference)."""
    seen, said = history.as_of(intent.predicate["size"]), audit.predicate
    results = [_unit(unit, history.first) for unit in said["units"]]
    # Units that only the record's own faults brought into a drawn audit were not drawn, nor is the audit by hand.
    chosen = [result.unit for result in results if result.unit.cause != "chosen"] or [item.unit for item in results]
    steps = {step for result in results for step in result.compared if step > history.first}
    return AuditReport(
        run=history.run,
        name=history.name,
        result=said["result"],
        units=tuple(results),
        compared=tuple(sorted(steps)),
        total=seen.last_step if chosen[0].cause == "chosen" else intent.predicate["last"],
        basis=said["basis"],
        transcript=Commitment.from_json(said["transcript"], type="transcript/1"),
        entry=audit.index,
        open_intents=tuple(history.open_intents(auditor)),
        first=history.first,
        drawn=drawn_of(seen, chosen, intent.predicate["last"]),
        ended=history.ended,
        signed_before=True,
        signed_steps=said["steps"],
    )


def _unit(said: Json, begun: int) -> UnitResult:
    """A unit as its entry has it; of a match, where its replay started says which steps were compared."""
    unit, found, start = Unit(said["first"], said["last"], said["cause"]), said.get("found"), said.get("start")
    compared: tuple[int, ...] = ()
    if said["outcome"] == "match" and "part" not in said:
        compared = (begun,) if unit.last == begun else tuple(range((start or begun) + 1, unit.last + 1))
    return UnitResult(
        unit,
        said["outcome"],
        compared,
        said.get("reason"),
        found=found,
        part=said.get("part"),
        start=start,
    )
