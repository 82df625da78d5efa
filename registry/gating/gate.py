"""The gate as a command uses it: a policy file, and what else was asked for, around the checks of verify.py.

Besides the folder and the policy a gate may have a newer `status` of the log, a memory of what it has seen, and a file
for its verdict. It remembers models that were verified whole, and whatever the log took back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwitness.ledger import jcs
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.files.regular_file import read_regular
from bitwitness.ledger.files.user_files import write_file
from bitwitness.ledger.keys import Signer

from .. import names
from ..checks import Check, exit_code
from ..policy import Policy, PolicyError, parse_policy
from ..verify import Traced, Verdict, examine
from . import rules

if TYPE_CHECKING:
    from bitwitness.ledger.project import Project

    from ..own_ledger import Named
    from .memory import Memory

_POLICY_LIMIT = 1 << 20


@dataclass(frozen=True)
class Request:
    """What is to be verified, by which policy, and with what besides. ``tensors`` empty means all of the files."""

    folder: Path
    policy: Path
    tensors: Sequence[str] = ()
    state: Path | None = None
    status: Path | None = None
    sources: Sequence[Path] = ()
    vsa: Path | None = None
    sign_with: Path | None = None
    keep: bool = False
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    named: Named | None = None
    """The release that was named, if the folder was not: what the project's own ledger says counts then, too."""
    policy_found: bool = False
    """Whether nobody named the policy: it was found around the folder that the command was run in."""


def verify_model(
    path: Path,
    policy_path: Path,
    *,
    tensors: Sequence[str] = (),
    state: Path | None = None,
    status: Path | None = None,
    sources: Sequence[Path] = (),
    vsa: Path | None = None,
    sign_with: Path | None = None,
    policy_found: bool = False,
) -> list[dict[str, Any]]:
    """Check a model's folder against a policy file; see docs/formats/provenance.md for the names of the checks.

    Returns one object per check: ``name``, ``ok`` (None: not checkable), ``detail``, ``category``, ``required``. A
    ``path`` that does not exist may be the name of a released version in the current project; what the ledger there
    signed since counts, too (own_ledger.py).
    ``tensors``: verify only these; ``state``: the gate's memory; ``status``: a newer status of the log; ``sources``:
    folders of the versions that a cast or merge derives from; ``vsa``: where the verdict goes as a SLSA verification
    summary; ``sign_with``: the private key file of the auditor who signs that; ``policy_found``: the policy was not
    named by who asks, but found around the current folder. Raises BitwitnessError only if one of
    the files cannot be read or written at all.
    """
    folder, policy_path = Path(path), Path(policy_path)
    project, named = project_of_name(folder), None
    if project is not None:
        from ..own_ledger import look_up  # a gate elsewhere has no project, nor a database

        named = look_up(project, str(path), parse_policy(_read_policy(policy_path), policy_path))
        folder = named.folder
    request = Request(
        folder,
        policy_path,
        tuple(tensors),
        state,
        status,
        tuple(sources),
        vsa,
        sign_with,
        named=named,
        policy_found=policy_found,
    )
    return [check.to_json() for check in decide(request).checks]


def check_folder(path: Path, policy_path: Path) -> list[Check]:
    """As `verify_model`, of a folder and a policy alone."""
    return decide(Request(path, policy_path)).checks


def project_of_name(path: Path) -> Project | None:
    """The current project, if ``path`` is nothing that exists but can name a version in it."""
    if os.path.lexists(path) or not names.looks_like_name(str(path)):
        return None
    from bitwitness.ledger.cli.options import current_project
    from bitwitness.ledger.project import ProjectNotFound

    try:
        return current_project()
    except ProjectNotFound:
        return None


def decide(request: Request) -> Verdict:
    """Make every check, then remember and report what came of it.

    Raises BitwitnessError if the policy, the folder, the memory or the report cannot be read or written at all.
    """
    if request.tensors and request.vsa is not None:
        raise BitwitnessError("--vsa speaks of whole files; with --tensor only parts of them are read")
    if request.sign_with is not None and request.vsa is None:
        raise BitwitnessError("--sign-with signs the summary of --vsa; name its file, too")
    signer = None if request.sign_with is None else _signer(request.sign_with)
    data = _read_policy(request.policy)
    policy = parse_policy(data, request.policy)
    verdict = examine(
        request.folder,
        policy,
        now=request.now,
        keep=request.keep,
        tensors=frozenset(request.tensors) or None,
        status=_status_path(request, policy),
        memory=None if request.state is None else _load_memory(request.state),
        sources=request.sources,
    )
    verdict.policy = data
    verdict.checks.insert(0, rules.policy_line(policy, request.policy, request.folder, found=request.policy_found))
    if request.named is not None:
        verdict.checks += request.named.checks(verdict.traced, policy.rules)
    if request.state is not None and verdict.traced is not None:
        _remember(request.state, verdict, verdict.traced, whole=not request.tensors)
    if request.vsa is not None:
        summary = jcs.encode(_summary(request, verdict, data))
        if signer is not None:
            from .vsa import sign

            summary = sign(summary, signer)
        write_file(request.vsa, summary.decode("utf-8") + "\n")
    return verdict


def _load_memory(path: Path) -> Memory:
    from . import memory  # its models take as long to build as a verification without it

    return memory.load(path)


def _remember(path: Path, verdict: Verdict, traced: Traced, *, whole: bool) -> None:
    """Of a version that did not pass, or that was read in part, nothing is kept but what the log took back."""
    from . import memory

    if not whole or exit_code(verdict.checks):
        memory.remember_revoked(path, traced.head, verdict.statuses)
        return
    try:
        memory.remember(path, traced.head, traced.lineage.release.predicate, verdict.statuses)
    except FoundWrong as error:
        verdict.checks.append(Check("memory", False, str(error), "CRYPTO"))


def _signer(path: Path) -> Signer:
    """The auditor's key that signs the verdict; read before anything is checked, so that none is written without."""
    from bitwitness.ledger.cli.options import load_key  # most gates have no key

    return load_key(path, "auditor")


def _read_policy(path: Path) -> bytes:
    try:
        return read_regular(path, _POLICY_LIMIT)
    except OSError as error:
        raise PolicyError(path, error.strerror or "cannot be read") from error


def _status_path(request: Request, policy: Policy) -> Path | None:
    """The file of the newest status: the one that was named, else the policy's, beside the policy."""
    if request.status is not None:
        return request.status
    return None if policy.status is None else request.policy.absolute().parent / policy.status.file


def _summary(request: Request, verdict: Verdict, policy: bytes) -> dict[str, object]:
    from . import vsa

    traced = verdict.traced
    if traced is None:
        resource = "urn:bitwitness:unverified"
    else:
        release = traced.lineage.release.predicate
        resource = f"urn:bitwitness:{traced.head.origin}:{release['model']}:{release['version']}"
    return vsa.summary(
        verdict.checks,
        verdict.digests,
        resource=resource,
        policy=(str(request.policy.absolute()), policy),
        bundle=verdict.bundle,
        now=request.now,
    )
