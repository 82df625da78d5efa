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
        {"datasets": asked.rows("SELECT * FROM datasets ORDER BY entry DESC LIMIT 500")},
    )


def dataset(asked: Asked) -> Page:
    number = int(asked.parts["number"])
    row = asked.row("SELECT * FROM datasets WHERE entry = ?", number)
    if row is None:
        raise NotHere(f"Entry {number} of this ledger is not a dataset.")
    runs = asked.rows(
        "SELECT runs.name, runs.entry, run_datasets.role, runs.time FROM run_datasets"
        " JOIN runs ON runs.entry = run_datasets.run WHERE dataset = ? ORDER BY runs.entry DESC LIMIT 200",
        number,
    )
    context = {"dataset": row, "runs": runs, "found": signed_rows.dataset_page(evidence(asked, number), row)}
    return Page("dataset.html", row["name"], "datasets", context)
