"""How commands answer: results on stdout (a table, lines, or JSON), everything else on stderr.

What is printed can come from a file that somebody else made, so all of it goes through ledger/files/plain.py.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..files.plain import plain


def emit_json(value: Any) -> None:
    """Print one JSON value on stdout. Infinities and NaNs, which JSON cannot hold, become "inf", "-inf", "nan"."""
    sys.stdout.write(json_text(value))


def json_text(value: Any) -> str:
    """What emit_json prints."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def emit_json_list(items: Iterable[Mapping[str, Any]]) -> None:
    """Print a JSON list, one item a line, without holding it in memory."""
    separator = "["
    for item in items:
        sys.stdout.write(f"{separator}\n{json.dumps(item, ensure_ascii=True, allow_nan=False)}")
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def emit_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns; numbers to the right. Nothing is cut or wrapped, so that it can be piped."""
    lines = [[_text(cell) for cell in row] for row in (head, *(tuple(row) for row in rows))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    right = [all(_is_number(line[column]) for line in lines[1:]) for column in range(len(head))]
    for line in lines:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())


def emit_fields(fields: Mapping[str, object]) -> None:
    """Print `name  value` lines; values that are None are left out."""
    shown = {name: value for name, value in fields.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        print(f"{plain(name).ljust(width)}  {_text(value)}")


_VERDICTS = {True: "ok   ", False: "WRONG", None: "?    "}


def emit_checks(checks: Iterable[Mapping[str, Any]]) -> None:
    """Print one line for each check {"name", "ok", "detail"}, with its category where it has one."""
    for item in checks:
        category = f"{item['category']} " if "category" in item else ""
        # What went wrong with a file is said with its name already.
        detail = str(item["detail"]).removeprefix(f"{item['name']}: ")
        said = plain(f"{category}{item['name']}: {detail}")
        print(f"{_VERDICTS[item['ok']]}  {said}")


def counted(number: int, noun: str) -> str:
    """1 step, 2 steps."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def say(text: str) -> None:
    """Print one line of a result."""
    print(plain(text))


def note(text: str) -> None:
    """Say something that is not the result, in one line."""
    print(plain(text), file=sys.stderr)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain(str(value))


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace("e-", "", 1).lstrip("-").isdigit()
