"""The page docs/cli.md, made from the commands' help texts.

python -m bitwitness.ledger.cli.docs docs/cli.md           writes it
python -m bitwitness.ledger.cli.docs --check docs/cli.md   exit 1 if it is stale
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer.main

HEAD = """# The `ledger` command

This page is generated: `make docs`. Results go to stdout, progress and notes to stderr.
"""

_WIDTH = 100


def page() -> str:
    """The whole page: the overview, then each command's help."""
    # Help must not depend on who asks for it, where.
    os.environ.update(COLUMNS=str(_WIDTH), TERMINAL_WIDTH=str(_WIDTH), NO_COLOR="1")
    from . import app

    root = typer.main.get_command(app)
    return HEAD + "".join(_section(names, text) for names, text in _helps(root, ("ledger",), None))


def _helps(command: Any, names: tuple[str, ...], parent: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    context = command.make_context(
        names[-1], [], parent=parent, resilient_parsing=True, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    yield names, command.get_help(context)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from _helps(command.get_command(context, name), (*names, name), context)


def _section(names: tuple[str, ...], text: str) -> str:
    title = "" if len(names) == 1 else f"\n## `{' '.join(names)}`\n"
    body = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return f"{title}\n```text\n{body}\n```\n"


def main(arguments: Sequence[str]) -> int:
    """Write or check the page; 0 if it is up to date afterwards."""
    check = arguments[:1] == ["--check"]
    path = Path(arguments[-1])
    text = page()
    if not check:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{path} is stale; run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
