"""`ledger model import`: models that come from, and go to, other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwitness.ledger.cli_options import JsonOption, current_project
from bitwitness.ledger.cli_output import emit_json, note


def import_(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="A checkpoint's folder, or that of a hub's cache.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What this project calls it.")],
    json_output: JsonOption = False,
) -> None:
    """Import a Llama checkpoint as the start of runs: `from = "import:NAME"` in [run] of a run.toml.

    Reads config.json and safetensors (F32, BF16, F16; sharded, too), widens exactly to float32, and writes
    imports/NAME. The genesis of such a run names the SHA-256 of every file and the root of the weights.

    Example: ledger model import ~/models/tiny-llama tiny-llama
    """
    from bitwitness.trainer.imports import import_checkpoint, imports_dir  # brings torch

    project = current_project()
    made = import_checkpoint(source, imports_dir(project), name)
    if json_output:
        emit_json({"name": made.name, **made.init(), "model": made.model.model_dump()})
        return
    print(f"{made.name}: {len(made.files)} files, weights {made.weights.root}")
    note(f'begin a run with it: from = "import:{made.name}" in [run]; its [model] may be left out')
