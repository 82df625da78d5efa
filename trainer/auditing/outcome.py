"""What came of one unit of an audit: for the ledger, for people, and for the audit that goes on after a stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..sample import Unit
from .mismatch import FirstValue

Json = dict[str, Any]


def overall(outcomes: Iterable[str]) -> str:
    """A mismatch anywhere is a mismatch; a match needs all to be one; else the first outcome that is not a match."""
    found = list(outcomes)
    if "mismatch" in found:
        return "mismatch"
    return next((outcome for outcome in found if outcome != "match"), "match")


@dataclass(frozen=True)
class UnitResult:
    """One unit's outcome: match, mismatch, unavailable, redacted or inconclusive; only match covers.

    `reason` goes into the ledger, so it names no file and no document; `detail` is for whoever runs the audit.
    """

    unit: Unit
    outcome: str
    compared: tuple[int, ...] = ()
    reason: str | None = None
    detail: str | None = None
    found: Json | None = None
    differences: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    value: FirstValue | None = None
    """The first value that differs, where the trainer's own are at hand. Told, not signed."""
    part: str | None = None
    """Where only one part of a step was computed again."""
    start: int | None = None
    """The step of the state that the replay started from, which decides what the transcript has of this unit."""

    def to_json(self) -> Json:
        result: Json = {
            "cause": self.unit.cause,
            "first": self.unit.first,
            "last": self.unit.last,
            "outcome": self.outcome,
        }
        if self.start is not None:
            result["start"] = self.start
        if self.part is not None:
            result["part"] = self.part
        if self.reason is not None:
            result["reason"] = self.reason.encode("ascii", "replace").decode("ascii")[:200]
        if self.found is not None:
            result["found"] = self.found
        return result

    def kept(self) -> Json:
        """All of it, as plain JSON."""
        return {
            "cause": self.unit.cause,
            "compared": list(self.compared),
            "detail": self.detail,
            "differences": {name: list(values) for name, values in self.differences.items()},
            "first": self.unit.first,
            "found": self.found,
            "last": self.unit.last,
            "outcome": self.outcome,
            "part": self.part,
            "reason": self.reason,
            "start": self.start,
            "value": None if self.value is None else self.value.to_json(),
        }

    @classmethod
    def restored(cls, kept: Json) -> UnitResult:
        """What `kept` gave."""
        return cls(
            Unit(kept["first"], kept["last"], kept["cause"]),
            kept["outcome"],
            tuple(kept["compared"]),
            kept["reason"],
            kept["detail"],
            kept["found"],
            {name: (values[0], values[1]) for name, values in kept["differences"].items()},
            None if kept["value"] is None else FirstValue.from_json(kept["value"]),
            part=kept["part"],
            start=kept["start"],
        )


def unproven(chosen: list[Unit], reason: str) -> list[UnitResult]:
    """The units of an audit whose machine failed: none is compared, none is a mismatch."""
    return [UnitResult(unit, "inconclusive", (), reason) for unit in chosen]
