"""`ledger model alias | deprecate | revoke | refresh | diff`: what is said of versions after they were released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import emit_json, note
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.files.plain import plain
from bitwitness.ledger.files.user_files import read_file
from bitwitness.ledger.project import Project

from .. import diff as differences
from .. import words
from ..refresh import refresh as make_anew
from .options import VersionArgument, WitnessesOption, WitnessOption, cosigner


def alias(
    name: VersionArgument,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The name that it gets, such as champion.")],
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The version must pass this trust policy first; else [aliases] decides."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the alias away from the model instead.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Let an alias name a version, as a signed entry; it moves if it named another one.

    With --policy, or a line under [aliases] in bitwitness.toml, the version is verified first, and the entry holds
    the SHA-256 of the policy that it passed. Wherever a command takes a model, NAME@ALIAS then names this version.

    Example: ledger model alias demo-lm/1 champion --policy trust.toml
    """
    project = current_project()
    said = words.remove_alias(project, name, alias) if remove else words.set_alias(project, name, alias, policy)
    if json_output:
        emit_json({**said.to_json(), "alias": alias})
    elif remove:
        print(f"{name} has no alias {alias} any more (log entry {said.index})")
    else:
        print(f"{said.version.model}@{alias} is {said.version}" + _entry(said))


def deprecate(
    name: VersionArgument,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, in up to 200 ASCII characters.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take a deprecation back.")] = False,
    witness: WitnessOption = None,
    witnesses: WitnessesOption = False,
    json_output: JsonOption = False,
) -> None:
    """Say that a version should no longer be used, as a signed entry, and make its bundle say so.

    The gate refuses it where the policy has refuse_deprecated = true.

    Example: ledger model deprecate demo-lm/1 --reason "use version 2"
    """
    project = current_project()
    said = words.say(project, name, "restored" if undo else "deprecated", reason)
    _tell(project, said, witness, witnesses, json_output)


def revoke(
    name: VersionArgument,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, in up to 200 ASCII characters.")] = None,
    witness: WitnessOption = None,
    witnesses: WitnessesOption = False,
    json_output: JsonOption = False,
) -> None:
    """Take a version back for good, as a signed entry, and make its bundle say so.

    The log signs a status that lists it: every gate that sees it, or a later one, refuses the version. Bundles that
    were handed out before do not know; gates learn of it from `ledger status --out FILE`.

    Example: ledger model revoke demo-lm/1 --reason "trained on the wrong data"
    """
    project = current_project()
    said = words.say(project, name, "revoked", reason)
    _tell(project, said, witness, witnesses, json_output)


def refresh(
    name: VersionArgument,
    witness: WitnessOption = None,
    witnesses: WitnessesOption = False,
    json_output: JsonOption = False,
) -> None:
    """Make a version's provenance.json anew: with later audits and words, a new status and checkpoint.

    Weights and configuration stay as they are, and must be the release's. A version whose folder is gone is written
    again from the run's stored state, byte for byte; a cast or merge from the versions that it derives from.

    Example: ledger model refresh demo-lm/1
    """
    project = current_project()
    made = make_anew(project, name, cosign=cosigner(project, witness, witnesses))
    if json_output:
        emit_json(made.to_json())
    else:
        print(f"{made.version}: {made.path.name} as of log size {made.size}")


def timestamp(
    name: VersionArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="The authority's address.")],
    ca: Annotated[Path, typer.Option("--ca", metavar="PEM", help="The certificates that you trust.")],
    json_output: JsonOption = False,
) -> None:
    """Have an RFC 3161 authority stamp the checkpoint of a version's bundle, and put the answer into the bundle.

    A policy may ask for it ([timestamps]). Nothing else in the bundle changes; `ledger model refresh` makes one under a
    new checkpoint, without it.

    Example: ledger model timestamp demo-lm/1 https://tsa.example/ --ca tsa-roots.pem
    """
    from ..interop.timestamps import LIMIT, add  # brings a client and certificates

    version, time = add(current_project(), name, url, read_file(ca, LIMIT))
    if json_output:
        emit_json({"model": version.model, "version": version.version, "time": rfc3339.text(time)})
    else:
        print(f"{version}: its checkpoint existed by {rfc3339.text(time)}")


def diff(
    left: VersionArgument,
    right: VersionArgument,
    json_output: JsonOption = False,
) -> None:
    """Compare two versions: run, step, data, code, evals, audits, files, and which tensors differ.

    Example: ledger model diff demo-lm/1 demo-lm/2
    """
    found = differences.diff(current_project(), left, right)
    if json_output:
        emit_json(found)
        return
    for line in differences.lines(found):
        print(plain(line))


def _tell(project: Project, said: words.Word, witness: list[str] | None, witnesses: bool, json_output: bool) -> None:
    """Refresh the bundle on disk, so that it says what was just signed, and print the word."""
    answer: dict[str, Any] = said.to_json()
    if said.version.folder(project).is_dir():
        try:
            made = make_anew(project, str(said.version), cosign=cosigner(project, witness, witnesses))
            answer["bundle"] = str(made.path)
        except (BitwitnessError, OSError) as error:  # whatever is wrong with the files: the word stands
            note(f"warning: {said.statement} is signed (log entry {said.index}), but no bundle was made: {error}")
    else:
        note(f"{said.version} is not on disk, so no bundle was refreshed")
    if json_output:
        emit_json(answer)
    else:
        print(f"{said.version}: {said.statement}{_entry(said)}")


def _entry(said: words.Word) -> str:
    return f" (log entry {said.index})" if said.new else f" already (log entry {said.index})"
