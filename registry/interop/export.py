"""Writes a released version as a folder that Hugging Face's libraries load, and that still verifies.

config.json and the weights are the release's own; large weights are cut into shards with an index. Beside them stand
the tokenizer of the dataset, a model card, and `provenance.json`. Nothing is written before the files of the version
were found to be those that the ledger signed.

A model of the trainer's own has model.json in the place of config.json, and no library makes a model of it: its tensors
load anywhere, by name, and its module is whoever's who wrote it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bitwitness.ledger import p256
from bitwitness.ledger.checkpoint import parse_checkpoint
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.files.safetensors_header import SafetensorsError
from bitwitness.ledger.keys import Signer, passphrase_from_env
from bitwitness.ledger.note import parse_note
from bitwitness.ledger.project import Project

from .. import shards, weights
from ..bundles import bundle
from ..bundles.evidence import open_entries
from ..bundles.lineage import Lineage, find
from ..description import Description, is_own
from ..folder import CONFIG, PROGRAM, Folder, is_weights_file
from ..names import Version, find_version
from .card import CARD, card
from .cyclonedx import FILE_NAME as CYCLONEDX
from .cyclonedx import bom
from .oms import FILE_NAME as OMS
from .oms import sign as sign_oms
from .slsa import FILE_NAME as SLSA
from .slsa import write as write_slsa
from .tokenizer_files import (
    BYTES,
    END,
    END_NUMBER,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    byte_tokenizer,
    end_token,
    generation_config,
    tokenizer_config,
)

SHARD_SIZE = 5_000_000_000


class ExportRefused(BitwitnessError):
    """The version cannot be exported; nothing was written."""


class VersionChanged(FoundWrong):
    """The files of a version are not those that its release signed."""


@dataclass(frozen=True)
class Opened:
    """A version whose files were read once and found to be those of its release."""

    version: Version
    traced: Lineage
    provenance: bytes
    checkpoint: str
    description: Description
    tensors: Mapping[str, weights.LoadedTensor]


@dataclass(frozen=True)
class Exported:
    """What stands in ``path`` now: name → SHA-256 of every file, in order of the names."""

    version: Version
    path: Path
    files: Mapping[str, str]


def export(
    project: Project,
    name: str,
    target: Path,
    *,
    shard_size: int = SHARD_SIZE,
    slsa: bool = False,
    cyclonedx: bool = False,
    oms: bool = False,
) -> Exported:
    """Write the version that ``name`` means into the new folder ``target``.

    ``slsa`` adds an SLSA statement signed by the project's publisher, ``cyclonedx`` an ML-BOM, ``oms`` an OpenSSF
    signature of all files with the project's P-256 key, which is made when it is asked for the first time.
    Raises NoSuchModel, ExportRefused, VersionChanged, and what key files raise.
    """
    publisher = project.signer("publisher") if slsa else None
    packer = _oms_key(project) if oms else None
    with project.open_ledger() as ledger:
        version = find_version(ledger, name)
    target = target.absolute()  # "." has a name of its own, too
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportRefused(f"{target} exists and is no empty folder; name a new one")
    opened = open_version(version, version.folder(project))
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        views = {name: (item.entry.dtype, item.entry.shape, item.data) for name, item in opened.tensors.items()}
        shards.write(temporary, views, shard_size)
        texts = {
            opened.description.name: opened.description.data,
            bundle.FILE_NAME: opened.provenance,
            CARD: card(opened.traced),
        }
        for file, data in {**texts, **_tokenizer(project, opened.traced)}.items():
            (temporary / file).write_bytes(data)
        _describe(temporary, opened, publisher, cyclonedx=cyclonedx)
        if packer is not None:
            signed = sign_oms(digests(temporary), f"{version.model}-{version.version}", packer)
            (temporary / OMS).write_bytes(signed)
        if target.exists():
            target.rmdir()
        temporary.rename(target)
    except OSError as error:
        raise ExportRefused(f"{error.filename or target}: {error.strerror}; nothing was exported") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(version, target, digests(target))


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a flat folder, by name."""
    found = {}
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def open_version(version: Version, path: Path) -> Opened:
    """Read a version's folder and compare it with its release, as the bundle in it proves it. Raises VersionChanged."""
    if not path.is_dir():
        raise ExportRefused(f"{path} is not here; a version is exported from the project that holds its files")
    try:
        with Folder(path) as folder:
            provenance = bytes(folder.read(bundle.FILE_NAME, limit=bundle.SIZE_LIMIT))
            read = bundle.parse(provenance)
            entries = open_entries(read.entries, parse_checkpoint(parse_note(read.checkpoint).text))
            traced = find(entries, read.before or ())
            if traced.release.leaf != version.leaf:
                raise VersionChanged(f"{path}: its {bundle.FILE_NAME} is about another release than {version}")
            files: dict[str, bytearray] = {}
            for item in traced.release.predicate["files"]:
                data = folder.read(item["name"], limit=item["bytes"])
                if hashlib.sha256(data).hexdigest() != item["sha256"]:
                    raise VersionChanged(f"{path}: {item['name']} has other bytes than the release says")
                files[item["name"]] = data
        tensors = weights.collect({file: data for file, data in files.items() if is_weights_file(file)})
        found = weights.commitment_of(weights.leaves_of(tensors))
    except SafetensorsError as error:
        raise VersionChanged(f"{path}: {error}") from error
    if found != Commitment.from_json(traced.release.predicate["weights"], type="weights/1"):
        raise VersionChanged(f"{path}: its weights are not those of the release")
    name = PROGRAM if is_own(traced.genesis.predicate) else CONFIG
    if name not in files:
        raise VersionChanged(f"{path}: its release lists no {name}")
    description = Description(name, bytes(files[name]))
    return Opened(version, traced, provenance, read.checkpoint, description, tensors)


def _describe(folder: Path, opened: Opened, publisher: Signer | None, *, cyclonedx: bool) -> None:
    """Write what describes the files that stand in the folder now."""
    files = digests(folder)
    if cyclonedx:
        (folder / CYCLONEDX).write_bytes(bom(opened.traced, files))
    if publisher is not None:
        (folder / SLSA).write_bytes(write_slsa(opened.traced, opened.checkpoint, files, publisher))


def _oms_key(project: Project) -> p256.P256Key:
    path = project.key_path("oms")
    source = passphrase_from_env() or project.passphrase
    if path.exists():
        return p256.load_private(path, source)
    # It is encrypted like the project's other keys, if these are.
    encrypted = b"ENCRYPTED" in project.key_path("publisher").read_bytes()
    return p256.create(path, source() if encrypted and source is not None else None)


def _tokenizer(project: Project, traced: Lineage) -> dict[str, bytes]:
    """The tokenizer files of the dataset that the run was trained on; that of a file comes from the project's data.

    generation_config.json is for a model that `transformers` makes, so a model of the trainer's own has none.
    """
    found = _tokenizer_files(project, traced)
    if is_own(traced.genesis.predicate):
        found.pop(GENERATION, None)
    return found


def _tokenizer_files(project: Project, traced: Lineage) -> dict[str, bytes]:
    genesis = traced.genesis.predicate
    use = next(item for item in genesis["datasets"] if item["role"] == "train")
    entry = next(entry for entry in traced.own.datasets if entry.leaf == use["entry"])
    said, window = entry.predicate["tokenizer"], genesis["config"]["data"]["window"]
    if said["name"] == BYTES:
        return {
            TOKENIZER: byte_tokenizer(),
            TOKENIZER_CONFIG: tokenizer_config(window, END),
            GENERATION: generation_config(END_NUMBER),
        }
    if "digest" not in said:
        return {}
    from bitwitness.trainer.data import Dataset  # knows where data lies; brings numpy

    expected = Commitment.from_json(use["dataset"], type="dataset/1")
    tokenizer = Dataset.open(project.data_dir, use["name"], expected=expected).load_tokenizer()
    data, number = tokenizer.file or b"", tokenizer.info.end
    end = end_token(data, number)
    return {
        TOKENIZER: data,
        TOKENIZER_CONFIG: tokenizer_config(window, end),
        GENERATION: generation_config(None if end is None else number),
    }
