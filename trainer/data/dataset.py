"""Read a dataset: tokens by range, documents by token, and every range checked against the commitment."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bitwitness.ledger import merkle
from bitwitness.ledger.commitments import ZERO_SALT, Commitment, document_digest, document_leaf
from bitwitness.ledger.errors import FormatError, ProofError
from bitwitness.ledger.exchange.replay_files import HELD_OUT_FOLDER, dataset_folder

from .errors import DatasetDamaged, DocumentErased, NoSuchDataset
from .index import DOCUMENTS, HASH, RECORD, SALTS, DocumentIndex, DocumentRecord, MappedFile
from .manifest import MANIFEST, Manifest, read_manifest
from .shards import ShardReader
from .split import HELD_OUT
from .tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer

__all__ = ["HELD_OUT_FOLDER", "Dataset", "dataset_folder", "dataset_names"]


def dataset_names(data_dir: Path) -> list[str]:
    """The names of all datasets of a project, sorted."""
    names = []
    for manifest in data_dir.glob(f"[!.]*/{MANIFEST}"):
        name = manifest.parent.name
        names.append(name)
        if (manifest.parent / HELD_OUT_FOLDER / MANIFEST).exists():
            names.append(name + HELD_OUT)
    return sorted(names)


class Stream(Protocol):
    """A long sequence of bytes of which any range can be read."""

    def read(self, first: int, last: int) -> npt.NDArray[np.uint8]: ...


class Dataset:
    """An open dataset. Opening reads the manifest and file sizes only; ranges are mapped when read."""

    def __init__(
        self, folder: Path, manifest: Manifest, *, tokens: Stream | None = None, index: DocumentIndex | None = None
    ) -> None:
        """Read from the folder, but from `tokens` and `index` where they are given; then there is no text."""
        self.folder, self.manifest = folder, manifest
        self.name, self.commitment, self.tokens = manifest.name, manifest.dataset, manifest.tokens
        self.tokenizer = manifest.tokenizer
        self._width = manifest.tokenizer.token_bytes
        self._dtype = np.dtype("<u2" if self._width == 2 else "<u4")
        self._shards: Stream = (
            ShardReader(folder, "tokens", self.tokens * self._width, manifest.shard_bytes) if tokens is None else tokens
        )
        self._text = (
            ShardReader(folder, "text", manifest.source_bytes, manifest.shard_bytes)
            if manifest.tokenizer.digest is not None and tokens is None
            else None
        )
        self.index = DocumentIndex.open(folder) if index is None else index
        self._salts = MappedFile(folder / SALTS) if manifest.private else None
        self._tokenizer: Tokenizer | None = None
        self._checked: set[int] = set()
        self._end_checked = False

    @classmethod
    def open(cls, data_dir: Path, name: str, *, expected: Commitment | None = None) -> Dataset:
        """Open `name` of a project's data folder; with `expected`, only the dataset of that commitment.

        Raises NoSuchDataset, and DatasetDamaged where files are missing, cut or of another dataset.
        """
        folder = dataset_folder(data_dir, name)
        if not (folder / MANIFEST).exists():
            known = ", ".join(dataset_names(data_dir)) or "none yet"
            raise NoSuchDataset(f"no dataset {name} in {data_dir} (there: {known}); `ledger data build` makes one")
        manifest = read_manifest(folder, name)
        if manifest.name != name:
            raise DatasetDamaged(f"dataset {name}: its manifest calls it {manifest.name}; the folder was renamed")
        if expected is not None and manifest.dataset != expected:
            raise DatasetDamaged(
                f"dataset {name}: root {manifest.dataset.root} of {manifest.dataset.size} documents is not "
                f"the ledger's {expected.root} of {expected.size}"
            )
        _check_files(folder, manifest, name)
        return cls(folder, manifest)

    def read(self, first: int, last: int) -> npt.NDArray[np.int32]:
        """Tokens [first, last) of the stream, int32 [last − first]."""
        raw = self._stored(first, last)
        return raw.view(self._dtype).astype(np.int32)

    def _stored(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        return self._shards.read(first * self._width, last * self._width)

    def documents_in(self, first: int, last: int) -> range:
        """Numbers of the documents that hold the tokens [first, last)."""
        if not 0 <= first < last <= self.tokens:
            raise IndexError(f"tokens {first} to {last} of {self.tokens}")
        return range(self.index.holding(first), self.index.holding(last - 1) + 1)

    def path(self, document: int) -> str:
        """A document's path as it can be printed: bytes that are not UTF-8 and control characters as \\xNN."""
        text = self.index.path(self.index[document]).decode("utf-8", "backslashreplace")
        return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)

    def source(self, document: int) -> bytes:
        """A document's source bytes."""
        record = self.index[document]
        if self._text is not None:
            return self._text.read(record.text, record.text + record.size).tobytes()
        return self._stored(record.start, record.end - 1).view(self._dtype).astype(np.uint8).tobytes()

    def byte_range(self, document: int, first: int, last: int) -> tuple[int, int]:
        """Source bytes that a document's tokens [first, last) stand for; its end token stands for none."""
        size = self.index[document].size
        if self._text is None:
            return min(first, size), min(last, size)
        spans = self.load_tokenizer().spans(self.source(document))[first:last]
        return (int(spans[:, 0].min()), int(spans[:, 1].max())) if len(spans) else (size, size)

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens. Raises TokenizerUnusable, DatasetDamaged if its file changed."""
        if self._tokenizer is None:
            hugging_face = self.tokenizer.digest is not None
            self._tokenizer = load_tokenizer(self.folder / TOKENIZER_FILE if hugging_face else None)
            if self._tokenizer.info.digest != self.tokenizer.digest:
                raise DatasetDamaged(f"dataset {self.name}: {TOKENIZER_FILE} is not the one that made the tokens")
        return self._tokenizer

    def check_range(self, first: int, last: int) -> None:
        """Check that the stored tokens [first, last) are those that the commitment covers.

        Every document that the range touches is hashed whole, its leaf proven to the root; each document once
        per open dataset. Raises DatasetDamaged naming the document, DocumentErased where its salt is gone.
        """
        if not len(self.index):
            raise DatasetDamaged(f"dataset {self.name}: it has tokens, but no document that holds them")
        if not self._end_checked:
            self._check_leaf(len(self.index) - 1)
            self._end_checked = True
        documents = self.documents_in(first, last)
        if not documents:
            raise DatasetDamaged(f"dataset {self.name}: its index is out of order; restore {DOCUMENTS}")
        for document in documents:
            if document not in self._checked:
                self.check_document(document)
                self._checked.add(document)

    def check_all(self) -> None:
        """Check every file against the manifest's SHA-256 and every document against the commitment.

        Raises DatasetDamaged; erased documents of private data are passed over.
        """
        for file in self.manifest.files:
            with open(self.folder / str(file["name"]), "rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != file["sha256"]:
                    raise DatasetDamaged(f"dataset {self.name}: {file['name']} differs from what was built")
        for document in range(len(self.index)):
            with contextlib.suppress(DocumentErased):
                self.check_document(document)

    def check_document(self, document: int) -> None:
        """Check one document's tokens and its place in the tree, whether or not it was checked before."""
        record = self._check_leaf(document)
        digest = document_digest(self._stored(record.start, record.end).data, self._salt(document))
        if digest != record.tokens.hex():
            raise DatasetDamaged(
                f"dataset {self.name}: the tokens of document {document} ({self.path(document)}) differ from "
                "what the ledger commits to; restore its files or build it again"
            )

    def check_source(self, document: int) -> None:
        """Check one document's source bytes against its digest, and that the tokenizer gives its tokens."""
        record = self._check_leaf(document)
        source = self.source(document)
        tokens = np.append(self.load_tokenizer().encode(source), self.tokenizer.end)
        if document_digest(source, self._salt(document)) != record.source.hex() or not np.array_equal(
            tokens, self.read(record.start, record.end)
        ):
            raise DatasetDamaged(f"dataset {self.name}: the text of document {document} is not what was committed")

    def _check_leaf(self, document: int) -> DocumentRecord:
        """Prove a document's record to the root, and that it joins its neighbours without a gap."""
        record = self.index[document]
        size = self.commitment.size
        try:
            leaf = document_leaf(
                count=record.count, source=record.source.hex(), start=record.start, tokens=record.tokens.hex()
            )
            proof = merkle.inclusion_proof_from_nodes(document, size, self.index.node)
            merkle.verify_inclusion(document, size, merkle.leaf_hash(leaf), proof, self.commitment.root_bytes)
        except (ProofError, FormatError):
            raise DatasetDamaged(
                f"dataset {self.name}: the index record of document {document} is not in the committed tree"
            ) from None
        following = self.index.start(document + 1) if document + 1 < size else self.tokens
        if record.end != following or (document == 0 and record.start != 0) or record.end > self.tokens:
            raise DatasetDamaged(f"dataset {self.name}: document {document} does not join the next one")
        return record

    def _salt(self, document: int) -> bytes:
        if self._salts is None:
            return ZERO_SALT
        salt = self._salts.read(document * HASH, HASH)
        if salt == ZERO_SALT:
            raise DocumentErased(self.name, document)
        return salt


def _check_files(folder: Path, manifest: Manifest, name: str) -> None:
    """Compare the size of every file with the manifest: a cut file must not be mapped."""
    sizes = {str(file["name"]): int(file["bytes"]) for file in manifest.files}
    for file, expected in sizes.items():
        try:
            found = (folder / file).stat().st_size
        except OSError as error:
            raise DatasetDamaged(f"dataset {name}: {file}: {error.strerror}; restore it or build again") from None
        if found != expected:
            raise DatasetDamaged(f"dataset {name}: {file} has {found} bytes, not {expected}; restore it or build again")
    tokens = sum(size for file, size in sizes.items() if file.startswith("tokens-"))
    if (
        tokens != manifest.tokens * manifest.tokenizer.token_bytes
        or sizes.get(DOCUMENTS) != manifest.documents * RECORD.size
        or manifest.documents != manifest.dataset.size
    ):
        raise DatasetDamaged(f"dataset {name}: the counts in manifest.json do not fit its files")
