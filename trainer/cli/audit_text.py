"""What audits, their plans and rechecks tell: lines for a person, JSON for a program, one set of numbers for both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from bitwitness.ledger.cli.output import counted, note, say
from bitwitness.ledger.entry.audit_rules import tampered_steps

from ..auditing.ancestry_audit import AncestryReport
from ..auditing.audit import AuditReport
from ..auditing.eval_audit import EVAL
from ..auditing.outcome import UnitResult
from ..auditing.plan import AuditPlan
from ..auditing.recheck import RecheckReport


def tell(result: AuditReport, again: str) -> None:
    """Say it to a person. `again` is how a command names the run."""
    for line in audit_lines(result, again):
        say(line)
    for passed in result.passed_over:
        note(f"note: {passed}")
    if result.resumed:
        note("note: this went on with the audit that was stopped before")
    if result.signed_before:
        note(f"note: the audit of {result.name} was signed before the stop, and was not made again")
    if result.open_intents:
        note(_open_intents(result))


def plan_lines(plan: AuditPlan) -> list[str]:
    at_most = "" if plan.exact else "at most "
    fits = "" if plan.memory_bytes <= plan.available_bytes else ", more than this machine has"
    parts = f"{_size(plan.states_bytes)} of states, {_size(plan.data_bytes)} of data"
    replayed = f"{counted(plan.steps, 'step')} of run {plan.name} in {counted(plan.units, 'unit')}"
    return [
        f"replay  {at_most}{replayed}; log of {plan.entries}",
        f"fetch   {at_most}{_size(plan.fetch_bytes)}: {parts}",
        f"memory  about {_size(plan.memory_bytes)}{fits}",
        f"time    {at_most}about {plan.seconds:.1f} s on this machine, after fetching",
    ]


def ancestry_json(line: AncestryReport) -> dict[str, Any]:
    return {
        "result": line.result,
        "runs": [audit_json(report) for report in line.reports],
        "boundaries": [asdict(boundary) for boundary in line.boundaries],
    }


def recheck_json(found: RecheckReport) -> dict[str, Any]:
    reason = {} if found.reason is None else {"reason": found.reason}
    return reason | {
        "result": found.result,
        "run": found.run,
        "name": found.name,
        "audit": found.audit,
        "auditor": found.auditor,
        "entry": found.entry,
        "resumed": found.resumed,
        "steps": found.steps,
        "units": [unit.to_json() | _explained(unit) for unit in found.units],
        "transcript": found.transcript.to_json(),
    }


def recheck_lines(found: RecheckReport) -> Iterator[str]:
    where = "not in the log yet" if found.entry is None else f"entry {found.entry}"
    reason = "" if found.reason is None else f": {found.reason}"
    yield f"audit {found.audit} of {found.name} by {found.auditor[:16]}…: {found.result}{reason}; {where}"
    yield f"{counted(found.steps, 'step')} computed again, transcript {found.transcript.root}"


def audit_json(report: AuditReport) -> dict[str, Any]:
    return {
        "result": report.result,
        "run": report.run,
        "name": report.name,
        "entry": report.entry,
        "resumed": report.resumed,
        "signed_before": report.signed_before,
        "notes": list(report.passed_over),
        "basis": report.basis,
        "steps": [
            {"step": step, "outcome": "mismatch" if unit.found and unit.found["step"] == step else "match"}
            for unit in report.units
            for step in unit.compared
        ],
        "units": [unit.to_json() | _explained(unit) for unit in report.units],
        "differences": {
            str(unit.found["step"]): {
                field: {"ledger": expected, "replay": found} for field, (expected, found) in unit.differences.items()
            }
            for unit in report.units
            if unit.found is not None
        },
        "compared": report.count,
        "total": report.steps,
        "caught": {"one_step": report.caught(), "fraction_0.01": report.caught(0.01)},
        "transcript": report.transcript.to_json(),
        "open_intents": list(report.open_intents),
        "screen": {
            "compared": report.screened.compared,
            "intervals": report.screened.total,
            "impossible": [{"step": fault.step, "reason": fault.reason} for fault in report.screened.faults],
        },
    }


def _explained(unit: UnitResult) -> dict[str, Any]:
    """What is told of a unit, but not signed."""
    detail: dict[str, Any] = {} if unit.detail is None else {"detail": unit.detail}
    return detail if unit.value is None else detail | {"value": unit.value.to_json()}


def audit_lines(report: AuditReport, again: str) -> Iterator[str]:
    for item in report.units:
        where = "initial state" if item.unit.last == report.first else f"steps {item.unit.first}-{item.unit.last}"
        if item.part is not None:
            where = f"step {item.unit.first}, {item.part}"
        reason = "" if item.reason is None else f": {item.reason}"
        yield f"{where:<16} {item.unit.cause:<8} {item.outcome}{reason}"
        if on_the_way := sum(report.first < step < item.unit.first for step in item.compared):
            start = "the initial state" if item.start == report.first else f"the stored state {item.start}"
            yield f"  and {counted(on_the_way, 'step')} on the way from {start}"
        if item.detail is not None:
            yield f"  {item.detail}"
        for field, (expected, found) in item.differences.items():
            yield f"  {field}: ledger {_short(expected)}, replay {_short(found)}"
        if item.value is not None:
            yield from item.value.lines()
        if item.differences and item.found is not None and item.found["step"] > report.first:
            yield from _next_step(again, item.found["step"], item.value is not None)
    screened = report.screened
    if screened.compared:
        wrong = f", {len(screened.faults)} impossible" if screened.faults else ", all within what AdamW allows"
        yield f"screen: {screened.compared} of {screened.total} intervals between stored states{wrong}"
    part = report.units[0].part if report.units else None
    if part is None:
        what = f"{report.count} of {report.steps} steps of {report.name} compared bit for bit"
    else:
        part = "held-out loss" if part == EVAL else part
        what = f"{part} of {counted(len(report.units), 'step')} of {report.name} computed again"
    where = "not in the log yet" if report.entry is None else f"entry {report.entry}"
    yield f"{report.result}: {what} ({report.basis}); {where}"
    if report.result == "match":
        yield _chance(report)


def _chance(report: AuditReport) -> str:
    one, some = report.caught(), report.caught(0.01)
    if one is None or some is None:
        return "the steps were chosen by hand: this says nothing of the others"
    if report.drawn is not None and not report.drawn[1]:
        return "every step is in what each audit replays"
    steps = tampered_steps(0.01, report.steps)
    return (
        f"a tampered step outside what every audit replays is met with probability {one:.2f}, "
        f"1% of the steps ({steps}) with {some:.2f}"
    )


def _next_step(again: str, step: int, stored: bool) -> Iterator[str]:
    if not stored:
        yield f"  values    the trainer stored no state after step {step}; only his trace of it tells them"
    yield f"  next      ledger trace {again} --step {step}, and the trainer's of the same step; then ledger bisect"


def _open_intents(report: AuditReport) -> str:
    listed = ", ".join(map(str, report.open_intents))
    return (
        f"note: earlier intents of this auditor for run {report.name} that have no result, and count as failed: "
        f"{'entry' if len(report.open_intents) == 1 else 'entries'} {listed}"
    )


def _short(value: Any) -> str:
    return str(value["root"]) if isinstance(value, dict) and "root" in value else str(value)


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number = number / 1024
    return ""
