"""Runs: the list, and the page of one with its loss, its coverage and its records."""

from __future__ import annotations

import json
import math
from typing import Any

from .. import signed_rows
from ..answers import Asked, NotHere, Page
from ..chart import MAX_BUCKETS, Bucket, Event, Mark, loss_chart
from ..config_view import grouped
from ..strip import Unit, coverage_strip, covered

PER_PAGE = 50

_SUMMARY = """
    SELECT run_summaries.*, runs.time, runs.init,
        (SELECT max(step) FROM states WHERE states.run = runs.entry) AS stored,
        (SELECT mean_bits FROM evals WHERE evals.run = runs.entry ORDER BY step DESC, entry DESC LIMIT 1)
            AS last_eval_bits,
        (SELECT loss_bits FROM steps WHERE steps.run = runs.entry AND steps.step = run_summaries.last_step)
            AS last_loss_bits
    FROM run_summaries JOIN runs ON runs.entry = run_summaries.run
"""


def summaries(asked: Asked, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """Runs with progress, losses and audits, the newest first."""
    found = asked.rows(_SUMMARY + " ORDER BY runs.entry DESC LIMIT ? OFFSET ?", limit, offset)
    return [_with_signed(asked, row) for row in found]


def _with_signed(asked: Asked, summary: dict[str, Any]) -> dict[str, Any]:
    """A run's summary with its last losses as their entries have them; `edited` says that the tables have others."""
    run, of_run = summary["run"], summary["hash"]
    step = asked.rows("SELECT * FROM steps WHERE run = ? AND step = ?", run, summary["last_step"])
    measured = asked.rows("SELECT * FROM evals WHERE run = ? ORDER BY step DESC, entry DESC LIMIT 1", run)
    signed = {**summary, "edited": False}
    for row in signed_rows.steps(asked, of_run, step):
        values = {"last_step": row["step"], "last_loss": row["loss"], "last_loss_bits": row["loss_bits"]}
        signed = {**signed, **values, "edited": row["edited"]}
    for row in signed_rows.evals(asked, of_run, measured):
        values = {"last_eval": row["mean"], "last_eval_bits": row["mean_bits"]}
        signed = {**signed, **values, "edited": signed["edited"] or row["edited"]}
    return signed


def find_run(asked: Asked) -> dict[str, Any]:
    """The run that the address names, by name or by identity. Raises NotHere."""
    name = asked.parts["name"]
    run = asked.row("SELECT * FROM runs WHERE name = ?", name) or asked.row("SELECT * FROM runs WHERE hash = ?", name)
    if run is None:
        raise NotHere(f"This ledger has no run named {name}.")
    return run


def index(asked: Asked) -> Page:
    page = max(asked.number("page") or 1, 1)
    runs = summaries(asked, PER_PAGE + 1, (page - 1) * PER_PAGE)
    more = len(runs) > PER_PAGE
    return Page("runs.html", "Runs", "runs", {"runs": runs[:PER_PAGE], "page": page, "more": more})


def run(asked: Asked) -> Page:
    row = find_run(asked)
    entry = row["entry"]
    summary = asked.row(_SUMMARY + " WHERE runs.entry = ?", entry)
    if summary is None:
        raise NotHere("This run has no summary; `ledger rebuild` makes it again.")
    summary = _with_signed(asked, summary)
    first, last = steps_of(asked, entry)
    buckets, totals = _buckets(asked, entry, first, last)
    evals = asked.rows("SELECT * FROM evals WHERE run = ? ORDER BY step, entry", entry)
    events = asked.rows("SELECT * FROM run_events WHERE run = ? ORDER BY entry", entry)
    states = asked.rows("SELECT * FROM states WHERE run = ? ORDER BY step", entry)
    audits, units = audits_of(asked, entry)
    start = first - 1
    return Page(
        "run.html",
        row["name"],
        "runs",
        {
            "run": row,
            "summary": summary,
            "trainer": asked.row("SELECT * FROM keys WHERE entry = ?", row["trainer"]),
            "parent": asked.row("SELECT name FROM runs WHERE entry = ?", row["parent"]),
            "datasets": asked.rows(
                "SELECT run_datasets.name, role, datasets.* FROM run_datasets"
                " JOIN datasets ON datasets.entry = run_datasets.dataset WHERE run = ? ORDER BY position",
                entry,
            ),
            "config": grouped(json.loads(row["config"])),
            "chart": _chart(asked, row["name"], buckets, evals, events, start, last),
            "eval_names": list(dict.fromkeys(item["name"] for item in evals)),
            "strip": coverage_strip(
                units, [state["step"] for state in states], start=start, last=last, below_chart=True
            ),
            "outcomes": {unit.outcome for unit in units},
            "covered": covered(units, start, last),
            "first_step": first,
            "steps_made": max(last - first + 1, 0) if totals["count"] else 0,
            "totals": totals,
            "evals": signed_rows.evals(asked, row["hash"], evals[-12:][::-1]),
            "eval_count": len(evals),
            "events": events,
            "states": states[-12:][::-1],
            "state_count": len(states),
            "audits": audits,
            "recent_steps": signed_rows.steps(
                asked,
                row["hash"],
                asked.rows("SELECT * FROM steps WHERE run = ? ORDER BY step DESC LIMIT 8", entry),
            ),
        },
    )


def audits_of(asked: Asked, run: int) -> tuple[list[dict[str, Any]], list[Unit]]:
    """A run's audits, and all their units."""
    audits = asked.rows(
        "SELECT audits.*, keys.keyid, keys.name AS auditor_name FROM audits JOIN keys ON keys.entry = audits.auditor"
        " WHERE run = ? ORDER BY audits.entry DESC",
        run,
    )
    rows = asked.rows(
        "SELECT audit, first, last, outcome FROM audit_units JOIN audits ON audits.entry = audit WHERE run = ?", run
    )
    return audits, [Unit(u["first"], u["last"], u["outcome"], asked.links.audit(u["audit"])) for u in rows]


def steps_of(asked: Asked, entry: int) -> tuple[int, int]:
    """First and last step of a run in this ledger; a run without steps yet has (n + 1, n)."""
    first, last = asked.ledger.connection.execute(
        "SELECT min(step), max(step) FROM steps WHERE run = ?", (entry,)
    ).fetchone()
    if first is None:
        begun = asked.value("SELECT coalesce(parent_step, 0) FROM runs WHERE entry = ?", entry) or 0
        return begun + 1, begun
    return first, last


def _buckets(asked: Asked, entry: int, first: int, last: int) -> tuple[list[Bucket], dict[str, Any]]:
    """The training loss in at most MAX_BUCKETS buckets, and the sums over all steps, from one reading."""
    width = max(1, math.ceil((last - first + 1) / MAX_BUCKETS))
    rows = asked.ledger.connection.execute(
        "SELECT min(step), max(step), min(loss), avg(loss), max(loss), count(*), sum(tokens), sum(seconds)"
        " FROM steps WHERE run = ? GROUP BY (step - ?) / ? ORDER BY 1",
        (entry, first, width),
    ).fetchall()
    # Of infinities of both signs there is no mean, which SQLite says with NULL.
    buckets = [
        Bucket(first, last, low, math.nan if mean is None else mean, high)
        for first, last, low, mean, high, *_ in rows
        if low is not None
    ]
    seconds = sum(row[7] or 0 for row in rows)
    tokens = sum(row[6] for row in rows)
    recent = asked.ledger.connection.execute(
        "SELECT sum(tokens), sum(seconds), count(*) FROM ("
        "SELECT tokens, seconds FROM steps WHERE run = ? AND seconds IS NOT NULL ORDER BY step DESC LIMIT 100)",
        (entry,),
    ).fetchone()
    totals = {
        "count": sum(row[5] for row in rows),
        "tokens": tokens,
        "seconds": seconds or None,
        "rate": tokens / seconds if seconds else None,
        "recent": recent[2],
        "recent_rate": recent[0] / recent[1] if recent[1] else None,
    }
    return buckets, totals


def _chart(
    asked: Asked,
    name: str,
    buckets: list[Bucket],
    evals: list[dict[str, Any]],
    events: list[dict[str, Any]],
    start: int,
    last: int,
) -> Any:
    series: dict[str, list[Mark]] = {}
    for item in evals:
        if item["mean"] is not None:
            marks = series.setdefault(item["name"], [])
            marks.append(Mark(item["step"], item["mean"], asked.links.entry(item["entry"])))
    drawn = [Event(e["step"], f"{e['kind']} after step {e['step']}") for e in events if e["kind"] != "end"]
    address = asked.links.steps(name) + "/"
    return loss_chart(buckets, list(series.items()), drawn, start=start, last=last, step_href=address)
