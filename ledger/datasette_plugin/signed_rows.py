"""Rows of the derived tables with their numbers taken from the entries that they come from.

Whoever can write the file can edit a table, and an edited number must not stand on a page as if it had been signed. So
what pages show of single steps and evals is read from the entry of each row, and a row that says otherwise is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import jcs
from ..entries import kind_of
from ..envelope import open_envelope
from ..errors import BitwitnessError
from ..verify import Check
from .answers import Asked

DIFFERS = "the derived tables differ from the signed entry: they were edited, see `ledger fsck`"


def steps(asked: Asked, run: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `steps` of the run with this hash, with the signed values; ``edited`` says which row had others."""
    return [_signed(asked, run, "step", row) for row in rows]


def evals(asked: Asked, run: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As `steps`, of rows of `evals`."""
    return [_signed(asked, run, "eval", row) for row in rows]


def check(row: Mapping[str, Any]) -> Check:
    """Whether the row that led to an entry says what the entry does, as a check of the entry's page."""
    if row["edited"]:
        return Check("tables", False, DIFFERS)
    return Check("tables", True, "the row of the derived tables says what the entry does")


def _signed(asked: Asked, run: str, kind: str, row: dict[str, Any]) -> dict[str, Any]:
    try:
        statement = open_envelope(asked.ledger.entry(row["entry"])).statement
        said = statement["predicate"]
        if kind_of(statement) != kind or said["run"] != run:
            raise KeyError
        values = _of_step(said) if kind == "step" else _of_eval(said)
    except (BitwitnessError, KeyError):
        # Not the entry of such a row at all: none of its numbers is signed.
        unknown = dict.fromkeys((*_STEP, *_EVAL)).items()
        return {**row, **{name: value for name, value in unknown if name in row and name != "step"}, "edited": True}
    return {**row, **values, "edited": any(row[name] != value for name, value in values.items())}


_STEP = (
    "loss", "loss_bits", "norm", "norm_bits", "learning_rate", "learning_rate_bits", "tokens", "seconds", "weights"
)  # fmt: skip
_EVAL = ("name", "mean", "mean_bits", "tokens")


def _of_step(said: Mapping[str, Any]) -> dict[str, Any]:
    computed, rate = said["computed"], said["computed"]["scalars"].get("learning_rate")
    microseconds = said["observed"].get("seconds_us")
    return {
        "step": computed["step"],
        "loss": _real(jcs.f64_from_hex(computed["loss"])),
        "loss_bits": computed["loss"],
        "norm": _real(jcs.f64_from_hex(computed["norm"])),
        "norm_bits": computed["norm"],
        "learning_rate": None if rate is None else _real(jcs.f32_from_hex(rate)),
        "learning_rate_bits": rate,
        "tokens": computed["tokens"],
        "seconds": None if microseconds is None else microseconds / 1e6,
        "weights": computed["weights"]["root"],
    }


def _of_eval(said: Mapping[str, Any]) -> dict[str, Any]:
    computed = said["computed"]
    return {
        "step": said["step"],
        "name": said["dataset"]["name"],
        "mean": _real(jcs.f64_from_hex(computed["mean"])),
        "mean_bits": computed["mean"],
        "tokens": computed["tokens"],
    }


def _real(value: float) -> float | None:
    """As SQLite keeps it: it has no NaN."""
    return None if value != value else value
