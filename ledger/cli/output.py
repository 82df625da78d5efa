"""How commands answer: results on stdout (a table, lines, or JSON), everything else on stderr.

What is printed can come from a file that somebody else made, so all of it goes through ledger/files/plain.py.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from ..files.plain import plain


class _Pipe(io.FileIO):
    """Standard output whose reader may go away (head, less): nothing that a command does, or finds, is then another."""

    gone = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self.gone = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def heard_or_not(stream: TextIO) -> TextIO:
    """The standard output, as it was opened, so that a reader who has gone is no error."""
    buffer: Any = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(stream, io.TextIOWrapper) or type(raw) is not io.FileIO:
        return stream
    stream.flush()
    pipe: Any = _Pipe(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        pipe if buffer is raw else io.BufferedWriter(pipe),  # the former: PYTHONUNBUFFERED
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _reader_is_gone() -> bool:
    buffer = getattr(sys.stdout, "buffer", None)
    return getattr(getattr(buffer, "raw", buffer), "gone", False)


def drop_unsaid() -> None:
    """After an error of writing to it: Python must not try once more at its end, which would change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


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
        if _reader_is_gone():
            return
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
    """Say something that is not the result, in one line. That nobody can hear it changes no result."""
    try:
        print(plain(text), file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


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
