"""Rows of the derived tables with their numbers taken from the entries that they come from.

Whoever can write the file can edit a table, and an edited number must not stand on a page as if it had been signed. So
what pages show of single steps and evals is read from the entry of each row, and a row that says otherwise is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import jcs
from ..entries import kind_of
from ..envelope import open_envelope
from ..errors import BitwitnessError
from ..verify import Check
from .answers import Asked
from .evidence import Evidence

DIFFERS = "the derived tables differ from the signed entry: they were edited, see `ledger fsck`"


def steps(asked: Asked, run: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `steps` of the run with this hash, with the signed values; ``edited`` says which row had others."""
    return [_signed(asked, run, "step", row) for row in rows]


def evals(asked: Asked, run: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As `steps`, of rows of `evals`."""
    return [_signed(asked, run, "eval", row) for row in rows]


def step_page(found: Evidence, row: Mapping[str, Any], step: int) -> Evidence:
    """The evidence for a step, with whether the row that led to it says what it does. ``row`` is one of `steps`."""
    return _judged(found, row["edited"] or row["step"] != step)


def dataset_page(found: Evidence, row: Mapping[str, Any]) -> Evidence:
    """As `step_page`, of a dataset."""
    if found.kind != "dataset":
        return _judged(found, True)
    said = found.predicate
    signed = {
        name: said.get(name) for name in ("name", "documents", "tokens", "bytes", "visibility", "license", "time")
    }
    signed |= {"root": said["dataset"]["root"], "size": said["dataset"]["size"]}
    signed |= {"tokenizer": said["tokenizer"]["name"], "vocabulary": said["tokenizer"]["vocabulary"]}
    return _judged(found, _differs(row, signed))


def audit_page(
    found: Evidence, row: Mapping[str, Any], run: Mapping[str, Any], units: Sequence[Mapping[str, Any]]
) -> Evidence:
    """As `step_page`, of an audit with its units."""
    if found.kind != "audit":
        return _judged(found, True)
    said = found.predicate
    signed = {name: said[name] for name in ("basis", "result", "steps")} | {"time": said["observed"]["time"]}
    differs = _differs(row, signed) or run["hash"] != said["run"] or len(units) != len(said["units"])
    for unit, stated in zip(units, said["units"], strict=False):
        partial = "part" in stated and stated["outcome"] == "match"
        whole = {name: stated.get(name) for name in ("first", "last", "cause", "reason")}
        differs = differs or _differs(unit, whole | {"outcome": "partial" if partial else stated["outcome"]})
    return _judged(found, differs)


def version_page(
    asked: Asked,
    found: Evidence,
    row: Mapping[str, Any],
    run: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    words: Sequence[Mapping[str, Any]],
) -> Evidence:
    """As `step_page`, of a release with its files and with what was said of it."""
    if found.kind != "release":
        return _judged(found, True)
    said = found.predicate
    signed = {name: said.get(name) for name in ("model", "version", "step", "state", "dtype", "license", "time")}
    differs = _differs(row, signed | {"weights": said["weights"]["root"]}) or run["hash"] != said["run"]
    differs = differs or [{name: file[name] for name in ("name", "sha256", "bytes")} for file in files] != said["files"]
    for word in words:
        spoken = open_envelope(asked.ledger.entry(word["entry"])).statement["predicate"]
        stated = {name: spoken.get(name) for name in ("statement", "alias", "reason", "policy", "time")}
        differs = differs or spoken.get("release") != found.leaf_hash or _differs(word, stated)
    return _judged(found, differs)


def sources(asked: Asked, found: Evidence) -> list[dict[str, Any]]:
    """The releases that a release derives from, as their own entries have them: name, place in the log, run, factor."""
    shown = []
    for item in found.predicate.get("derivation", {}).get("sources", ()):
        index = asked.ledger.find(bytes.fromhex(item["release"]))
        if index is None:
            continue  # no ledger takes a release without its sources; fsck tells where one is gone
        said = open_envelope(asked.ledger.entry(index)).statement["predicate"]
        run = asked.row("SELECT name FROM runs WHERE hash = ?", said["run"])
        factor = f"{jcs.f32_from_hex(item['factor']):g}" if "factor" in item else None
        named = {name: said[name] for name in ("model", "version", "step")}
        shown.append({**named, "entry": index, "run": None if run is None else run["name"], "factor": factor})
    return shown


def _judged(found: Evidence, differs: bool) -> Evidence:
    """The evidence with one check more: a page whose rows differ from the entry says so where it says `verified`."""
    said = DIFFERS if differs else "the rows of the derived tables say what the entry does"
    return replace(found, checks=(*found.checks, Check("tables", not differs, said)))


def _differs(row: Mapping[str, Any], signed: Mapping[str, Any]) -> bool:
    return any(row[name] != value for name, value in signed.items())


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
