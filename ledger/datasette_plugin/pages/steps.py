"""Steps: every step of a run in pages, and one step with all that it commits to."""

from __future__ import annotations

from typing import Any

from .. import signed_rows
from ..answers import Asked, Moved, NotHere, Page
from ..evidence import evidence
from .runs import find_run

PER_PAGE = 100

# Scalars of the record in the words of the arithmetic (docs/arithmetic.md).
SCALARS = {
    "learning_rate": "learning rate",
    "grad_scale": "gradient scale, clip / N",
    "clip": "clip factor",
    "bias1": "1 − β₁ᵗ",
    "step_size": "step size",
    "inv_sqrt_bias2": "1 / √(1 − β₂ᵗ)",
    "decay": "decay",
}


def index(asked: Asked) -> Page | Moved:
    run = find_run(asked)
    wanted = asked.number("step")
    if wanted is not None:
        return Moved(asked.links.step(run["name"], wanted))
    first = asked.value("SELECT min(step) FROM steps WHERE run = ?", run["entry"])
    last = asked.value("SELECT max(step) FROM steps WHERE run = ?", run["entry"])
    start = asked.number("from")
    if start is None:
        start = first or 1
    rows = asked.rows(
        "SELECT * FROM steps WHERE run = ? AND step >= ? ORDER BY step LIMIT ?", run["entry"], start, PER_PAGE
    )
    units = asked.rows(
        "SELECT first, last, outcome, audit FROM audit_units JOIN audits ON audits.entry = audit"
        " WHERE run = ? AND last >= ? AND first < ?",
        run["entry"],
        start,
        start + PER_PAGE,
    )
    rows = signed_rows.steps(asked, run["hash"], rows)
    for row in rows:
        row["units"] = [unit for unit in units if unit["first"] <= row["step"] <= unit["last"]]
    return Page(
        "steps.html",
        f"Steps of {run['name']}",
        "runs",
        {
            "run": run,
            "rows": rows,
            "first": first,
            "last": last,
            "start": start,
            "earlier": max(start - PER_PAGE, first) if first is not None and start > first else None,
            "later": rows[-1]["step"] + 1 if rows and rows[-1]["step"] < last else None,
        },
    )


def step(asked: Asked) -> Page | Moved:
    run = find_run(asked)
    number = int(asked.parts["number"])
    row = asked.row("SELECT * FROM steps WHERE run = ? AND step = ?", run["entry"], number)
    if row is None:
        if number == 0:
            return Moved(asked.links.entry(run["entry"]))
        raise NotHere(f"Run {run['name']} has no step {number} in this ledger.")
    found = evidence(asked, row["entry"])
    if found.kind != "step":
        raise NotHere(
            f"The tables of this ledger name entry {row['entry']} for the step, which is none: `ledger fsck`."
        )
    (shown,) = signed_rows.steps(asked, run["hash"], [row])
    found, row = signed_rows.step_page(found, shown, number), shown
    signed = found.predicate["computed"]["scalars"]
    scalars = [(SCALARS.get(name, name), signed[name]) for name in sorted(signed, key=_scalar_order)]
    context = {"found": found, "scalars": scalars, **_around(asked, run, row)}
    return Page("step.html", f"Step {number} of {run['name']}", "runs", context)


def _scalar_order(name: str) -> tuple[int, str]:
    known = list(SCALARS)
    return (known.index(name) if name in known else len(known)), name


def _around(asked: Asked, run: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """What surrounds a step: its neighbours, audits, held-out losses, and the state stored there."""
    entry, number = run["entry"], int(asked.parts["number"])
    near = "SELECT step FROM steps WHERE run = ? AND step "
    return {
        "run": run,
        "row": row,
        "previous": asked.value(near + "< ? ORDER BY step DESC LIMIT 1", entry, number),
        "next": asked.value(near + "> ? ORDER BY step LIMIT 1", entry, number),
        "units": asked.rows(
            "SELECT audit_units.*, audits.result FROM audit_units JOIN audits ON audits.entry = audit"
            " WHERE run = ? AND first <= ? AND last >= ? ORDER BY audit",
            entry,
            number,
            number,
        ),
        "evals": signed_rows.evals(
            asked,
            run["hash"],
            asked.rows("SELECT * FROM evals WHERE run = ? AND step = ? ORDER BY entry", entry, number),
        ),
        "states": asked.rows("SELECT * FROM states WHERE run = ? AND step = ? ORDER BY entry", entry, number),
        "releases": asked.rows("SELECT * FROM releases WHERE run = ? AND step = ? ORDER BY entry", entry, number),
    }
