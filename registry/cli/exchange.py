"""`ledger model import | export | cast | merge | audit`: models from and for other programs, and derived ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import counted, emit_json, note
from bitwitness.ledger.files.sizes import parse_size

from ..derive import Derived, parse_part
from ..derive import audit as audit_version
from ..derive import cast as cast_version
from ..derive import merge as merge_versions
from ..interop.export import export as export_version
from .options import SIZE_HELP, VersionArgument, WitnessesOption, WitnessOption, cosigner


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
    from bitwitness.trainer.models.imports import import_checkpoint, imports_dir  # brings numpy

    project = current_project()
    made = import_checkpoint(source, imports_dir(project), name)
    if json_output:
        emit_json({"name": made.name, **made.init(), "model": made.model.model_dump()})
        return
    print(f"{made.name}: {counted(len(made.files), 'file')}, weights {made.weights.root}")
    note(f'begin a run with it: from = "import:{made.name}" in [run]; its [model] may be left out')


def export(
    name: VersionArgument,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help=SIZE_HELP)] = "5GB",
    slsa: Annotated[bool, typer.Option("--slsa", help="Add SLSA provenance v1, signed by the publisher.")] = False,
    cyclonedx: Annotated[bool, typer.Option("--cyclonedx", help="Add an ML-BOM, CycloneDX 1.6.")] = False,
    oms: Annotated[
        bool, typer.Option("--oms", help="Add model.sig, an OpenSSF signature by keys/oms.pem (P-256).")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Write a version as a folder that `transformers` loads and that `ledger verify` still verifies.

    config.json, model.safetensors or shards with an index, the tokenizer, a model card, provenance.json. Of a model of
    your own, model.json in the place of config.json: `transformers` does not load it, your module does.
    `model_signing verify key DIR --signature DIR/model.sig --public_key keys/oms.pub` checks what --oms adds.

    Example: ledger model export demo-lm@champion out/demo-lm --cyclonedx
    """
    made = export_version(
        current_project(),
        name,
        target,
        shard_size=parse_size(shard_size),
        slsa=slsa,
        cyclonedx=cyclonedx,
        oms=oms,
    )
    if json_output:
        emit_json({"model": str(made.version), "path": str(made.path), "files": dict(made.files)})
        return
    print(f"{made.version}: {counted(len(made.files), 'file')} in {made.path}")


AsOption = Annotated[str | None, typer.Option("--as", metavar="NAME", help="The model that it becomes a version of.")]


def cast(
    name: VersionArgument,
    to: Annotated[str, typer.Option(metavar="DTYPE", help="bf16 or fp16.")],
    model: AsOption = None,
    witness: WitnessOption = None,
    witnesses: WitnessesOption = False,
    json_output: JsonOption = False,
) -> None:
    """Release a version rounded to 16 bits, nearest even, as a signed derivation that a verifier recomputes.

    It becomes a version of NAME-bf16 or NAME-fp16 unless --as says otherwise.

    Example: ledger model cast demo-lm/1 --to bf16
    """
    project = current_project()
    made = cast_version(project, name, to, model=model, cosign=cosigner(project, witness, witnesses))
    _report_derived(made, json_output)


def merge(
    part: Annotated[list[str], typer.Argument(metavar="MODEL=FACTOR...", help="Versions, and factors.")],
    model: AsOption = None,
    license: Annotated[
        str | None, typer.Option(metavar="SPDX", help="Licence of the merge, where those of its sources differ.")
    ] = None,
    witness: WitnessOption = None,
    witnesses: WitnessesOption = False,
    json_output: JsonOption = False,
) -> None:
    """Release the weighted sum of versions, as a signed derivation that a verifier recomputes.

    They may be of several runs of this ledger, if these are of one model; its bundle then shows every run, and a gate
    holds each to its policy. It becomes a version of NAME-merged, of the version with the latest step, unless --as says
    otherwise.

    Example: ledger model merge demo-lm/1=0.75 demo-lm/2=0.25
    """
    project = current_project()
    parts = [parse_part(text) for text in part]
    made = merge_versions(project, parts, model=model, license=license, cosign=cosigner(project, witness, witnesses))
    _report_derived(made, json_output)


def audit(name: VersionArgument, json_output: JsonOption = False) -> None:
    """Recompute a cast or merge from the versions that it derives from, and sign the result as the auditor.

    `ledger model refresh` brings the word into the version's bundle. Exit code 1 if the bits differ.

    Example: ledger model audit demo-lm-bf16
    """
    matched, line, index = audit_version(current_project(), name)
    if json_output:
        emit_json({"model": name, "matched": matched, "detail": line, "entry": index})
    else:
        print(f"{'match' if matched else 'MISMATCH'}: {line}; log entry {index}")
    if not matched:
        raise typer.Exit(1)


def _report_derived(made: Derived, json_output: bool) -> None:
    if json_output:
        emit_json(made.to_json())
        return
    print(f"{made.version}: weights {made.weights}, log entry {made.index}")
    note("a consumer gives its sources with --source, or `ledger model audit` has the auditor recompute it")
