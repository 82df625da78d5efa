"""`ledger model`: make versions of models, list them, show where they come from, verify them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import emit_json, emit_json_list, emit_table, note, say
from bitwitness.ledger.cli.verify import (
    JunitOption,
    PolicyOption,
    SarifOption,
    SignWithOption,
    SourceOption,
    StateOption,
    StatusOption,
    TensorOption,
    VsaOption,
    examine_model,
    finish,
    model_options,
)
from bitwitness.ledger.files.sizes import parse_size

from .. import catalog
from ..catalog_tree import tree_lines
from ..register import register as make_version
from . import exchange, versions
from .options import SIZE_HELP, VersionArgument, WitnessesOption, WitnessOption, cosigner

model = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help=(
        "Models: register, verify, list, show, diff, alias, deprecate, revoke, refresh, timestamp, import, export, "
        "cast, merge."
    ),
)
model.command("import")(exchange.import_)
for command in (
    versions.alias,
    versions.deprecate,
    versions.revoke,
    versions.refresh,
    versions.timestamp,
    versions.diff,
):
    model.command()(command)
model.command()(exchange.export)
model.command()(exchange.cast)
model.command()(exchange.merge)
model.command()(exchange.audit)


@model.command()
def register(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the model: A-Z a-z 0-9 . _ -")],
    run: Annotated[str, typer.Option(metavar="RUN", help="The run whose weights are released: name or hash.")],
    step: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="A step with a stored state; the last unless given.")
    ] = None,
    license: Annotated[str | None, typer.Option(metavar="SPDX", help="Licence of the model.")] = None,
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help=SIZE_HELP)] = "5GB",
    witness: WitnessOption = None,
    witnesses: WitnessesOption = False,
    json_output: JsonOption = False,
) -> None:
    """Release a stored state of a run as the next version of a model.

    The weights are hashed and compared with the ledger first. Writes models/NAME/VERSION with model.safetensors,
    config.json (model.json for a model of your own) and provenance.json, and appends a signed release, a status and a
    checkpoint to the ledger.

    Example: ledger model register demo-lm --run demo
    """
    project = current_project()

    made = make_version(
        project,
        name,
        run,
        step=step,
        license=license,
        shard_bytes=parse_size(shard_size),
        cosign=cosigner(project, witness, witnesses),
    )
    for warning in made.warnings:
        note(f"warning: {warning}")
    if json_output:
        emit_json(made.to_json())
        return
    say(f"{made.model}/{made.version}: step {made.step}, weights {made.weights.root}, log entry {made.index}")
    folder = made.path.relative_to(Path.cwd()) if made.path.is_relative_to(Path.cwd()) else made.path
    note(f"wrote {folder}; check it with: ledger model verify {folder} --policy trust.toml")


@model.command("list")
def list_(json_output: JsonOption = False) -> None:
    """List all released versions.

    Example: ledger model list
    """
    rows = catalog.list_models(current_project())
    if json_output:
        emit_json_list(rows)
        return
    columns = ("model", "version", "run", "step", "license", "time", "entry", "state")
    emit_table(
        (*columns, "aliases", "on disk", "weights"),
        [
            [
                *(row.get(c) for c in columns),
                ", ".join(row["aliases"]) or None,
                "yes" if row["on_disk"] else "no",
                row["weights"][:16] + "…",
            ]
            for row in rows
        ],
    )


@model.command()
def show(
    name: VersionArgument,
    json_output: JsonOption = False,
) -> None:
    """Show where a model comes from (run, parents, step, data, code, evals, audits) and what was said of it.

    Example: ledger model show demo-lm/1
    """
    shown = catalog.show_model(current_project(), name)
    if json_output:
        emit_json(shown)
        return
    for line in tree_lines(shown):
        say(line)


@model.command()
def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR|MODEL", help="The folder of a version, or its name in the project.")
    ],
    policy: PolicyOption = None,
    tensor: TensorOption = None,
    state: StateOption = None,
    status: StatusOption = None,
    source: SourceOption = None,
    vsa: VsaOption = None,
    sign_with: SignWithOption = None,
    junit: JunitOption = None,
    sarif: SarifOption = None,
    json_output: JsonOption = False,
) -> None:
    """Verify a model's folder offline, trusting only the policy's keys. Nothing but a model passes.

    Exit code 0: verified. 1: found wrong. 2: could not be checked.

    Example: ledger model verify models/demo-lm/1 --policy trust.toml
    """
    checks = examine_model(folder, policy, model_options(tensor, state, status, source, vsa, sign_with))
    said = ("verified", "found wrong", "could not be checked")
    finish(
        checks, "model", str(folder), junit, sarif, json_output, {code: f"{folder}: {said[code]}" for code in range(3)}
    )
