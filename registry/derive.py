"""Makes releases that follow from others, and recomputes them: `ledger model cast | merge | audit`."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.ledger import jcs
from bitwitness.ledger.commitments import TensorLeaf, TensorView
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from .bundles.bundle import RUNS_LIMIT
from .derivation import DerivationRefused, check_root, derive, leaves_of, recompute
from .description import Description, check_alike, is_own, of_config
from .gating.derivation_check import NOT_RECOMPUTED, RECOMPUTED
from .interop.export import Opened, open_version
from .model_config import expected_config
from .names import Version, check_name, find_version, looks_like_name
from .register import check_license, publish
from .status import append_status
from .weights import commitment_of
from .words import speak

DTYPES = {"bf16": "BF16", "fp16": "F16"}


@dataclass(frozen=True)
class Derived:
    """A derived version that stands on disk and in the log; ``index`` is the log index of its release."""

    version: str
    path: Path
    index: int
    weights: str

    def to_json(self) -> dict[str, Any]:
        return {"model": self.version, "path": str(self.path), "entry": self.index, "weights": self.weights}


def parse_part(text: str) -> tuple[str, float]:
    """A source of a merge, MODEL=FACTOR. Raises DerivationRefused."""
    name, equals, factor = text.rpartition("=")
    try:
        if equals and name:
            return name, float(factor)
    except ValueError:
        pass
    raise DerivationRefused(f"{text[:100]!a} is not MODEL=FACTOR, such as demo-lm/1=0.5")


def cast(
    project: Project,
    name: str,
    dtype: str,
    *,
    model: str | None = None,
    cosign: Callable[[Ledger, str], str] = lambda ledger, note: note,
) -> Derived:
    """Release the version that ``name`` means, rounded to ``dtype`` ("bf16" or "fp16"), as a version of ``model``.

    ``model`` is the version's own model with the dtype appended, unless given. Raises DerivationRefused, NoSuchModel.
    """
    if dtype not in DTYPES:
        raise DerivationRefused(f"{dtype[:40]!a} is not one of {', '.join(DTYPES)}")
    return _derive(project, [(name, None)], "cast/1", DTYPES[dtype], model, f"-{dtype}", cosign)


def merge(
    project: Project,
    parts: Sequence[tuple[str, float]],
    *,
    model: str | None = None,
    license: str | None = None,
    cosign: Callable[[Ledger, str], str] = lambda ledger, note: note,
) -> Derived:
    """Release the sum of versions of this ledger, each times its factor (rounded to binary32 first).

    They may be of several runs, if these are of one model. ``license`` must be given where theirs differ.
    Raises DerivationRefused, NoSuchModel.
    """
    if not 2 <= len(parts) <= 64:
        raise DerivationRefused("a merge has 2 to 64 sources")
    for name, factor in parts:
        if not math.isfinite(factor) or abs(factor) > 3e38:
            raise DerivationRefused(f"the factor of {name} is not a finite binary32 number")
    check_license(license)
    parts = [(name, _binary32(factor)) for name, factor in parts]
    return _derive(project, parts, "merge/1", "F32", model, "-merged", cosign, license)


def _derive(
    project: Project,
    parts: Sequence[tuple[str, float | None]],
    rule: str,
    dtype: str,
    model: str | None,
    suffix: str,
    cosign: Callable[[Ledger, str], str],
    license: str | None = None,
) -> Derived:
    publisher, log = project.signer("publisher"), project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        named = [(_find(ledger, name), factor) for name, factor in parts]
        # The order is part of the bits, so it is fixed here: the latest step first, then as they stand in the log.
        named.sort(key=lambda part: (-_step(ledger, part[0]), part[0].index))
        versions = [version for version, _factor in named]
        opened = [open_version(version, version.folder(project)) for version in versions]
        model = model or versions[0].model + suffix
        check_name(model)
        first = opened[0].traced
        _check_alike(opened)
        if len({version.leaf for version in versions}) != len(versions):
            raise DerivationRefused("a version stands there twice; add up its factors")
        sources = []
        for source, (version, factor) in zip(opened, named, strict=True):
            said = {"release": version.leaf, "weights": source.traced.release.predicate["weights"]}
            sources.append(said if factor is None else {**said, "factor": jcs.f32_hex(factor)})
        tensors = _computed({"rule": rule, "sources": sources}, dtype, opened)
        leaves = leaves_of(tensors)
        base = first.release.predicate
        predicate: dict[str, Any] = {
            "derivation": {"rule": rule, "sources": sources},
            "dtype": dtype,
            "model": model,
            "run": base["run"],
            "state": base["state"],
            "step": base["step"],
            "weights": commitment_of(leaves).to_json(),
        }
        if license is None:
            license = _license(opened)
        if license is not None:
            predicate["license"] = license
        described = _description(opened[0], dtype)
        index, number, path = publish(project, ledger, publisher, log, predicate, tensors, leaves, described, cosign)
    return Derived(f"{model}/{number}", path, index, predicate["weights"]["root"])


def derive_again(
    project: Project, ledger: Ledger, release: Mapping[str, Any]
) -> tuple[dict[str, TensorView], list[TensorLeaf], Description]:
    """The tensors, their leaves and the description of a derived release, from the folders of its sources here.

    Raises DerivationWrong where they give other weights, ExportRefused or VersionChanged for a source.
    """
    said = release["derivation"]
    opened = _open_sources(project, ledger, [source["release"] for source in said["sources"]])
    tensors = _computed(said, release["dtype"], opened)
    leaves = leaves_of(tensors)
    check_root(release, leaves)
    return tensors, leaves, _description(opened[0], release["dtype"])


def _computed(said: Mapping[str, Any], dtype: str, opened: Sequence[Opened]) -> dict[str, TensorView]:
    """What a derivation gives of its sources, in their order."""
    factors = [jcs.f32_from_hex(source["factor"]) for source in said["sources"] if "factor" in source]
    return derive(said["rule"], dtype, [source.tensors for source in opened], factors)


def _description(first: Opened, dtype: str) -> Description:
    """The configuration or program of what is derived from a first source."""
    genesis = first.traced.genesis.predicate
    return first.description if is_own(genesis) else of_config(expected_config(genesis["config"], dtype))


def audit(project: Project, name: str) -> tuple[bool, str, int]:
    """Recompute a derived version from its sources' files and sign what came out: whether it matches, a line, index.

    The word is an `endorse` entry by the project's auditor, `recomputed` or `not-recomputed`; a `status` lists it.
    Raises DerivationRefused for a version that derives from nothing, NoSuchModel, VersionChanged.
    """
    auditor, log = project.signer("auditor"), project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        version = find_version(ledger, name)
        release = open_envelope(ledger.entry(version.index)).statement["predicate"]
        if "derivation" not in release:
            raise DerivationRefused(f"{version} derives from no release; `ledger audit` replays the run that made it")
        sources = [
            opened.tensors
            for opened in _open_sources(project, ledger, [s["release"] for s in release["derivation"]["sources"]])
        ]
        try:
            matched, line = True, recompute(release, sources)
        except FoundWrong as error:
            matched, line = False, str(error)
        index = speak(ledger, auditor, version, RECOMPUTED if matched else NOT_RECOMPUTED)
        append_status(ledger, log)
        ledger.sign_checkpoint(log)
    return matched, line, index


def _find(ledger: Ledger, name: str) -> Version:
    """The version of this ledger that a name means. Raises NoSuchModel, DerivationRefused."""
    if not looks_like_name(name) and Path(name).exists():
        raise DerivationRefused(
            f"{name} is a folder, and a derivation names releases of its own ledger: give a version of this project "
            f"(NAME/VERSION); weights of another ledger come in by `ledger model import` and a run from them"
        )
    return find_version(ledger, name)


def _check_alike(opened: Sequence[Opened]) -> None:
    """Raise DerivationRefused unless the runs of all versions are of one model."""
    lines = {line.genesis.leaf: line for source in opened for line in source.traced.runs}
    runs = {line.genesis.leaf for source in opened for line in source.traced.every}
    if len(runs) > RUNS_LIMIT:
        raise DerivationRefused(f"the versions stand on {len(runs)} runs; a bundle can show {RUNS_LIMIT}")
    try:
        check_alike(list(lines.values()))
    except FoundWrong as error:
        raise DerivationRefused(f"the versions cannot be merged: {error}") from None


def _license(opened: Sequence[Opened]) -> str | None:
    """The licence of all sources; None if none names one. Raises DerivationRefused where they differ."""
    named = {source.traced.release.predicate.get("license") for source in opened}
    if len(named) > 1:
        listed = ", ".join(sorted(str(name or "none named") for name in named))
        raise DerivationRefused(
            f"the sources have different licences ({listed}); say with --license which the merge has"
        )
    return named.pop()


def _binary32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def _step(ledger: Ledger, version: Version) -> int:
    (step,) = ledger.connection.execute("SELECT step FROM releases WHERE entry = ?", (version.index,)).fetchone()
    return int(step)


def _open_sources(project: Project, ledger: Ledger, leaves: Sequence[str]) -> list[Opened]:
    found = []
    for leaf in leaves:
        row = ledger.connection.execute(
            "SELECT model, version, entry, hash, run FROM releases WHERE hash = ?", (leaf,)
        ).fetchone()
        if row is None:
            raise BitwitnessError(f"the release {leaf[:16]}… is not in this ledger")
        version = Version(*row)
        found.append(open_version(version, version.folder(project)))
    return found
