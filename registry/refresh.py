"""Makes the bundle of a released version anew, so that it tells what was said since: later audits, words, a new status.

Weights and configuration stay as they are, and must be those that the release signed. The leaves are taken from the
bundle that is replaced, if they still lead to the signed root, else from the files. The new bundle takes the place of
the old one in one step, so that a gate reads either. A version that is not on disk is written whole again (restore.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.ledger.commitments import Commitment, TensorLeaf
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.files import durable
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from . import weights
from .bundles import bundle
from .bundles.collect import collect
from .folder import Folder, is_weights_file
from .names import Version, find_version
from .restore import restore
from .status import append_status

_PIECE = 16 << 20


class FilesDiffer(FoundWrong):
    """The files on disk are not those of the release; no bundle is made for them."""


@dataclass(frozen=True)
class Refreshed:
    """A bundle that was made anew, for a checkpoint of ``size`` entries."""

    version: Version
    path: Path
    size: int

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.version.model,
            "version": self.version.version,
            "path": str(self.path),
            "size": self.size,
        }


def refresh(
    project: Project, name: str, *, cosign: Callable[[Ledger, str], str] = lambda ledger, note: note
) -> Refreshed:
    """Write provenance.json of a version again, under a new status and checkpoint; all files, if they are gone.

    Raises NoSuchModel, NotOnDisk, FilesDiffer, or what ledger and key files raise.
    """
    log = project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        version = find_version(ledger, name)
        folder = version.folder(project)
        release = open_envelope(ledger.entry(version.index)).statement["predicate"]
        if folder.is_symlink() and not folder.exists():
            raise BitwitnessError(
                f"{folder} is a link that leads nowhere; remove it, and refresh writes the folder again"
            )
        if not folder.exists():
            return Refreshed(version, restore(project, ledger, log, version, release, cosign), ledger.size)
        check_files(folder, release["files"])
        leaves = leaves_on_disk(folder, Commitment.from_json(release["weights"], type="weights/1"))
        append_status(ledger, log)
        made = collect(ledger, version.index, cosign(ledger, ledger.sign_checkpoint(log)), leaves)
        path = folder / bundle.FILE_NAME
        replace_file(path, made.encode())
        return Refreshed(version, path, ledger.size)


def check_files(folder: Path, listed: Iterable[Mapping[str, Any]]) -> None:
    """Raise FilesDiffer unless every file that a release lists is there with its bytes."""
    with Folder(folder) as opened:
        for item in listed:
            name, digest = item["name"], hashlib.sha256()
            if name not in opened.names:
                raise FilesDiffer(f"{folder / name} is missing; a bundle would vouch for it, so none was made")
            with opened.open(name, limit=opened.size(name)) as file:
                left = file.size
                while left:
                    piece = memoryview(bytearray(min(left, _PIECE)))
                    file.fill(piece)
                    digest.update(piece)
                    left -= len(piece)
                file.finish()
            if digest.hexdigest() != item["sha256"]:
                raise FilesDiffer(
                    f"{folder / name} is damaged: it has other bytes than the release; move the folder away, and "
                    "refresh writes it again"
                )


def leaves_on_disk(folder: Path, signed: Commitment) -> list[TensorLeaf]:
    """The tensor leaves under a signed root: from the bundle there, else from the weights. Raises FilesDiffer."""
    with Folder(folder) as opened:
        if bundle.FILE_NAME in opened.names:
            try:
                old = bundle.parse(bytes(opened.read(bundle.FILE_NAME, limit=bundle.SIZE_LIMIT)))
            except BitwitnessError:
                pass  # it is replaced by one that can be read
            else:
                listed = [TensorLeaf(x.name, x.dtype, tuple(x.shape), x.bytes, x.digest) for x in old.weights]
                if weights.commitment_of(listed) == signed:
                    return listed
        files = {name: opened.read(name, limit=opened.size(name)) for name in opened.names if is_weights_file(name)}
    leaves = weights.leaves_of(weights.collect(files))
    if weights.commitment_of(leaves) != signed:
        raise FilesDiffer(f"{folder}: the weights there are not those of the release")
    return leaves


def replace_file(path: Path, data: bytes) -> None:
    """Put new bytes in a file's place, whole or not at all. The model's folder itself never holds another file."""
    stage = path.parent.parent / f".tmp-{os.getpid()}"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    try:
        durable.replace(path, data, temporary=stage / path.name)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
