"""Makes a version of a model: weights, configuration and proof in one folder, and a signed `release` in the log.

Nothing is written to the ledger before the weights on disk were hashed and found to be those that the ledger
says this step produced. Files are written under a temporary name, synced and renamed, so a version is either
whole or absent. A crash between the signed release and the rename is healed by running the command again: it
finds the release in the ledger and completes its folder instead of signing a second version.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.ledger.commitments import Commitment, TensorLeaf, TensorView
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import open_envelope, seal
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.files import durable, rfc3339
from bitwitness.ledger.files.safetensors_header import SafetensorsError
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from . import shards, weights
from .bundles import bundle
from .bundles.collect import collect
from .description import Description, is_own, of_config, of_program
from .folder import Folder
from .names import NameRefused, check_name
from .status import append_status, run_records

# With config.json or model.json and the index, as many files as an entry can list.
_SHARDS_LIMIT = 126
SHARD_BYTES = 5_000_000_000
_LICENSE = re.compile(r"[ -~]{1,200}")


class StateMissing(BitwitnessError):
    """The run has no stored state of the step that is to be released."""


class StateIsNotTheLedgers(FoundWrong):
    """The stored weights are not those that the ledger commits to; nothing was written."""


class KeyEnded(BitwitnessError):
    """A key that the release would rest on is revoked or replaced: no consumer would accept it."""


class Unfinished(BitwitnessError):
    """The release is signed, but its folder could not be completed; registering again completes it."""

    def __init__(self, folder: Path, index: int, error: OSError) -> None:
        super().__init__(
            f"{error.filename or folder}: {error.strerror}; the release is signed (entry {index}), "
            "run the same command again to complete its folder"
        )
        self.index = index


@dataclass(frozen=True)
class Registered:
    """A version that stands on disk and in the log; ``index`` is the log index of its release."""

    model: str
    version: int
    path: Path
    index: int
    run: str
    step: int
    weights: Commitment
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "version": self.version,
            "path": str(self.path),
            "entry": self.index,
            "run": self.run,
            "step": self.step,
            "weights": self.weights.to_json(),
        }


def register(
    project: Project,
    model: str,
    run: str,
    *,
    step: int | None = None,
    license: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    cosign: Callable[[Ledger, str], str] = lambda ledger, note: note,
) -> Registered:
    """Release a stored state of ``run`` (name or id; the last step unless ``step`` is given) as the next version.

    Weights of more than ``shard_bytes`` go into several files with an index (shards.py).
    ``cosign`` may have witnesses cosign the checkpoint note that the bundle will hold.
    The whole ledger is verified first: a release vouches for what it says of the run.
    Raises StateMissing, StateIsNotTheLedgers, NameRefused, KeyEnded, or what ledger and key files raise.
    """
    check_name(model)
    check_license(license)
    # Before anything else, so that a missing key or a wrong passphrase leaves nothing half done.
    publisher, log = project.signer("publisher"), project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        for signer in (publisher, log):
            _refuse_ended(ledger, signer.keyid, signer.role, ledger.size)
        source = find_source(project, ledger, run, step)
        warnings = (*_check_trainer(ledger, source), *_same_weights(project, ledger, model, source))
        tensors, leaves = load_weights(source)
        predicate: dict[str, Any] = {
            "model": model,
            "run": source.run,
            "step": source.step,
            "state": source.state,
            "weights": source.weights.to_json(),
            "dtype": _dtype(leaves),
        }
        if license is not None:
            predicate["license"] = license
        views = {name: (tensor.entry.dtype, tensor.entry.shape, tensor.data) for name, tensor in tensors.items()}
        index, version, path = publish(
            project, ledger, publisher, log, predicate, views, leaves, source.description, cosign, shard_bytes
        )
    return Registered(model, version, path, index, source.run, source.step, source.weights, warnings)


def check_license(license: str | None) -> None:
    """Raise NameRefused for a licence that cannot stand in a release."""
    if license is not None and not _LICENSE.fullmatch(license):
        raise NameRefused(f"{license[:100]!a} is not a licence: 1 to 200 printable ASCII characters, best an SPDX id")


def publish(
    project: Project,
    ledger: Ledger,
    publisher: Signer,
    log: Signer,
    predicate: Mapping[str, Any],
    tensors: Mapping[str, TensorView],
    leaves: Sequence[TensorLeaf],
    description: Description,
    cosign: Callable[[Ledger, str], str],
    shard_bytes: int = SHARD_BYTES,
) -> tuple[int, int, Path]:
    """Write the folder of the model's next version and sign its release: log index, version, folder.

    ``predicate`` is the release's, without files, version, signer and time. What the weights are was checked before.
    """
    folder = project.models_dir / predicate["model"]
    with temporary_folder(folder) as temporary:
        whole = {**predicate, "files": write_files(temporary, tensors, description, shard_bytes)}
        index, version = _release(ledger, publisher, whole, folder)
        append_status(ledger, log)
        try:
            provenance = collect(ledger, index, cosign(ledger, ledger.sign_checkpoint(log)), leaves).encode()
            durable.write_new(temporary / bundle.FILE_NAME, provenance)
            durable.sync_folder(temporary)
            temporary.rename(folder / str(version))
            durable.sync_folder(folder)
        except OSError as error:
            raise Unfinished(folder / str(version), index, error) from error
    return index, version, folder / str(version)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A new folder inside ``folder``, gone at the end unless it was renamed. OSError becomes one clear line."""
    temporary = folder / f".tmp-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".tmp-*"):
            if not _is_running(leftover.name.removeprefix(".tmp-")):
                shutil.rmtree(leftover, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
    except OSError as error:
        raise BitwitnessError(f"{error.filename or folder}: {error.strerror}; nothing was registered") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()  # only if it is empty


def _is_running(pid: str) -> bool:
    """Whether this process number is in use; whatever is not a number may be somebody's."""
    if not re.fullmatch(r"[0-9]{1,9}", pid):
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@dataclass(frozen=True)
class _Source:
    """What is to be released: a step of a run, as the ledger has it, and where its weights are stored."""

    run: str
    step: int
    state: str
    weights: Commitment
    path: Path
    description: Description


def find_source(project: Project, ledger: Ledger, name: str, step: int | None) -> _Source:
    """The stored state of a step of a run (name or id), the last with ``step`` None. Raises StateMissing."""
    # The trainer knows where states lie and what a configuration means; it imports numpy, so only here.
    from bitwitness.trainer.history import LedgerNotVerified, open_verified_run
    from bitwitness.trainer.models.model import huggingface_config
    from bitwitness.trainer.models.own_model import read_model
    from bitwitness.trainer.state import WEIGHTS_FILE, state_folder

    history = open_verified_run(project, ledger, name)
    if list(run_records(ledger, ledger.size)[history.run].marks) != history.marks():
        raise LedgerNotVerified(
            f"{ledger.path}: its tables list other states, resumes, forks or releases of run {history.name} than its "
            "entries, and the log would sign them; run `ledger fsck`"
        )
    if step is None:
        step = history.last_step
    if step != history.first and step not in history.steps:
        raise StateMissing(f"run {history.name} has no step {step}; its last is {history.last_step}")
    state = history.state(step)
    path = state_folder(project.runs_dir / history.name, step) / WEIGHTS_FILE
    if not path.is_file():
        stored = sorted(s for s in history.states if state_folder(project.runs_dir / history.name, s).is_dir())
        listed = ", ".join(map(str, stored[-8:])) or "none"
        raise StateMissing(
            f"step {step} of run {history.name} has no stored state (stored: {listed}); choose with --step"
        )
    if is_own(history.genesis):
        description = of_program(read_model(project.runs_dir / history.name), history.genesis)
    else:
        description = of_config(huggingface_config(history.config))
    return _Source(history.run, step, state.digest, state.weights, path, description)


def _refuse_ended(ledger: Ledger, keyid: str, role: str, index: int) -> int | None:
    """Raise KeyEnded if the key does not count for entry ``index``; returns from which on it does not, if it ended."""
    found = ledger.connection.execute(
        "SELECT min(from_index) FROM key_revocations JOIN keys ON keys.entry = key WHERE keyid = ?", (keyid,)
    ).fetchone()[0]
    if found is not None and index >= found:
        raise KeyEnded(
            f"{role} key {keyid[:16]}… is revoked or replaced from entry {found} on, and entry {index} would need it: "
            "no consumer would accept the release"
        )
    return None if found is None else int(found)


def _check_trainer(ledger: Ledger, source: _Source) -> tuple[str, ...]:
    """Refuse a run whose trainer's key was ended before what it signed up to the step; warn of one ended since."""
    rows = ledger.connection.execute(
        "SELECT keys.keyid, max(log.entry) FROM log JOIN runs ON runs.entry = log.run JOIN keys ON keys.entry = signer"
        " WHERE runs.hash = ? AND (seq IS NOT NULL) GROUP BY keys.keyid ORDER BY keys.keyid",
        (source.run,),
    ).fetchall()
    ends = {keyid: _refuse_ended(ledger, keyid, "trainer", int(last)) for keyid, last in rows}
    return tuple(
        f"trainer key {keyid[:16]}… of the run was revoked or replaced from entry {end} on; if it was revoked, "
        "consumers who ask for witnesses accept the run only if these cosigned it before"
        for keyid, end in ends.items()
        if end is not None
    )


def _same_weights(project: Project, ledger: Ledger, model: str, source: _Source) -> tuple[str, ...]:
    """A warning if a version of the model has these weights already and is whole, so that this makes another one."""
    rows = ledger.connection.execute(
        "SELECT version FROM releases WHERE model = ? AND weights = ? ORDER BY version", (model, source.weights.root)
    ).fetchall()
    here = [str(version) for (version,) in rows if (project.models_dir / model / str(version)).is_dir()]
    return (f"version {', '.join(here)} of {model} has the same weights",) if here else ()


def load_weights(source: _Source) -> tuple[dict[str, weights.LoadedTensor], list[TensorLeaf]]:
    """The weights of a stored state, found to be those of the ledger. Raises StateIsNotTheLedgers."""
    with Folder(source.path.parent) as folder:
        data = folder.read(source.path.name, limit=folder.size(source.path.name))
    try:
        tensors = weights.collect({source.path.name: data})
        leaves = weights.leaves_of(tensors)
    except (SafetensorsError, weights.WeightsRefused) as error:
        raise StateIsNotTheLedgers(f"{source.path}: {error}") from error
    found = weights.commitment_of(leaves)
    if found != source.weights:
        raise StateIsNotTheLedgers(
            f"{source.path} has weights root {found.root[:16]}…, the ledger says {source.weights.root[:16]}… "
            f"for step {source.step}; nothing was written"
        )
    return tensors, leaves


def write_files(
    folder: Path, tensors: Mapping[str, TensorView], description: Description, shard_bytes: int
) -> list[dict[str, Any]]:
    """Write weights and what describes them, and say of each file what the release signs."""
    names = shards.write(folder, tensors, shard_bytes, _SHARDS_LIMIT)
    durable.write_new(folder / description.name, description.data)
    files = []
    for name in sorted((description.name, *names)):
        with open(folder / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files.append({"name": name, "sha256": digest, "bytes": (folder / name).stat().st_size})
    return files


def _dtype(leaves: Sequence[TensorLeaf]) -> str:
    dtypes = {leaf.dtype for leaf in leaves}
    if len(dtypes) != 1:
        raise BitwitnessError(f"the weights mix the dtypes {', '.join(sorted(dtypes))}; a release has one")
    return dtypes.pop()


def _release(ledger: Ledger, signer: Signer, predicate: dict[str, Any], folder: Path) -> tuple[int, int]:
    """Append the release, or find the one that an interrupted command left without its folder."""
    highest = 0
    rows = ledger.connection.execute(
        "SELECT entry, version FROM releases WHERE model = ? ORDER BY version", (predicate["model"],)
    ).fetchall()
    for index, version in rows:
        highest = max(highest, int(version))
        if not (folder / str(version)).exists():
            logged = open_envelope(ledger.entry(int(index))).statement["predicate"]
            optional = dict.fromkeys(("derivation", "license"))
            if {key: logged.get(key) for key in (*predicate, *optional)} == {**optional, **predicate}:
                return int(index), int(version)
    version = highest + 1
    if (folder / str(version)).exists():
        raise BitwitnessError(f"{folder / str(version)} exists but the ledger has no such version; move it away")
    full = {
        **predicate,
        "signer": signer.keyid,
        "time": rfc3339.now(),
        "version": version,
    }
    (index,) = ledger.append([seal(statement("release", None, full), signer)])
    return index, version
