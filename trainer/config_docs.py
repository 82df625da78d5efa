"""The page docs/run-config.md, made from the configuration's own declarations.

python -m bitwitness.trainer.config_docs docs/run-config.md           writes it
python -m bitwitness.trainer.config_docs --check docs/run-config.md   exit 1 if it is stale
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo

from .config import RunConfig
from .models.presets import PRESETS

HEAD = """# The run configuration

This page is generated: `make docs`. `ledger train run.toml` reads sections of keys; an unknown key is an error that
names it. The genesis of the run records every key, defaults included, so nothing about a run is implied.
"""


def page() -> str:
    sections = [_section(name, kind) for name, field in RunConfig.model_fields.items() for kind in _kinds(field)]
    return HEAD + "".join(sections) + _presets()


def _kinds(field: FieldInfo) -> list[Any]:
    """The section of a field, or each that may stand there."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]


def _section(name: str, kind: Any) -> str:
    lines = [f"\n## [{name}]\n\n{kind.__doc__.strip()}\n\n| key | value | default | |\n|---|---|---|---|\n"]
    for key, item in kind.model_fields.items():
        default = "required" if item.is_required() else _default(item)
        lines.append(f"| `{item.alias or key}` | {_values(item.annotation)} | {default} | {item.description or ''} |\n")
    return "".join(lines)


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    if value is None or value in ((), {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _values(kind: Any) -> str:
    names = {int: "integer", float: "number", str: "text", bool: "true or false"}
    if kind in names:
        return names[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        return "table"
    if origin is tuple:
        return "list of text"
    values = [item for item in arguments if item is not type(None)]
    if any(get_origin(item) is dict for item in values):
        return "table"
    if all(isinstance(item, (str, int)) for item in values):
        return ", ".join(f"`{str(item).lower() if isinstance(item, bool) else item}`" for item in values)
    return "text"


def _presets() -> str:
    keys = list(PRESETS["nano"])
    rows = [
        f"| `{name}` | " + " | ".join(f"{fields[key]:,}" for key in keys) + " |\n" for name, fields in PRESETS.items()
    ]
    head = f"| preset | {' | '.join(keys)} |\n|{'---|' * (len(keys) + 1)}\n"
    text = "\n## Presets\n\n`[model]` may name a `preset` and override any of its keys. `open-1b` is not tied.\n\n"
    return text + head + "".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Write or check the page; 0 if it is up to date afterwards."""
    path = Path(arguments[-1])
    if arguments[0] != "--check":
        path.write_text(page(), encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == page():
        return 0
    print(f"{path} is stale; run make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
