"""A statement as readable JSON: indented, hashes that name other records as links, float bits with their decimal.

What is shown is for reading; the signed bytes are a download beside it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from markupsafe import Markup, escape

from ..errors import JsonError
from .display import bits_decimal
from .links import Links

_HASH = re.compile("[0-9a-f]{64}")
_FLOAT = re.compile("[0-9a-f]{8}|[0-9a-f]{16}")
_ENTRIES = frozenset({"run", "prev", "entry", "intent", "release"})
_KEYS = frozenset({"signer", "keyid", "replaces", "witness"})
_FLOATS = frozenset({"loss", "norm", "nll", "mean"})


def render(value: Any, links: Links) -> Markup:
    """The value as indented JSON in a <pre>'s inside."""
    return _value(value, (), "", links)


def _value(value: Any, path: tuple[str, ...], indent: str, links: Links) -> Markup:
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        rows = [
            Markup('{}<span class="k">{}</span>: {}').format(
                deeper, json.dumps(key), _value(item, (*path, key), deeper, links)
            )
            for key, item in value.items()
        ]
        return Markup("{{\n{}\n{}}}").format(Markup(",\n").join(rows), indent)
    if isinstance(value, list) and value:
        items = [Markup("{}{}").format(deeper, _value(item, path, deeper, links)) for item in value]
        return Markup("[\n{}\n{}]").format(Markup(",\n").join(items), indent)
    if isinstance(value, str):
        return _text(value, path, links)
    return escape(json.dumps(value, ensure_ascii=False))


def _text(value: str, path: tuple[str, ...], links: Links) -> Markup:
    quoted = json.dumps(value, ensure_ascii=False)
    shown = Markup('<span class="s">{}</span>').format(quoted)
    name = path[-1] if path else ""
    free = "config" in path
    if _HASH.fullmatch(value) and not free:
        if name in _ENTRIES:
            return Markup('<a href="{}">{}</a>').format(links.entry(value), shown)
        if name in _KEYS:
            return Markup('<a href="{}">{}</a>').format(links.key(value), shown)
    if _FLOAT.fullmatch(value) and (name in _FLOATS or "scalars" in path or free):
        try:
            return Markup('{}<span class="n"> {}</span>').format(shown, bits_decimal(value))
        except JsonError:
            pass
    return shown
