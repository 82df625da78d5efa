"""The tables of docs/formats/entries.md, written from the code that checks entries (`cog -r` calls this)."""

from __future__ import annotations

from collections.abc import Iterator

from bitwitness.ledger.entry import entries
from bitwitness.ledger.entry._fields import Field


def tables() -> str:
    """Markdown: one section for each kind."""
    return "\n".join(_section(kind) for kind in entries.KINDS.values())


def _section(kind: entries.Kind) -> str:
    subjects = " and ".join(f"`{s.name}`, `{s.algorithm}` = `{s.path}`" for s in kind.subjects)
    lines = [
        f"### {kind.name}",
        "",
        kind.text,
        "",
        f"Signed by: {' or '.join(kind.roles)}{_reserved(kind)}. Subject: {subjects}.",
        "",
        "| field | type | |",
        "|---|---|---|",
        *(f"| `{path}` | {text} | {note} |" for path, text, note in _rows(kind.fields, "")),
    ]
    if kind.rules:
        lines += ["", "Also: " + "; ".join(text for text, _rule in kind.rules) + "."]
    return "\n".join([*lines, ""])


def _reserved(kind: entries.Kind) -> str:
    if kind.reserved is None:
        return ""
    field, values, roles = kind.reserved
    return f"; with {field} {', '.join(f'`{value}`' for value in values)}: {' or '.join(roles)} only"


def _rows(fields: tuple[Field, ...], prefix: str) -> Iterator[tuple[str, str, str]]:
    for field in fields:
        path = prefix + field.name
        marks = []
        if field.optional:
            marks.append("optional")
        if field.when is not None:
            marks.append(f"exactly with {field.when[0]} `{field.when[1]}`")
        if field.note:
            marks.append(field.note)
        yield path, field.type.text.replace("|", "\\|"), "; ".join(marks)
        listed = "[]." if field.type.text.startswith("list") else "."
        yield from _rows(field.type.parts, path + listed)
