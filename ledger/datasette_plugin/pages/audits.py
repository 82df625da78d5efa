"""Audits: the list with the announcements that have no result, and one audit with its units."""

from __future__ import annotations

from .. import signed_rows
from ..answers import Asked, Moved, NotHere, Page
from ..evidence import evidence
from ..strip import Unit, coverage_strip
from .runs import steps_of

PER_PAGE = 100


def index(asked: Asked) -> Page:
    page = max(asked.number("page") or 1, 1)
    audits = asked.rows(
        "SELECT audits.*, runs.name AS run_name, keys.keyid, keys.name AS auditor_name,"
        " (SELECT count(*) FROM audit_units WHERE audit = audits.entry) AS units"
        " FROM audits JOIN runs ON runs.entry = audits.run JOIN keys ON keys.entry = audits.auditor"
        " ORDER BY audits.entry DESC LIMIT ? OFFSET ?",
        PER_PAGE + 1,
        (page - 1) * PER_PAGE,
    )
    unanswered = asked.rows(
        "SELECT audit_intents.*, runs.name AS run_name, keys.keyid, keys.name AS auditor_name FROM audit_intents"
        " JOIN runs ON runs.entry = audit_intents.run JOIN keys ON keys.entry = audit_intents.auditor"
        " WHERE NOT EXISTS (SELECT 1 FROM audits WHERE intent = audit_intents.entry)"
        " ORDER BY audit_intents.entry DESC LIMIT 100"
    )
    context = {"audits": audits[:PER_PAGE], "page": page, "more": len(audits) > PER_PAGE, "unanswered": unanswered}
    return Page("audits.html", "Audits", "audits", context)


def audit(asked: Asked) -> Page | Moved:
    number = int(asked.parts["number"])
    row = asked.row("SELECT * FROM audits WHERE entry = ?", number)
    if row is None:
        raise NotHere(f"Entry {number} of this ledger is not an audit.")
    run = asked.row("SELECT * FROM runs WHERE entry = ?", row["run"])
    if run is None:
        raise NotHere("The audited run is not in this ledger.")
    units = asked.rows("SELECT * FROM audit_units WHERE audit = ? ORDER BY position", number)
    found = signed_rows.audit_page(evidence(asked, number), row, run, units)
    for unit, signed in zip(units, found.predicate.get("units", ()), strict=False):
        unit["found"] = signed.get("found")
    states = asked.rows("SELECT step FROM states WHERE run = ? ORDER BY step", row["run"])
    first, last = steps_of(asked, row["run"])
    here = [Unit(unit["first"], unit["last"], unit["outcome"], f"#unit-{unit['position']}") for unit in units]
    return Page(
        "audit.html",
        f"Audit of {run['name']}",
        "audits",
        {
            "audit": row,
            "run": run,
            "units": units,
            "intent": asked.row("SELECT * FROM audit_intents WHERE entry = ?", row["intent"]),
            "strip": coverage_strip(here, [state["step"] for state in states], start=first - 1, last=last),
            "outcomes": {unit["outcome"] for unit in units},
            "begun": run["parent_step"] or 0,
            "rechecks": asked.rows(
                "SELECT rechecks.*, keyid, name FROM rechecks JOIN keys ON keys.entry = auditor WHERE audit = ?"
                " ORDER BY rechecks.entry",
                number,
            ),
            "found": found,
        },
    )
