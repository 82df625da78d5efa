"""Datasets: the list, and one with the runs that read it."""

from __future__ import annotations

from .. import signed_rows
from ..answers import Asked, NotHere, Page
from ..evidence import evidence


def index(asked: Asked) -> Page:
    return Page(
        "datasets.html",
        "Datasets",
        "datasets",
        {"datasets": asked.records("datasets", "SELECT * FROM datasets ORDER BY entry DESC LIMIT 500")},
    )


def dataset(asked: Asked) -> Page:
    number = int(asked.parts["number"])
    row = asked.record("datasets", "SELECT * FROM datasets WHERE entry = ?", number)
    if row is None:
        raise NotHere(f"Entry {number} of this ledger is not a dataset.")
    runs = []
    for run in asked.records(
        "runs",
        "SELECT entry, name, time FROM runs WHERE entry IN (SELECT run FROM run_datasets WHERE dataset = ?)"
        " ORDER BY entry DESC LIMIT 200",
        number,
    ):
        used = asked.signed.of(run["entry"], "run_datasets")
        runs += [{**run, "role": use["role"]} for use in used if use["dataset"] == number]
    found = signed_rows.judged(asked, evidence(asked, number))
    return Page("dataset.html", row["name"], "datasets", {"dataset": row, "runs": runs, "found": found})
