"""Writes the folder of a released version again, with the bytes that the release signed.

They come from the run's stored state; a cast or merge is computed again from the versions that it derives from.

Nothing is released anew: the files must have the signed SHA-256, or nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bitwitness.ledger.commitments import TensorLeaf, TensorView
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.files import durable
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from .bundles import bundle
from .bundles.collect import collect
from .description import Description
from .folder import WEIGHTS
from .interop.export import ExportRefused
from .names import Version
from .register import SHARD_BYTES, StateMissing, find_source, load_weights, temporary_folder, write_files
from .status import append_status


class NotOnDisk(BitwitnessError):
    """The files of a version are not in this project, and cannot be made again from what is."""

    def __init__(self, version: Version, folder: Path, why: str) -> None:
        super().__init__(f"{version} is not on disk ({folder}), and {why}")


def restore(
    project: Project,
    ledger: Ledger,
    log: Signer,
    version: Version,
    release: Mapping[str, Any],
    cosign: Callable[[Ledger, str], str],
) -> Path:
    """Write all files of a version and its bundle, under a new status and checkpoint; returns its folder.

    Raises NotOnDisk, or what the run's stored state and the ledger raise.
    """
    folder = version.folder(project)
    views, leaves, description = _content(project, ledger, version, release)
    whole = any(item["name"] == WEIGHTS for item in release["files"])
    limit = sum(leaf.nbytes for leaf in leaves) if whole else SHARD_BYTES
    with temporary_folder(folder.parent) as temporary:
        if write_files(temporary, views, description, limit) != release["files"]:
            raise FoundWrong(
                f"{version} cannot be written again as it was: its state gives other files than the release lists; "
                "`ledger model register` with the --shard-size and --license of then completes its folder"
            )
        append_status(ledger, log)
        made = collect(ledger, version.index, cosign(ledger, ledger.sign_checkpoint(log)), leaves)
        durable.write_new(temporary / bundle.FILE_NAME, made.encode())
        durable.sync_folder(temporary)
        temporary.rename(folder)
        durable.sync_folder(folder.parent)
    return folder


def _content(
    project: Project, ledger: Ledger, version: Version, release: Mapping[str, Any]
) -> tuple[Mapping[str, TensorView], Sequence[TensorLeaf], Description]:
    """Tensors, leaves and description: of the run's stored state, or derived again from its sources."""
    folder = version.folder(project)
    if "derivation" in release:
        from .derive import derive_again  # brings the kernels

        try:
            return derive_again(project, ledger, release)
        except ExportRefused as error:
            raise NotOnDisk(version, folder, f"a version that it derives from is gone, too: {error}") from None
    try:
        source = find_source(project, ledger, release["run"], release["step"])
    except StateMissing as error:
        raise NotOnDisk(version, folder, f"{error.args[0]}; copy the folder back from where it was published") from None
    tensors, leaves = load_weights(source)
    views = {name: (tensor.entry.dtype, tensor.entry.shape, tensor.data) for name, tensor in tensors.items()}
    return views, leaves, source.description
