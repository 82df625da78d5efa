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
    audits = asked.records(
        "audits",
        "SELECT * FROM audits ORDER BY entry DESC LIMIT ? OFFSET ?",
        PER_PAGE + 1,
        (page - 1) * PER_PAGE,
    )
    unanswered = asked.records(
        "audit_intents",
        "SELECT * FROM audit_intents WHERE NOT EXISTS (SELECT 1 FROM audits WHERE intent = audit_intents.entry)"
        " ORDER BY entry DESC LIMIT 100",
    )
    context = {"audits": audits[:PER_PAGE], "page": page, "more": len(audits) > PER_PAGE, "unanswered": unanswered}
    return Page("audits.html", "Audits", "audits", context)


def audit(asked: Asked) -> Page | Moved:
    number = int(asked.parts["number"])
    row = asked.record("audits", "SELECT * FROM audits WHERE entry = ?", number)
    if row is None:
        raise NotHere(f"Entry {number} of this ledger is not an audit.")
    run = asked.given(row["run"], "runs")
    query = "SELECT * FROM audit_units WHERE audit = ? ORDER BY position"
    units = asked.signed.of(number, "audit_units", asked.rows(query, number))
    found = evidence(asked, number)
    for unit, signed in zip(units, found.predicate["units"], strict=True):
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
            "intent": asked.given(row["intent"], "audit_intents"),
            "strip": coverage_strip(here, [state["step"] for state in states], start=first - 1, last=last),
            "outcomes": {unit["outcome"] for unit in units},
            "begun": run["parent_step"] or 0,
            "rechecks": asked.records(
                "rechecks", "SELECT * FROM rechecks WHERE audit = ? ORDER BY entry", number, audit=number
            ),
            "found": signed_rows.judged(asked, found),
        },
    )
