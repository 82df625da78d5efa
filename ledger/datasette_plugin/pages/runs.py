"""Runs: the list, and the page of one with its loss, its coverage and its records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ...entry.entries import KINDS
from ..answers import Asked, NotHere, Page
from ..chart import MAX_BUCKETS, Bucket, Event, Mark, loss_chart
from ..config_view import grouped
from ..strip import Unit, coverage_strip, covered

PER_PAGE = 50
SHOWN_EVENTS = 50
CHAINED = tuple(kind.name for kind in KINDS.values() if kind.chained)

DRAWN = 500
"""Held-out losses in a chart, the newest."""
LISTED = 1000
"""Audits of one run that its page shows, the newest."""
COUNTED = 100
"""Audits of each run that a list of runs reads."""


def summaries(asked: Asked, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """Runs with progress, losses and audits, the newest first."""
    rows = asked.records("runs", "SELECT * FROM runs ORDER BY entry DESC LIMIT ? OFFSET ?", limit, offset)
    return [{**row, **summary_of(asked, row["entry"]), **_audited(asked, row["entry"])} for row in rows]


def summary_of(asked: Asked, run: int) -> dict[str, Any]:
    """How far a run came, by its newest records: status, step, loss, held-out loss, and the entry of the step."""
    event = asked.record(
        "run_events", "SELECT * FROM run_events WHERE run = ? ORDER BY entry DESC LIMIT 1", run, run=run
    )
    step = asked.record("steps", "SELECT * FROM steps WHERE run = ? ORDER BY step DESC LIMIT 1", run, run=run)
    query = "SELECT * FROM evals WHERE run = ? ORDER BY step DESC, entry DESC LIMIT 1"
    measured = asked.record("evals", query, run, run=run)
    kind = "resume" if event is None else event["kind"]
    return {
        "status": "ended" if kind == "end" else "running" if event is None or kind != "halt" else event["reason"],
        "last_step": None if step is None else step["step"],
        "last_step_entry": None if step is None else step["entry"],
        "last_loss": None if step is None else step["loss"],
        "last_loss_bits": None if step is None else step["loss_bits"],
        "last_eval": None if measured is None else measured["mean"],
        "last_eval_bits": None if measured is None else measured["mean_bits"],
    }


def _audited(asked: Asked, run: int) -> dict[str, Any]:
    """How many of a run's newest audits there are, and how many found it right."""
    query = "SELECT entry, result FROM audits WHERE run = ? ORDER BY entry DESC LIMIT ?"
    results = [row["result"] for row in asked.records("audits", query, run, COUNTED + 1, run=run)]
    seen = results[:COUNTED]
    return {"audits": len(seen), "audits_match": seen.count("match"), "more_audits": len(results) > COUNTED}


def find_run(asked: Asked) -> dict[str, Any]:
    """The run that the address names, by name or by identity. Raises NotHere."""
    name = asked.parts["name"]
    by_name = asked.record("runs", "SELECT * FROM runs WHERE name = ?", name, name=name)
    run = by_name or asked.record("runs", "SELECT * FROM runs WHERE hash = ?", name, hash=name)
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
    summary = summary_of(asked, entry)
    first, last = steps_of(asked, entry)
    buckets, totals = _buckets(asked, entry, first, last)
    evals = asked.rows("SELECT * FROM evals WHERE run = ? ORDER BY step, entry", entry)
    events = asked.rows("SELECT * FROM run_events WHERE run = ? ORDER BY entry", entry)
    states = asked.rows("SELECT * FROM states WHERE run = ? ORDER BY step", entry)
    shown = asked.signed.rows("evals", evals[-DRAWN:], run=entry)
    newest = max((item["entry"] for item in (*evals, *events, *states)), default=entry)
    _count_chain(asked, max(newest, summary["last_step_entry"] or 0), totals["count"], evals, events, states)
    audits, units, more_audits = audits_of(asked, entry)
    start = first - 1
    return Page(
        "run.html",
        row["name"],
        "runs",
        {
            "run": row,
            "summary": summary,
            "trainer": asked.given(row["trainer"], "keys"),
            "parent": None if row["parent"] is None else asked.given(row["parent"], "runs"),
            "datasets": datasets_of(asked, entry),
            "config": grouped(json.loads(row["config"])),
            "chart": _chart(asked, row["name"], buckets, shown, events, start, last),
            "eval_names": list(dict.fromkeys(item["name"] for item in shown)),
            "strip": coverage_strip(
                units, [state["step"] for state in states], start=start, last=last, below_chart=True
            ),
            "outcomes": {unit.outcome for unit in units},
            "covered": covered(units, start, last),
            "first_step": first,
            "steps_made": max(last - first + 1, 0) if totals["count"] else 0,
            "totals": {**totals, "tokens": _tokens(asked, entry, summary["last_step_entry"])},
            "evals": shown[-12:][::-1],
            "eval_count": len(evals),
            "events": asked.signed.rows("run_events", events[-SHOWN_EVENTS:], run=entry),
            "event_count": len(events),
            "states": asked.signed.rows("states", states[-12:][::-1], run=entry),
            "state_count": len(states),
            "audits": audits,
            "more_audits": more_audits,
            "recent_steps": asked.records(
                "steps", "SELECT * FROM steps WHERE run = ? ORDER BY step DESC LIMIT 8", entry, run=entry
            ),
        },
    )


def datasets_of(asked: Asked, run: int) -> list[dict[str, Any]]:
    """The datasets that a run's genesis names, as their own entries have them, with the run's name for each and why."""
    used = asked.signed.of(run, "run_datasets")
    return [{**asked.given(one["dataset"], "datasets"), "name": one["name"], "role": one["role"]} for one in used]


def audits_of(asked: Asked, run: int) -> tuple[list[dict[str, Any]], list[Unit], bool]:
    """A run's newest audits, all their units, and whether there are older ones."""
    audits = asked.records(
        "audits", "SELECT * FROM audits WHERE run = ? ORDER BY entry DESC LIMIT ?", run, LISTED + 1, run=run
    )
    shown = audits[:LISTED]
    return shown, [Unit(*unit) for unit in _units(asked, shown)], len(audits) > LISTED


def units_over(asked: Asked, run: int, first: int, last: int) -> list[dict[str, Any]]:
    """The units of a run's audits that hold one of the steps `first` … `last`: first, last, outcome, audit."""
    query = "SELECT DISTINCT audit AS entry, run FROM audit_units JOIN audits ON audits.entry = audit"
    query += " WHERE run = ? AND last >= ? AND first <= ? ORDER BY audit LIMIT ?"
    audits = asked.records("audits", query, run, first, last, LISTED, run=run)
    found = [(audit["entry"], unit) for audit in audits for unit in asked.signed.of(audit["entry"], "audit_units")]
    return [{**unit, "audit": audit} for audit, unit in found if unit["last"] >= first and unit["first"] <= last]


def _units(asked: Asked, audits: list[dict[str, Any]]) -> Iterator[tuple[int, int, str, str]]:
    for audit in audits:
        for unit in asked.signed.of(audit["entry"], "audit_units"):
            yield unit["first"], unit["last"], unit["outcome"], asked.links.audit(audit["entry"])


def _tokens(asked: Asked, run: int, step: int | None) -> int:
    """The tokens that a run trained on itself, as its newest step counts them."""
    begun, last = asked.signed.entry(run, "run"), asked.signed.entry(step, "step")
    if begun is None or last is None:
        return 0
    tokens: int = last.predicate["computed"]["control"]["tokens"] - begun.predicate["control"]["tokens"]
    return tokens


def _count_chain(asked: Asked, newest: int, steps: int, *others: list[dict[str, Any]]) -> None:
    """Hold the numbers of a run's rows against the place in its chain that its newest entry signs."""
    entry = next((found for kind in CHAINED if (found := asked.signed.entry(newest, kind))), None)
    if entry is not None:
        asked.signed.expect(1 + steps + sum(map(len, others)), entry.predicate["seq"] + 1)


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
