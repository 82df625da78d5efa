"""manifest.json: what a dataset folder holds (docs/formats/dataset.md). Canonical JSON, read strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.ledger import jcs
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.errors import FormatError
from bitwitness.ledger.exchange.replay_files import MANIFEST

from .errors import DataError, DatasetDamaged
from .split import HELD_OUT
from .tokenizer import BYTES, HUGGING_FACE, TokenizerInfo

__all__ = ["ENTRY", "MANIFEST", "Manifest", "check_license", "check_name", "parse_manifest", "read_manifest"]

FORMAT = "bitwitness/dataset/v1"
ENTRY = "entry.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,54}")
_FILE = re.compile(r"[a-z]+(-[0-9]{5,})?\.(bin|json)")
_LICENSE = re.compile(r"[A-Za-z0-9.+() -]{1,100}")
_FIELDS = {
    "format", "name", "dataset", "documents", "tokens", "bytes", "tokenizer", "end", "shard_bytes", "files",
    "visibility",
}  # fmt: skip


def check_name(name: str) -> str:
    """Refuse a name that a user may not give: it names a folder, and `.held-out` is added by the builder."""
    if not _NAME.fullmatch(name) or name.endswith(HELD_OUT):
        raise DataError(f"the name {name!r} must be 1 to 55 of A-Z a-z 0-9 . _ - and not end in {HELD_OUT}")
    return name


def check_license(text: str) -> str:
    """Refuse what cannot be an SPDX expression."""
    if not _LICENSE.fullmatch(text):
        raise DataError(f"--license {text!r}: give an SPDX expression such as CC-BY-4.0")
    return text


@dataclass(frozen=True)
class Manifest:
    """A dataset in numbers, and its files with their sizes and SHA-256."""

    name: str
    dataset: Commitment
    documents: int
    tokens: int
    source_bytes: int
    tokenizer: TokenizerInfo
    shard_bytes: int
    files: tuple[dict[str, Any], ...]
    private: bool
    license: str | None = None
    split: dict[str, Any] | None = None

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "dataset": self.dataset.to_json(),
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.source_bytes,
            "tokenizer": self.tokenizer.to_json(),
            "end": self.tokenizer.end,
            "shard_bytes": self.shard_bytes,
            "files": sorted(self.files, key=lambda file: str(file["name"])),
            "visibility": "private" if self.private else "public",
        }
        if self.license is not None:
            fields["license"] = self.license
        if self.split is not None:
            fields["split"] = self.split
        return jcs.encode(fields)


def read_manifest(folder: Path, label: str) -> Manifest:
    """Read and check manifest.json. Raises DatasetDamaged if it is not one."""
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise DatasetDamaged(f"dataset {label}: manifest.json: {error.strerror}; build the dataset again") from None
    return parse_manifest(data, label)


def parse_manifest(data: bytes, label: str) -> Manifest:
    """Check the bytes of a manifest.json. Raises DatasetDamaged if they are not those of one."""
    try:
        found = jcs.parse(data)
        if not isinstance(found, dict) or not _FIELDS <= found.keys() <= _FIELDS | {"license", "split"}:
            raise ValueError("fields are missing or unknown")
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r}; this version reads {FORMAT}")
        tokenizer = found["tokenizer"]
        if tokenizer["name"] not in (BYTES, HUGGING_FACE):
            raise ValueError(f"tokenizer {tokenizer['name']!r} is unknown")
        numbers = (found["documents"], found["tokens"], found["bytes"], found["shard_bytes"], found["end"],
                   tokenizer["vocabulary"])  # fmt: skip
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("a count is not a natural number")
        if not 0 <= found["end"] < tokenizer["vocabulary"] or found["shard_bytes"] % 4 or not found["shard_bytes"]:
            raise ValueError("end or shard_bytes is out of range")
        for file in found["files"]:
            if file.keys() != {"name", "bytes", "sha256"} or not _FILE.fullmatch(file["name"]):
                raise ValueError(f"not a file of a dataset: {file}")
        return Manifest(
            name=found["name"],
            dataset=Commitment.from_json(found["dataset"], type="dataset/1"),
            documents=found["documents"],
            tokens=found["tokens"],
            source_bytes=found["bytes"],
            tokenizer=TokenizerInfo(tokenizer["name"], tokenizer["vocabulary"], found["end"], tokenizer.get("digest")),
            shard_bytes=found["shard_bytes"],
            files=tuple(found["files"]),
            private=found["visibility"] == "private",
            license=found.get("license"),
            split=found.get("split"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, FormatError) as error:
        raise DatasetDamaged(f"dataset {label}: manifest.json is not valid: {error}") from None
