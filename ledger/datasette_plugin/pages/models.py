"""Models: the list, the versions of one, and one version with the chain from its weights to the data."""

from __future__ import annotations

from typing import Any

from .. import signed_rows
from ..answers import Asked, NotHere, Page
from ..evidence import evidence
from ..strip import coverage_strip
from .runs import audits_of, datasets_of, steps_of

SHOWN = 200


def newest_models(asked: Asked) -> list[dict[str, Any]]:
    """The newest version of every model, with its run, in order of name."""
    rows = asked.records("releases", "SELECT * FROM models ORDER BY model LIMIT ?", SHOWN)
    return [{**row, **_said_of(asked, row["entry"])} for row in rows]


def _said_of(asked: Asked, release: int) -> dict[str, Any]:
    """What publishers say of a release now: the aliases that name it, and the word that took it back, if one did."""
    aliases = [
        row["alias"]
        for row in asked.records(
            "endorsements", "SELECT * FROM aliases WHERE release = ?", release, release=release, statement="alias"
        )
    ]
    query = "SELECT entry, release, state AS statement, reason FROM release_states WHERE release = ?"
    word = asked.record("endorsements", query, release, release=release)
    return {"aliases": sorted(aliases), "state": None if word is None else word["statement"], "word": word}


def index(asked: Asked) -> Page:
    return Page("models.html", "Models", "models", {"models": newest_models(asked)})


def model(asked: Asked) -> Page:
    name = asked.parts["name"]
    versions = asked.records(
        "releases", "SELECT * FROM releases WHERE model = ? ORDER BY version DESC", name, model=name
    )
    if not versions:
        raise NotHere(f"This ledger has no model named {name}.")
    versions = [{**row, **_said_of(asked, row["entry"])} for row in versions]
    return Page("model.html", name, "models", {"name": name, "versions": versions})


def version(asked: Asked) -> Page:
    name, number = asked.parts["name"], int(asked.parts["number"])
    query = "SELECT * FROM releases WHERE model = ? AND version = ?"
    release = asked.record("releases", query, name, number, model=name, version=number)
    if release is None:
        raise NotHere(f"This ledger has no version {number} of a model named {name}.")
    run = asked.given(release["run"], "runs")
    audits, units, more_audits = audits_of(asked, release["run"])
    states = asked.rows("SELECT step FROM states WHERE run = ? ORDER BY step", release["run"])
    first, last = steps_of(asked, release["run"])
    query = "SELECT * FROM release_files WHERE release = ? ORDER BY position"
    files = asked.signed.of(release["entry"], "release_files", asked.rows(query, release["entry"]))
    found = evidence(asked, release["entry"])
    words = asked.records(
        "endorsements",
        "SELECT * FROM endorsements WHERE release = ? ORDER BY entry",
        release["entry"],
        release=release["entry"],
    )
    said = _said_of(asked, release["entry"])
    sources = signed_rows.sources(asked, found)
    lineage = _lineage(asked, run, release["step"])
    evals = asked.records(
        "evals",
        "SELECT * FROM evals WHERE run = ? AND step = ? ORDER BY entry",
        release["run"],
        release["step"],
        run=release["run"],
    )
    return Page(
        "version.html",
        f"{name} {number}",
        "models",
        {
            "release": release,
            "aliases": said["aliases"],
            "state": said["word"],
            "files": files,
            "sources": sources,
            "lineage": lineage,
            "audits": audits,
            "more_audits": more_audits,
            "strip": coverage_strip(units, [state["step"] for state in states], start=first - 1, last=last),
            "outcomes": {unit.outcome for unit in units},
            "evals": [] if sources else evals,  # a merge or cast has other weights than the step that was measured
            "endorsements": words,
            "found": signed_rows.judged(asked, found),
        },
    )


def _lineage(asked: Asked, run: dict[str, Any], step: int) -> list[dict[str, Any]]:
    """The runs from the released one back to the first, each with the step taken from it and its datasets."""
    line: list[dict[str, Any]] = []
    current: dict[str, Any] | None = run
    while current is not None and len(line) < 20:
        entry = current["entry"]
        query = "SELECT * FROM steps WHERE run = ? AND step = ?"
        taken = asked.record("steps", query, entry, step, run=entry, step=step)
        line.append(
            {
                "run": current,
                "step": step,
                "step_entry": taken["entry"] if taken else None,
                "weights": taken["weights"] if taken else current["weights"] if step == 0 else None,
                "datasets": datasets_of(asked, entry),
            }
        )
        step, parent = current["parent_step"], current["parent"]
        current = None if parent is None else asked.given(parent, "runs")
    return line
