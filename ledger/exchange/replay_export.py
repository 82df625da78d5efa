"""`ledger export --run`: beside the log's tiles, the files that a replay reads, for any web server or bucket.

Tokens are cut into files of 4 MiB, so that a server that knows no ranges can be read, too. Other files are copied.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from .. import jcs
from ..errors import BitwitnessError
from ..files import durable
from ..files.durable import write_whole
from ..project import Project
from ..store import Ledger
from .replay_files import (
    MANIFEST,
    MANIFEST_LIMIT,
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    Address,
    DataAddress,
    ModelAddress,
    PartsAddress,
    StateAddress,
    open_file,
)

PIECE = 1 << 22
_INDEX_FILES = ("documents.bin", "tree.bin")


@dataclass
class ReplayExport:
    """What was written of a run: its stored states by step, its data by name; and what is not there to be written."""

    run: str
    states: list[int] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    bytes: int = 0


def export_run(project: Project, ledger: Ledger, name: str, folder: Path) -> ReplayExport:
    """Write the stored states and the public data of a run below `folder`. Files that are there already stay.

    Raises BitwitnessError for an unknown run, and OSError.
    """
    run = ledger.find_run(name)
    if run is None:
        raise BitwitnessError(f"no run {name} in this ledger; `ledger log --kind run` lists them")
    done = ReplayExport(run)
    steps = ledger.connection.execute(
        "SELECT DISTINCT step FROM states WHERE run = (SELECT entry FROM runs WHERE hash = ?) ORDER BY step", (run,)
    )
    for (step,) in steps.fetchall():
        copied = [
            _copy(project, ledger, StateAddress(run, step, file), folder) for file in (WEIGHTS_FILE, OPTIMIZER_FILE)
        ]
        if None in copied:
            done.missing.append(f"the stored state of step {step}")
        else:
            done.states.append(step)
            done.bytes += sum(size for size in copied if size is not None)
    for (step,) in ledger.connection.execute(
        "SELECT step FROM steps WHERE run = (SELECT entry FROM runs WHERE hash = ?) ORDER BY step", (run,)
    ).fetchall():
        done.bytes += _copy(project, ledger, PartsAddress(run, step), folder) or 0
    # A run that begins with imported weights keeps them as state 0, whose moments are 0; one that goes on from another
    # run keeps the whole state that it goes on from.
    (first,) = ledger.connection.execute("SELECT coalesce(parent_step, 0) FROM runs WHERE hash = ?", (run,)).fetchone()
    for file in (WEIGHTS_FILE, OPTIMIZER_FILE):
        done.bytes += _copy(project, ledger, StateAddress(run, first, file), folder) or 0
    done.bytes += _copy(project, ledger, ModelAddress(run), folder) or 0
    used = ledger.connection.execute(
        "SELECT DISTINCT datasets.name, datasets.root FROM run_datasets JOIN datasets ON datasets.entry = dataset"
        " WHERE run = (SELECT entry FROM runs WHERE hash = ?) ORDER BY position",
        (run,),
    )
    for dataset, root in used.fetchall():
        size = _export_data(project, ledger, root, folder)
        if size is None:
            done.missing.append(f"dataset {dataset}, which is not public or not here")
        else:
            done.datasets.append(dataset)
            done.bytes += size
    return done


def _copy(project: Project, ledger: Ledger, address: Address, folder: Path) -> int | None:
    source = open_file(project, ledger, address)
    if source is None:
        return None
    with source:
        return _write(folder / address.path, _parts(source), os.fstat(source.fileno()).st_size)


def _write(path: Path, parts: Iterator[bytes], size: int) -> int:
    """Write a file whole or not at all; one of this size is taken to be it. Returns its size."""
    if path.is_file() and path.stat().st_size == size:
        return size
    path.parent.mkdir(parents=True, exist_ok=True)
    return durable.replace(path, parts, temporary=path.with_name(path.name + ".part"))


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(PIECE):
        yield part


def _export_data(project: Project, ledger: Ledger, root: str, folder: Path) -> int | None:
    source = open_file(project, ledger, DataAddress(root, MANIFEST))
    if source is None:
        return None
    with source:
        manifest: dict[str, Any] = jcs.parse(source.read(MANIFEST_LIMIT))
    if not isinstance(manifest.get("files"), list) or not all(
        isinstance(f, dict) and "name" in f for f in manifest["files"]
    ):
        raise BitwitnessError(f"the dataset with root {root[:16]}… has a damaged {MANIFEST}; build it again")
    files: list[dict[str, Any]] = []
    for name in _INDEX_FILES:
        size = _copy(project, ledger, DataAddress(root, name), folder)
        if size is None:
            return None
        files.append({"bytes": size, "name": name, "sha256": _digest(folder / DataAddress(root, name).path)})
    for number, data in enumerate(_tokens(project, ledger, root, manifest)):
        address = DataAddress(root, f"tokens-{number:05d}.bin")
        _write(folder / address.path, iter([data]), len(data))
        files.append({"bytes": len(data), "name": address.file, "sha256": hashlib.sha256(data).hexdigest()})
    manifest["shard_bytes"], manifest["files"] = PIECE, sorted(files, key=lambda file: str(file["name"]))
    encoded = jcs.encode(manifest)
    write_whole(folder / DataAddress(root, MANIFEST).path, encoded)
    return sum(int(file["bytes"]) for file in files) + len(encoded)


def _tokens(project: Project, ledger: Ledger, root: str, manifest: dict[str, Any]) -> Iterator[bytes]:
    """The stream of tokens, cut anew."""
    held = bytearray()
    for file in sorted(str(item["name"]) for item in manifest["files"]):
        if not file.startswith("tokens-"):
            continue
        source = open_file(project, ledger, DataAddress(root, file))
        if source is None:
            raise BitwitnessError(f"the dataset with root {root[:16]}… lacks {file}; restore it, or build it again")
        with source:
            for part in _parts(source):
                held += part
                while len(held) >= PIECE:
                    yield bytes(held[:PIECE])
                    del held[:PIECE]
    if held:
        yield bytes(held)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
