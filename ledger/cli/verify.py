"""`ledger verify`: a ledger, a proof, evidence of a fork, or a model; and the reports that a pipeline reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..errors import BitwitnessError
from ..files.regular_file import open_regular
from ..files.user_files import read_file, write_file
from ..follow.fork import looks_like_fork, verify_fork
from ..proof_file import verify_proof
from ..trust import load_trust
from ..verify import Check, exit_code
from . import output
from .options import JsonOption, current_project
from .plugins import load_verifier

Kind = Literal["model", "ledger", "proof", "fork-evidence"]
"""What was verified, in every report."""

_MAX_PROOF = 4 * 1024 * 1024
# A version by its name in the project, if no file or folder is called so.
_MODEL = re.compile(r"[A-Za-z0-9._-]+(?:/[1-9][0-9]*|@[A-Za-z0-9._-]+)")

PolicyOption = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="The keys to trust; else trust.toml of the project.")
]
TensorOption = Annotated[
    list[str] | None,
    typer.Option("--tensor", metavar="NAME", help="Of a model: verify only this tensor; may be given again."),
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="FILE", help="Of a model: what this gate has seen, so that nothing older passes."),
]
StatusOption = Annotated[
    Path | None, typer.Option("--status", metavar="FILE", help="Of a model: a newer file of `ledger status --out`.")
]
SourceOption = Annotated[
    list[Path] | None,
    typer.Option("--source", metavar="DIR", help="Of a cast or merge: a version that it derives from; repeatable."),
]
VsaOption = Annotated[
    Path | None, typer.Option("--vsa", metavar="FILE", help="Of a model: write a SLSA verification summary here.")
]
SignWithOption = Annotated[
    Path | None,
    typer.Option("--sign-with", metavar="FILE", help="With --vsa: sign it with this auditor's private key, as DSSE."),
]
JunitOption = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write the checks as JUnit XML.")]
SarifOption = Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Write the checks as SARIF 2.1.0.")]


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR|MODEL",
            help="A ledger (.db), a proof, evidence of a fork, a model's folder, or a model of the project by name.",
        ),
    ],
    policy: PolicyOption = None,
    entry: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The entry that a proof is of, if the proof does not hold it.")
    ] = None,
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
    """Verify a ledger, a proof file or a model offline, with the keys of a trust policy and nothing else.

    Says which of these it was: model, ledger, proof or fork-evidence. Where nothing but a model may pass, use
    `ledger model verify`. Exit code 0 if all was verified, 1 if anything is wrong, 2 if something could not be checked.

    Example: ledger verify models/demo-lm/1 --policy trust.toml --junit verify.xml
    """
    given = model_options(tensor, state, status, source, vsa, sign_with)
    kind, checks = _examine(path, policy, entry, given)
    words = (f"{kind}: {said}" for said in ("verified", "WRONG", "could not be checked"))
    finish(checks, kind, str(path), junit, sarif, json_output, dict(enumerate(words)))


def model_options(
    tensor: list[str] | None,
    state: Path | None,
    status: Path | None,
    source: list[Path] | None,
    vsa: Path | None,
    sign_with: Path | None,
) -> dict[str, Any]:
    """The options that only a model's verifier takes, as it takes them: those that were given."""
    options = {"tensors": tensor, "state": state, "status": status, "sources": source, "vsa": vsa}
    options["sign_with"] = sign_with
    return {name: value for name, value in options.items() if value}


def examine_model(path: Path, policy: Path | None, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The checks of a model's folder or name, by the package that brings its verifier. Raises BitwitnessError."""
    verifier = load_verifier("model")
    if verifier is None:
        raise BitwitnessError("no installed package verifies models; install bitwitness with its registry")
    if policy is None:
        return verifier(path, project_policy(), policy_found=True, **options)
    return verifier(path, policy, **options)


def finish(
    checks: Sequence[Mapping[str, Any]],
    kind: Kind,
    target: str,
    junit: Path | None,
    sarif: Path | None,
    json_output: bool,
    words: Mapping[int, str],
) -> None:
    """Write the reports, print the checks and what they add up to, and end with the exit code."""
    code = _code(checks)
    if junit is not None or sarif is not None:
        from ..files import reports  # the XML of the standard library imports HTTP and TLS

        if junit is not None:
            write_file(junit, reports.junit(checks, kind, target))
        if sarif is not None:
            write_file(sarif, reports.sarif(checks, kind, target, code))
    if json_output:
        output.emit_json({"verified": code == 0, "kind": kind, "checks": list(checks)})
    else:
        output.emit_checks(checks)
        print(words[code])
    raise typer.Exit(code)


def project_policy() -> Path:
    """The trust.toml of the project that the command is run in. Raises BitwitnessError."""
    from ..project import ProjectNotFound

    try:
        return current_project().trust_path
    except ProjectNotFound:
        raise BitwitnessError("whose keys are to be trusted? give --policy trust.toml, or run in a project") from None


def _examine(
    path: Path, policy: Path | None, entry: Path | None, options: Mapping[str, Any]
) -> tuple[Kind, list[dict[str, Any]]]:
    """What lies at a path, by what it holds, and its checks."""
    if "\0" in str(path) or not (path.exists() or _MODEL.fullmatch(str(path))):
        raise BitwitnessError(f"{path}: no such file or folder")
    if path.is_dir() or not path.exists():
        return "model", examine_model(path, policy, options)
    if options:
        raise typer.BadParameter(
            f"{path} is no model's folder; --{min(options).rstrip('s').replace('_', '-')} is for models"
        )
    policy = policy or project_policy()
    try:
        with open_regular(path) as file:
            head = file.read(16)
    except OSError as error:
        raise BitwitnessError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    trust = load_trust(policy)
    if head == b"SQLite format 3\x00" or path.suffix == ".db":
        from ..verify_ledger import verify_ledger  # it starts worker processes

        return "ledger", [item.to_json() for item in verify_ledger(path, trust).checks]
    data = read_file(path, _MAX_PROOF)
    if looks_like_fork(data):
        return "fork-evidence", [item.to_json() for item in verify_fork(data, trust)]
    held = None if entry is None else read_file(entry, _MAX_PROOF)
    return "proof", [item.to_json() for item in verify_proof(data, trust, held)]


def _code(checks: Sequence[Mapping[str, Any]]) -> int:
    """As verify.exit_code; a check that a verifier calls not required may stay open."""
    return exit_code(
        Check(item["name"], item["ok"], item["detail"])
        for item in checks
        if item["ok"] is not None or item.get("required", True)
    )
