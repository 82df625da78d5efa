"""What the gate reports: one line per check, each of one category, and the exit code they add up to.

CRYPTO says that the bytes are what was signed and logged, POLICY that the consumer's rules hold, ASSURANCE
how much that is worth (who else saw the log). ``ok`` is True, False (found wrong) or None (not checkable).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

Category = Literal["CRYPTO", "POLICY", "ASSURANCE"]
CLOCK_SKEW = timedelta(minutes=10)
"""By so much clocks may differ: a time that is later yet is in the future."""


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool | None
    detail: str
    category: Category
    required: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            "detail": self.detail,
            "category": self.category,
            "required": self.required,
        }


def together(parts: Sequence[tuple[str, Check]]) -> Check:
    """One check of the same one made on several things, each named: as bad as the worst, whose reasons it gives."""
    (_, first), *others = parts
    if not others:
        return first
    results = {check.ok for _, check in parts}
    ok = False if False in results else None if None in results else True
    said = "; ".join(f"{name}: {check.detail}" for name, check in parts if check.ok is ok)
    return Check(first.name, ok, said, first.category, any(check.required for _, check in parts))


def reasons(checks: Iterable[Check]) -> list[str]:
    """One line for each check that keeps the model from being verified."""
    return [f"{item.name}: {item.detail}" for item in checks if item.ok is False or (item.ok is None and item.required)]


def exit_code(checks: Iterable[Check]) -> int:
    """1 if anything was found wrong, else 2 if a required check could not be made, else 0."""
    listed = list(checks)
    if any(check.ok is False for check in listed):
        return 1
    if any(check.ok is None and check.required for check in listed) or not listed:
        return 2
    return 0
