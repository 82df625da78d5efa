"""The configuration in a genesis, as groups of names and values; floats are written there as the hex of their bits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import JsonError
from .display import bits_decimal

_F64 = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Setting:
    """One value; `bits` is set where it is a float."""

    name: str
    value: str
    bits: str | None = None


def grouped(config: dict[str, Any]) -> list[tuple[str, list[Setting]]]:
    """(group, settings): one group for each object at the top, and one named "" for the values beside them."""
    groups: dict[str, list[Setting]] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            groups.setdefault(name, []).extend(_settings(value, ""))
        else:
            groups.setdefault("", []).extend(_settings({name: value}, ""))
    return [(name, settings) for name, settings in groups.items() if settings]


def _settings(values: dict[str, Any], prefix: str) -> Iterator[Setting]:
    for name, value in values.items():
        full = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _settings(value, f"{full}.")
        elif isinstance(value, list):
            yield Setting(full, ", ".join(_shown(item)[0] for item in value) or "none")
        else:
            yield Setting(full, *_shown(value))


def _shown(value: Any) -> tuple[str, str | None]:
    if isinstance(value, bool):
        return ("yes" if value else "no"), None
    if isinstance(value, str) and _F64.fullmatch(value):
        try:
            return bits_decimal(value), value
        except JsonError:  # a NaN that is written otherwise; a genesis may hold any text
            return value, None
    return str(value), None
