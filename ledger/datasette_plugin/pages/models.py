"""Models: the list, the versions of one, and one version with the chain from its weights to the data."""

from __future__ import annotations

import json
from typing import Any

from .. import signed_rows
from ..answers import Asked, NotHere, Page
from ..evidence import evidence
from ..strip import coverage_strip
from .runs import audits_of, steps_of

SHOWN = 200


# Joined to `releases` (or `models`): what publishers say of a release now. Names are JSON, since one may hold a comma.
_SAID = (
    " (SELECT json_group_array(alias) FROM aliases WHERE aliases.release = {0}.entry) AS aliases,"
    " (SELECT state FROM release_states WHERE release_states.release = {0}.entry) AS state"
)


def newest_models(asked: Asked) -> list[dict[str, Any]]:
    """The newest version of every model, with its run, in order of name."""
    rows = asked.rows(
        f"SELECT models.*, runs.name AS run_name, {_SAID.format('models')} FROM models"
        " JOIN runs ON runs.entry = models.run ORDER BY model LIMIT ?",
        SHOWN,
    )
    return [{**row, "aliases": sorted(json.loads(row["aliases"]))} for row in rows]


def index(asked: Asked) -> Page:
    return Page("models.html", "Models", "models", {"models": newest_models(asked)})


def model(asked: Asked) -> Page:
    name = asked.parts["name"]
    versions = asked.rows(
        f"SELECT releases.*, runs.name AS run_name, keys.keyid, keys.name AS publisher_name, {_SAID.format('releases')}"
        " FROM releases"
        " JOIN runs ON runs.entry = releases.run JOIN keys ON keys.entry = releases.publisher"
        " WHERE model = ? ORDER BY version DESC",
        name,
    )
    if not versions:
        raise NotHere(f"This ledger has no model named {name}.")
    versions = [{**row, "aliases": sorted(json.loads(row["aliases"]))} for row in versions]
    return Page("model.html", name, "models", {"name": name, "versions": versions})


def version(asked: Asked) -> Page:
    name, number = asked.parts["name"], int(asked.parts["number"])
    release = asked.row("SELECT * FROM releases WHERE model = ? AND version = ?", name, number)
    if release is None:
        raise NotHere(f"This ledger has no version {number} of a model named {name}.")
    run = asked.row("SELECT * FROM runs WHERE entry = ?", release["run"])
    if run is None:
        raise NotHere("The run of this release is not in this ledger.")
    audits, units = audits_of(asked, release["run"])
    states = asked.rows("SELECT step FROM states WHERE run = ? ORDER BY step", release["run"])
    first, last = steps_of(asked, release["run"])
    files = asked.rows("SELECT * FROM release_files WHERE release = ? ORDER BY position", release["entry"])
    found = evidence(asked, release["entry"])
    words = asked.rows(
        "SELECT endorsements.*, keys.keyid, keys.role, keys.name AS key_name FROM endorsements"
        " JOIN keys ON keys.entry = signer WHERE release = ? ORDER BY endorsements.entry",
        release["entry"],
    )
    return Page(
        "version.html",
        f"{name} {number}",
        "models",
        {
            "release": release,
            "aliases": asked.rows(
                "SELECT alias, entry FROM aliases WHERE release = ? ORDER BY alias", release["entry"]
            ),
            "state": asked.row("SELECT * FROM release_states WHERE release = ?", release["entry"]),
            "files": files,
            "sources": signed_rows.sources(asked, found),
            "lineage": _lineage(asked, run, release["step"]),
            "audits": audits,
            "strip": coverage_strip(units, [state["step"] for state in states], start=first - 1, last=last),
            "outcomes": {unit.outcome for unit in units},
            "evals": signed_rows.evals(
                asked,
                run["hash"],
                asked.rows(
                    "SELECT * FROM evals WHERE run = ? AND step = ? ORDER BY entry", release["run"], release["step"]
                ),
            ),
            "endorsements": words,
            "found": signed_rows.version_page(asked, found, release, run, files, words),
        },
    )


def _lineage(asked: Asked, run: dict[str, Any], step: int) -> list[dict[str, Any]]:
    """The runs from the released one back to the first, each with the step taken from it and its datasets."""
    line: list[dict[str, Any]] = []
    current: dict[str, Any] | None = run
    while current is not None and len(line) < 20:
        taken = asked.row("SELECT entry, weights FROM steps WHERE run = ? AND step = ?", current["entry"], step)
        line.append(
            {
                "run": current,
                "step": step,
                "step_entry": taken["entry"] if taken else None,
                "weights": taken["weights"] if taken else current["weights"] if step == 0 else None,
                "datasets": asked.rows(
                    "SELECT run_datasets.name, role, datasets.entry, documents, tokens, root, visibility"
                    " FROM run_datasets JOIN datasets ON datasets.entry = run_datasets.dataset"
                    " WHERE run = ? ORDER BY position",
                    current["entry"],
                ),
            }
        )
        step = current["parent_step"]
        parent = current["parent"]
        current = None if parent is None else asked.row("SELECT * FROM runs WHERE entry = ?", parent)
    return line
