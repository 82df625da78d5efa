"""The gate: are these the weights that this run produced, from this data and code, by whom, audited by whom?

Works offline and believes nothing but the policy's keys. No index, size, path, key or algorithm is taken from
the bundle: positions and sizes are the signed ones, names come from the folder's listing and the signed
release. Every file is read once, into memory that this process owns, and those very bytes are checked;
`load.py` builds tensors from the same memory. Nothing from a bundle is ever executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.commitments import Commitment, TensorLeaf
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.files.regular_file import read_regular
from bitwitness.ledger.note import Note
from bitwitness.ledger.verify import KeyRing

from . import weights
from .bundles import bundle, completeness, evidence, lineage, status_file
from .bundles.anchors import check_anchors
from .checks import Category, Check
from .description import check_alike, check_description, is_own
from .folder import CONFIG, INDEX, PROGRAM, WEIGHTS, Folder, FolderRefused, is_release_file, is_weights_file
from .gating import derivation_check, lineage_checks, rules
from .gating.scan import Scanned, scan, scan_tensors
from .gating.timestamp_check import timestamp_checks
from .interop import companions, oms
from .policy import Policy
from .shards import check_index, check_layout

if TYPE_CHECKING:
    from .gating.memory import Memory

_T = TypeVar("_T")

# Of config.json, model.json and the index of shards: what is larger is not read.
_TEXT_LIMIT = 64 << 20


@dataclass
class _Files:
    """What was read of a model's files."""

    texts: dict[str, bytes] = field(default_factory=dict)
    weights: dict[str, Scanned] = field(default_factory=dict)
    beside: dict[str, bytes] = field(default_factory=dict)
    """What an export adds to the files of its release."""


@dataclass(frozen=True)
class Traced:
    """A release and all that was authenticated with it. ``told`` is the status that lists what the bundle holds."""

    lineage: lineage.Lineage
    entries: list[evidence.Entry]
    signed: Note
    head: Checkpoint
    keys: KeyRing
    told: completeness.Told | None
    read: bundle.Provenance

    @property
    def statuses(self) -> list[evidence.Entry]:
        return [entry for entry in self.entries if entry.kind == "status"]


@dataclass
class Verdict:
    """The checks of one model, and what they were made on.

    ``tensors`` stand in the memory that was checked (empty unless it was asked to be kept and the weights passed);
    ``places`` says in which file. ``digests`` are the SHA-256 of the files that were read, ``bundle`` the proof.
    """

    checks: list[Check] = field(default_factory=list)
    tensors: Mapping[str, weights.LoadedTensor] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    bundle: bytes | None = None
    policy: bytes | None = None
    """The policy file that the checks were made by, if it was read from one."""
    traced: Traced | None = None
    news: status_file.News | None = None
    """A newer status that the gate was given, if it is one of the log."""

    @property
    def statuses(self) -> list[evidence.Entry]:
        """The `status` entries that count: the bundle's, if the newest lists what the bundle has, and `news`."""
        own = self.traced.statuses if self.traced is not None and self.traced.told is not None else []
        return own + ([] if self.news is None else [self.news.entry])

    def attempt(self, name: str, category: Category, step: Callable[[], tuple[str, _T]]) -> _T | None:
        """Make one check: ``step`` returns its detail and result, or raises why not. None if it did not pass."""
        try:
            detail, result = step()
        except FoundWrong as error:
            self.checks.append(Check(name, False, str(error), category))
        except BitwitnessError as error:
            self.checks.append(Check(name, None, str(error), category))
        else:
            self.checks.append(Check(name, True, detail, category))
            return result
        return None

    def skip(self, category: Category, *names: str) -> None:
        """Report checks that an earlier failure made impossible."""
        made = {check.name for check in self.checks}
        for name in names:
            if name in made:
                continue
            self.checks.append(Check(name, None, "not checked, since a check above did not pass", category))


def examine(
    path: Path,
    policy: Policy,
    *,
    now: datetime | None = None,
    keep: bool = False,
    tensors: frozenset[str] | None = None,
    status: Path | None = None,
    memory: Memory | None = None,
    sources: Sequence[Path] = (),
) -> Verdict:
    """Make every check; with ``keep``, keep the memory in which the weights were checked.

    With ``tensors`` only these are read and checked, and nothing is said of the rest of the files. ``status`` is a file
    with a newer status of the log, ``memory`` what was seen of it before, ``sources`` the folders of versions that a
    cast or merge derives from, so that it can be recomputed.
    """
    verdict = Verdict()
    try:
        folder = Folder(path)
    except FolderRefused as error:
        verdict.checks.append(Check("folder", False, str(error), "CRYPTO"))
        verdict.skip("CRYPTO", "bundle", "release", "weights")
        verdict.skip("POLICY", *rules.check_names(policy))
        return verdict
    with folder:
        traced = _trace(folder, policy, verdict)
        if traced is None:
            verdict.skip("CRYPTO", "checkpoint", "release", "weights")
            verdict.skip("POLICY", *rules.check_names(policy))
            return verdict
        verdict.traced = traced
        moment = now or datetime.now(UTC)
        news = verdict.news = None if status is None else _check_news(status, traced, policy, moment, verdict)
        if memory is not None:
            _check_memory(memory, traced, verdict)
        if tensors is None:
            files = _read_files(folder, traced.lineage, verdict, keep=keep)
            _check_description(files, traced, verdict)
            _check_weights(files, traced, verdict)
            _check_beside(files, traced, policy, verdict)
        else:
            _check_some_tensors(folder, traced, tensors, verdict)
        verdict.checks += derivation_check.check(traced.lineage, traced.entries, traced.keys, sources)
    revoked = [] if news is None else [rules.revoked_by(news.entry)]
    revoked += [] if memory is None else memory.revoked(policy.log.origin)
    verdict.checks += rules.policy_checks(traced.lineage, traced.entries, policy, traced.signed, traced.told, moment)
    verdict.checks += timestamp_checks(traced.read, policy, moment)
    verdict.checks += rules.assurance_checks(
        traced.lineage, traced.entries, policy, traced.signed, traced.told, revoked
    )
    return verdict


def _trace(folder: Folder, policy: Policy, verdict: Verdict) -> Traced | None:
    read = verdict.attempt("bundle", "CRYPTO", lambda: _read_bundle(folder, verdict))
    return None if read is None else _authenticate(read, policy, verdict)


def _check_news(path: Path, traced: Traced, policy: Policy, now: datetime, verdict: Verdict) -> status_file.News | None:
    """A newer status of the log that the gate was given: it must be authentic, and contradict nothing here."""

    def step() -> tuple[str, status_file.News]:
        try:
            data = read_regular(path, status_file.SIZE_LIMIT)
        except OSError as error:
            raise BitwitnessError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        news = status_file.open_status(data, policy)
        return completeness.check_same_log(traced.head, news), news

    news = verdict.attempt("newest-status", "CRYPTO", step)
    if news is None:
        verdict.skip("CRYPTO", "up-to-date")
    else:
        verdict.attempt(
            "up-to-date",
            "CRYPTO",
            lambda: (completeness.check_news(traced.lineage, traced.entries, traced.read.status, news), True),
        )
    if policy.status is not None and policy.status.max_age is not None:
        if news is None:
            verdict.skip("POLICY", "newest-status-age")
        else:
            verdict.checks.append(rules.age_of_status(news.entry, policy.status.max_age, now))
    return news


def _check_memory(memory: Memory, traced: Traced, verdict: Verdict) -> None:
    said = traced.lineage.release.predicate
    verdict.attempt("memory", "CRYPTO", lambda: (memory.check(traced.head, said), True))


def _read_bundle(folder: Folder, verdict: Verdict) -> tuple[str, bundle.Provenance]:
    if bundle.FILE_NAME not in folder.names:
        raise FolderRefused(f"{bundle.FILE_NAME} is missing: the folder proves nothing about its model")
    data = bytes(folder.read(bundle.FILE_NAME, limit=bundle.SIZE_LIMIT))
    verdict.bundle = data
    parsed = bundle.parse(data)
    return f"{len(parsed.entries)} entries, {len(data)} bytes, {bundle.FORMAT}", parsed


def _authenticate(read: bundle.Provenance, policy: Policy, verdict: Verdict) -> Traced | None:
    """The checks on the bundle alone. None as soon as one leaves nothing for the next to stand on."""

    def checkpoint_step() -> tuple[str, tuple[Checkpoint, Note]]:
        found, note, signer = evidence.open_checkpoint(read.checkpoint, read.entries, read.anchors or (), policy)
        return f"{found.origin}, size {found.size}, signed by {signer}", (found, note)

    opened = verdict.attempt("checkpoint", "CRYPTO", checkpoint_step)
    if opened is None:
        return None
    checkpoint, signed = opened
    anchors = read.anchors or ()

    def inclusion_step() -> tuple[str, list[evidence.Entry]]:
        entries = evidence.open_entries(read.entries, checkpoint)
        return f"{len(entries)} entries are in the log's tree of {checkpoint.size}", entries

    entries = verdict.attempt("inclusion", "CRYPTO", inclusion_step)
    if entries is None:
        return None

    def signatures_step() -> tuple[str, KeyRing]:
        ring, described = evidence.authenticate(entries, checkpoint, signed, policy, anchors)
        described += check_anchors(entries, ring, checkpoint, anchors, policy)
        return f"{len(entries)} entries signed by keys that may sign them; {described}", ring

    ring = verdict.attempt("signatures", "CRYPTO", signatures_step)
    if ring is None:
        return None

    def release_step() -> tuple[str, lineage.Lineage]:
        found = lineage.find(entries, read.before or ())
        return lineage_checks.check_release(found, policy.log.origin), found

    traced = verdict.attempt("release", "CRYPTO", release_step)
    if traced is None:
        return None
    verdict.attempt("chain", "CRYPTO", lambda: (lineage_checks.check_chain(traced, read.history, ring), True))
    verdict.attempt("state", "CRYPTO", lambda: (lineage_checks.check_state(traced), True))
    verdict.attempt("data", "CRYPTO", lambda: (lineage_checks.check_datasets(traced), True))
    verdict.attempt("code", "CRYPTO", lambda: (traced.each(_code_line), True))
    verdict.attempt("evals", "CRYPTO", lambda: (traced.each(rules.eval_line, traced.runs), True))
    verdict.attempt(
        "audits", "CRYPTO", lambda: (lineage_checks.check_audits(traced, read.intents or (), checkpoint), True)
    )
    told = None
    if read.status is not None or any(entry.kind == "status" for entry in entries):
        told = verdict.attempt(
            "status", "CRYPTO", lambda: completeness.check_status(traced, entries, read.status, ring, checkpoint)
        )
    return Traced(traced, entries, signed, checkpoint, ring, told, read)


def _code_line(line: lineage.RunLine) -> str:
    code, arithmetic = line.genesis.predicate["code"], line.genesis.predicate["arithmetic"]
    return (
        f"{code['size']} source files, root {code['root'][:16]}…, "
        f"{arithmetic['version']} table {arithmetic['digest'][:16]}…"
    )


def _read_files(folder: Folder, traced: lineage.Lineage, verdict: Verdict, *, keep: bool) -> _Files:
    """Read what the release lists, no more bytes than it signs, and refuse what it does not list."""
    read = _Files()

    def step() -> tuple[str, bool]:
        listed = {item["name"]: item for item in traced.release.predicate["files"]}
        if len(listed) != len(traced.release.predicate["files"]):
            raise FolderRefused("the release lists a file twice")
        cut = companions.cut_again(folder.names, listed)
        beside = (folder.names - listed.keys()) & companions.LIMITS.keys()
        known = listed.keys() | beside | cut.keys() | {bundle.FILE_NAME}
        wrong = [f"{name} is not listed in the release" for name in folder.names - known]
        due = {name: item for name, item in listed.items() if not (cut and companions.is_cut(name))}
        for name, item in sorted((due | cut).items()):
            if not is_release_file(name):
                may = f"{CONFIG} or {PROGRAM}, {WEIGHTS} or its shards"
                wrong.append(f"{name} is none of the files that a release may hold: {may}")
                continue
            try:
                size, digest = _read_one(folder, name, item["bytes"], read, keep=keep)
            except FolderRefused as error:
                wrong.append(str(error))
                continue
            verdict.digests[name] = digest
            if name in cut:
                continue  # the weights root decides
            if size != item["bytes"]:
                wrong.append(f"{name} has {size} bytes, the release says {item['bytes']}")
            elif digest != item["sha256"]:
                wrong.append(f"{name} has other bytes than the release says")
        if wrong:
            raise FolderRefused("; ".join(sorted(wrong)[:5]))
        check_layout([*due, *cut])
        read.beside |= {name: bytes(folder.read(name, limit=companions.LIMITS[name])) for name in beside}
        again = f"; the weights are cut into {len(read.weights)} files of their own" if cut else ""
        return f"{len(due)} files, each with the signed SHA-256, and no others{again}", True

    verdict.attempt("files", "CRYPTO", step)
    return read


def _read_one(folder: Folder, name: str, limit: int, read: _Files, *, keep: bool) -> tuple[int, str]:
    """Size and SHA-256 of one file, whose content goes to ``read``."""
    if is_weights_file(name):
        with folder.open(name, limit=limit) as file:
            scanned = scan(file, keep=keep)
        read.weights[name] = scanned
        return scanned.size, scanned.sha256
    data = bytes(folder.read(name, limit=min(limit, _TEXT_LIMIT)))
    read.texts[name] = data
    return len(data), hashlib.sha256(data).hexdigest()


def _check_description(files: _Files, traced: Traced, verdict: Verdict) -> None:
    release, genesis = traced.lineage.release.predicate, traced.lineage.genesis.predicate

    def step() -> tuple[str, bool]:
        check_alike(traced.lineage.runs)
        return check_description(files.texts, genesis, release["dtype"], _listed(traced.read)), True

    verdict.attempt("program" if is_own(genesis) else "config", "CRYPTO", step)


def _listed(read: bundle.Provenance) -> list[TensorLeaf]:
    return [TensorLeaf(leaf.name, leaf.dtype, tuple(leaf.shape), leaf.bytes, leaf.digest) for leaf in read.weights]


def _check_weights(files: _Files, traced: Traced, verdict: Verdict) -> None:
    def step() -> tuple[str, dict[str, weights.LoadedTensor]]:
        if not files.weights:
            raise FolderRefused("no safetensors file that the release lists could be read")
        found, places = weights.join(files.weights)
        release = traced.lineage.release.predicate
        signed = Commitment.from_json(release["weights"], type="weights/1")
        said = weights.compare(found, _listed(traced.read), signed, release["dtype"])
        if INDEX in files.texts:
            check_index(files.texts[INDEX], places, sum(leaf.nbytes for leaf in found))
        verdict.places = places
        return said, weights.views(files.weights)

    tensors = verdict.attempt("weights", "CRYPTO", step)
    if tensors is not None:
        verdict.tensors = tensors


def _check_beside(files: _Files, traced: Traced, policy: Policy, verdict: Verdict) -> None:
    """The files that an export adds: each must be what follows from the bundle, or signed by a key of the policy."""
    digests = {**verdict.digests, **companions.digests_of({**files.beside, bundle.FILE_NAME: verdict.bundle or b""})}
    if files.beside.keys() - {oms.FILE_NAME}:

        def step() -> tuple[str, bool]:
            found = companions.check(files.beside, digests, traced.lineage, traced.read.checkpoint, traced.keys)
            return found, True

        verdict.attempt("export", "CRYPTO", step)
    verdict.checks += companions.check_oms(files.beside.get(oms.FILE_NAME), digests, policy)


def _check_some_tensors(folder: Folder, traced: Traced, wanted: frozenset[str], verdict: Verdict) -> None:
    """Read and check only these tensors. What the files hold besides is not looked at, so it is not verified."""

    def step() -> tuple[str, bool]:
        release = traced.lineage.release.predicate
        listed, signed = _listed(traced.read), Commitment.from_json(release["weights"], type="weights/1")
        found: list[TensorLeaf] = []
        sizes = {item["name"]: item["bytes"] for item in release["files"] if is_weights_file(item["name"])}
        for name, size in sorted(sizes.items()):
            with folder.open(name, limit=size) as file:
                found += scan_tensors(file, wanted)[1]
        return weights.compare_some(found, wanted, listed, signed), True

    verdict.attempt("tensors", "CRYPTO", step)
