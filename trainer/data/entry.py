"""The `dataset` entry: what the ledger says of a dataset. Signed at the build, appended once.

The signed bytes lie in the dataset's folder from the start. A build that is cut off between the rename and
the append, or whose ledger has another writer, loses nothing: whoever uses the dataset next appends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bitwitness.ledger import merkle
from bitwitness.ledger.entry import entries
from bitwitness.ledger.entry.envelope import open_envelope, seal
from bitwitness.ledger.errors import FormatError
from bitwitness.ledger.keys import Signer

from .dataset import Dataset
from .errors import DatasetDamaged
from .manifest import ENTRY, Manifest


class LedgerLike(Protocol):
    """The two calls that recording needs of a ledger open for writing."""

    def find(self, leaf_hash: bytes) -> int | None: ...

    def append(self, entries: Sequence[bytes]) -> Any: ...


def dataset_entry(manifest: Manifest, signer: Signer, time: str) -> bytes:
    """The signed entry of a dataset. `time` is RFC 3339 UTC. Raises EntryError."""
    predicate: dict[str, Any] = {"signer": signer.keyid, "time": time, **described(manifest)}
    return seal(entries.statement("dataset", None, predicate), signer)


def described(manifest: Manifest) -> dict[str, Any]:
    """The fields of a `dataset` entry that a manifest states."""
    fields: dict[str, Any] = {
        "name": manifest.name,
        "dataset": manifest.dataset.to_json(),
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "bytes": manifest.source_bytes,
        "tokenizer": manifest.tokenizer.to_json(),
        "visibility": "private" if manifest.private else "public",
    }
    return fields if manifest.license is None else {**fields, "license": manifest.license}


def entry_bytes(dataset: Dataset) -> bytes:
    """The signed entry kept with a dataset. Raises DatasetDamaged if it describes another one."""
    try:
        data = (dataset.folder / ENTRY).read_bytes()
        predicate = open_envelope(data).statement.get("predicate", {})
    except (OSError, FormatError) as error:
        raise DatasetDamaged(f"dataset {dataset.name}: {ENTRY}: {error}") from None
    stated = described(dataset.manifest)
    if any(predicate.get(key) != value for key, value in stated.items()):
        raise DatasetDamaged(f"dataset {dataset.name}: {ENTRY} describes another dataset; build it again")
    return data


def entry_leaf(dataset: Dataset) -> str:
    """The leaf hash (hex) of a dataset's entry, by which a genesis names it."""
    return merkle.leaf_hash(entry_bytes(dataset)).hex()


def record(ledger: LedgerLike, datasets: Sequence[Dataset]) -> list[str]:
    """Append the entries of these datasets that the ledger does not hold yet, in one transaction.

    Returns their leaf hashes (hex), in order. `ledger` is open for writing.
    """
    data = [entry_bytes(dataset) for dataset in datasets]
    missing = [entry for entry in data if ledger.find(merkle.leaf_hash(entry)) is None]
    if missing:
        ledger.append(missing)
    return [merkle.leaf_hash(entry).hex() for entry in data]
