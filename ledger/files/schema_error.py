"""What a schema found wrong, as one clear line for people: `run.steps: must be greater than 0`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # whoever raises it has pydantic; the ledger itself does without
    from pydantic import ValidationError

_SUBJECT = re.compile(r"^(?:Value error, |(?:Input|String|List|Tuple|Dictionary|Value) should )")


def first_reason(error: ValidationError, *, whole: str = "") -> str:
    """The first thing that is wrong. `whole` is what to call a file in which no single field is to blame."""
    return reason(error.errors(include_url=False)[0], whole=whole)


def reason(item: Mapping[str, Any], *, where: Sequence[object] | None = None, whole: str = "") -> str:
    """One item of `ValidationError.errors()`; `where` is its path, if people know it by another than the schema's."""
    path = ".".join(str(part) for part in (item["loc"] if where is None else where)) or whole
    if item["type"] == "extra_forbidden":
        return f"unknown key {path}"
    if item["type"] == "missing":
        return f"the key {path} is missing"
    message = _SUBJECT.sub(lambda match: "must " if match[0].endswith("should ") else "", str(item["msg"]))
    named = not path or message.startswith((f"{path}.", f"{path}: ", f"{path} "))
    return message if named else f"{path}: {message}"
