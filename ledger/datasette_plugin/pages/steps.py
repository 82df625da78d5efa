"""Steps: every step of a run in pages, and one step with all that it commits to."""

from __future__ import annotations

from typing import Any

from .. import signed_rows
from ..answers import Asked, Moved, NotHere, Page
from ..evidence import evidence
from .runs import find_run, units_over

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
    rows = asked.records(
        "steps",
        "SELECT * FROM steps WHERE run = ? AND step >= ? ORDER BY step LIMIT ?",
        run["entry"],
        start,
        PER_PAGE,
        run=run["entry"],
    )
    units = units_over(asked, run["entry"], start, start + PER_PAGE - 1)
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
    shown = asked.signed.row("steps", row, run=run["entry"], step=number)
    if shown is None:
        raise NotHere(
            f"The tables of this ledger name entry {row['entry']} for the step, which is not it: `ledger fsck`."
        )
    around = _around(asked, run, shown)
    found = signed_rows.judged(asked, evidence(asked, shown["entry"]))
    signed = found.predicate["computed"]["scalars"]
    scalars = [(SCALARS.get(name, name), signed[name]) for name in sorted(signed, key=_scalar_order)]
    context = {"found": found, "scalars": scalars, **around}
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
        "units": units_over(asked, entry, number, number),
        **{
            table: asked.records(
                table, f"SELECT * FROM {table} WHERE run = ? AND step = ? ORDER BY entry", entry, number, run=entry
            )
            for table in ("evals", "states", "releases")
        },
    }
