"""A dataset that lies elsewhere: the same checks as on a local one, over blocks that are fetched as they are read.

What the other side's manifest says must be what the ledger's `dataset` entry says; index records and tokens count once
they are proven to the committed root, like any others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitwitness.ledger.exchange.replay_files import MANIFEST, MANIFEST_LIMIT, DataAddress
from bitwitness.ledger.follow.remote import NotThere, Remote, RemoteError

from .dataset import Dataset
from .entry import described
from .errors import DataError, DatasetDamaged
from .index import DOCUMENTS, RECORD, TREE, DocumentIndex, DocumentRecord
from .manifest import Manifest, parse_manifest
from .ranges import RangedFile, RangedShards
from .shards import shard_name

_TRIES = 3


class NotFetched(DataError):
    """Data that another machine withholds, or that could not be fetched from it."""


class RemoteDataset(Dataset):
    """A dataset at `remote`. A document that is not as committed is fetched once more before that is said."""

    def __init__(self, remote: Remote, folder: Path, entry: Mapping[str, Any]) -> None:
        """`folder` keeps what was fetched; `entry` is the predicate of the `dataset` entry, verified.

        Raises NotFetched, DatasetDamaged.
        """
        self._remote, root = remote, str(entry["dataset"]["root"])
        self._root = root
        manifest = self._manifest(entry)
        width = manifest.tokenizer.token_bytes
        # Files fetched under another manifest are kept apart.
        kept = folder / hashlib.sha256(manifest.encode()).hexdigest()[:16]
        self._records = self._file(kept, DOCUMENTS, manifest.documents * RECORD.size, stays_open=True)
        self._tree = self._file(kept, TREE, tree_bytes(manifest.documents), stays_open=True)
        self._tokens = RangedShards(self._token_files(kept, manifest.tokens * width, manifest), manifest.shard_bytes)
        index = DocumentIndex(self._records, None, self._tree)
        super().__init__(kept, manifest, tokens=self._tokens, index=index)

    def _manifest(self, entry: Mapping[str, Any]) -> Manifest:
        name = str(entry["name"])
        try:
            data = self._remote.get(DataAddress(self._root, MANIFEST).path, MANIFEST_LIMIT)
        except RemoteError as error:
            raise _not_fetched(name, error) from None
        manifest = parse_manifest(data, name)
        fields = described(manifest)
        wrong = sorted(key for key in fields.keys() - {"license"} if entry.get(key) != fields[key])
        if wrong:
            raise DatasetDamaged(f"dataset {name}: the manifest at {self._remote.url} states another {wrong[0]}")
        return manifest

    def _token_files(self, kept: Path, size: int, manifest: Manifest) -> list[RangedFile]:
        each = manifest.shard_bytes
        if size > each * 100_000:
            raise DatasetDamaged(f"dataset {manifest.name}: the manifest cuts the tokens into too many files")
        starts = range(0, size, each)
        return [
            self._file(kept, shard_name("tokens", number), min(each, size - first))
            for number, first in enumerate(starts)
        ]

    def _file(self, kept: Path, file: str, size: int, *, stays_open: bool = False) -> RangedFile:
        path = DataAddress(self._root, file).path

        def fetch(first: int, count: int) -> bytes:
            for attempt in range(_TRIES):
                try:
                    return self._remote.get_range(path, first, count)
                except NotThere as error:
                    raise _not_fetched(file, error) from None
                except RemoteError as error:
                    if attempt == _TRIES - 1:
                        raise _not_fetched(file, error) from None
            raise AssertionError

        return RangedFile(kept / file, size, fetch, stays_open=stays_open)

    def check_document(self, document: int) -> None:
        try:
            super().check_document(document)
        except DatasetDamaged:
            record, width = self.index[document], self.manifest.tokenizer.token_bytes
            end = min(self._tokens.size, record.end * width)
            self._tokens.forget(min(record.start * width, end), end)
            super().check_document(document)

    def _check_leaf(self, document: int) -> DocumentRecord:
        try:
            return super()._check_leaf(document)
        except DatasetDamaged:
            self._tree.forget(0, len(self._tree))
            self._records.forget(document * RECORD.size, (document + 2) * RECORD.size)
            return super()._check_leaf(document)

    def close(self) -> None:
        """Close the files that keep what was fetched."""
        for file in (self._records, self._tree):
            file.close()


def tree_bytes(documents: int) -> int:
    """The size of tree.bin: all perfect subtrees, 2n − popcount(n) hashes of 32 bytes."""
    return 32 * (2 * documents - documents.bit_count())


def _not_fetched(what: str, error: RemoteError) -> NotFetched:
    return NotFetched(f"{what}: {error}")
