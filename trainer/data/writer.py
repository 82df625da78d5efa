"""Write one dataset folder from a stream of documents: shards, index, tree, manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bitwitness.ledger import merkle
from bitwitness.ledger.commitments import ZERO_SALT, Commitment, document_digest, document_leaf
from bitwitness.ledger.files import durable

from .documents import Document
from .index import DOCUMENTS, PATHS, SALTS, TREE, DocumentRecord
from .manifest import MANIFEST, Manifest
from .shards import FileWriter, ShardWriter, private_mode
from .tokenizer import TOKENIZER_FILE, Tokenizer


class DatasetWriter:
    """Documents in, files out. Nothing is complete before `finish`; the folder is the caller's to name."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, *, private: bool, shard_bytes: int, salt: Any = os.urandom
    ) -> None:
        folder.mkdir(mode=0o700 if private else 0o777)
        self.folder = folder
        self._tokenizer, self._private, self._shard_bytes, self._new_salt = (
            tokenizer,
            private,
            shard_bytes,
            salt,
        )
        self._tokens = ShardWriter(folder, "tokens", shard_bytes, private=private)
        # With bytes as tokens the text can be read back from the tokens.
        keep_text = tokenizer.file is not None
        self._text = ShardWriter(folder, "text", shard_bytes, private=private) if keep_text else None
        self._documents = FileWriter(folder / DOCUMENTS, private=private)
        self._paths = FileWriter(folder / PATHS, private=private)
        self._tree = FileWriter(folder / TREE, private=private)
        self._salts = FileWriter(folder / SALTS, private=private) if private else None
        self._frontier = merkle.Frontier()
        self._last_path: tuple[bytes, int] = (b"", 0)
        self.documents = self.tokens = self.bytes = 0

    def add(self, document: Document) -> None:
        """Append one document: its tokens and the end token, its record, its leaf."""
        info = self._tokenizer.info
        numbers = np.append(self._tokenizer.encode(document.source), info.end)
        stored = numbers.astype("<u2" if info.token_bytes == 2 else "<u4").tobytes()
        salt = self._new_salt(32) if self._salts is not None else ZERO_SALT
        source, tokens = document_digest(document.source, salt), document_digest(stored, salt)
        path, path_bytes = self._path(document.path)
        record = DocumentRecord(
            start=self.tokens,
            count=len(numbers),
            size=len(document.source),
            text=self.bytes,
            path=path,
            path_bytes=path_bytes,
            line=document.line,
            source=bytes.fromhex(source),
            tokens=bytes.fromhex(tokens),
        )
        leaf = document_leaf(count=record.count, source=source, start=record.start, tokens=tokens)
        self._tokens.write(stored)
        if self._text is not None:
            self._text.write(document.source)
        self._documents.write(record.pack())
        for _level, _index, node in self._frontier.append(merkle.leaf_hash(leaf)):
            self._tree.write(node)
        if self._salts is not None:
            self._salts.write(salt)
        self.documents += 1
        self.tokens += record.count
        self.bytes += record.size

    def _path(self, path: bytes) -> tuple[int, int]:
        """Where a path stands in paths.bin; lines of one .jsonl file share theirs."""
        known, offset = self._last_path
        if path != known:
            offset = self._paths.bytes
            self._paths.write(path)
            self._last_path = (path, offset)
        return offset, len(path)

    def commitment(self) -> Commitment:
        return Commitment("dataset/1", self._frontier.size, self._frontier.root().hex())

    def finish(self, name: str, *, license: str | None, split: dict[str, Any] | None) -> Manifest:
        """Put everything on the disk, the manifest last."""
        files = self._tokens.close() + (self._text.close() if self._text is not None else [])
        files += [self._documents.close(), self._paths.close(), self._tree.close()]
        if self._salts is not None:
            files.append(self._salts.close())
        if self._tokenizer.file is not None:
            copy = FileWriter(self.folder / TOKENIZER_FILE, private=self._private)
            copy.write(self._tokenizer.file)
            files.append(copy.close())
        manifest = Manifest(
            name=name,
            dataset=self.commitment(),
            documents=self.documents,
            tokens=self.tokens,
            source_bytes=self.bytes,
            tokenizer=self._tokenizer.info,
            shard_bytes=self._shard_bytes,
            files=tuple(files),
            private=self._private,
            license=license,
            split=split,
        )
        durable.write_new(self.folder / MANIFEST, manifest.encode(), mode=private_mode(self._private))
        return manifest

    def abandon(self) -> None:
        """Let go of the files after an error."""
        for writer in (self._tokens, self._text, self._documents, self._paths, self._tree, self._salts):
            if writer is not None:
                writer.abandon()
