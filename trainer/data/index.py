"""The document index and the hash tree of a dataset (docs/formats/dataset.md).

`documents.bin` holds one record of 112 bytes per document, `paths.bin` the paths they name, `tree.bin` the
perfect subtrees of the commitment. All three are read where they lie: nothing grows with the dataset.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

DOCUMENTS, PATHS, TREE, SALTS = "documents.bin", "paths.bin", "tree.bin", "salts.bin"
RECORD = struct.Struct("<QQQQQII32s32s")
HASH = 32


@dataclass(frozen=True)
class DocumentRecord:
    """A document: its tokens [start, start + count) of the stream, its bytes, its place, its two digests.

    `text` is the number of source bytes before it; `path`, `path_bytes` say where its path is in paths.bin.
    """

    start: int
    count: int
    size: int
    text: int
    path: int
    path_bytes: int
    line: int
    source: bytes
    tokens: bytes

    def pack(self) -> bytes:
        return RECORD.pack(
            self.start, self.count, self.size, self.text, self.path, self.path_bytes, self.line, self.source,
            self.tokens,
        )  # fmt: skip

    @property
    def end(self) -> int:
        """One past its last token."""
        return self.start + self.count


def node_position(level: int, index: int) -> int:
    """Where a perfect subtree stands in tree.bin, whose nodes are in the order in which they became complete.

    It is complete with leaf j = (index + 1)·2^level − 1, before which 2j − popcount(j) nodes stand.
    """
    j = ((index + 1) << level) - 1
    return 2 * j - j.bit_count() + level


class MappedFile:
    """A file mapped for reading; an empty one is empty bytes."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as stream:
            stream.seek(0, 2)
            self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if stream.tell() else b""

    def __len__(self) -> int:
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


class Bytes(Protocol):
    """A file of which any part can be read; what is beyond its end is left out."""

    def __len__(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...


class DocumentIndex:
    """The documents of a dataset by number and by token. Without `paths` none has a path."""

    def __init__(self, records: Bytes, paths: Bytes | None, tree: Bytes) -> None:
        self._records, self._paths, self._tree = records, paths, tree

    @classmethod
    def open(cls, folder: Path) -> DocumentIndex:
        """The index in a dataset's folder."""
        return cls(*(MappedFile(folder / name) for name in (DOCUMENTS, PATHS, TREE)))

    def __len__(self) -> int:
        return len(self._records) // RECORD.size

    def __getitem__(self, number: int) -> DocumentRecord:
        if not 0 <= number < len(self):
            raise IndexError(f"document {number} of {len(self)}")
        return DocumentRecord(*RECORD.unpack(self._records.read(number * RECORD.size, RECORD.size)))

    def start(self, number: int) -> int:
        """The first token of a document."""
        return int.from_bytes(self._records.read(number * RECORD.size, 8), "little")

    def path(self, record: DocumentRecord) -> bytes:
        """The bytes of a document's path, as the file system has them."""
        return b"" if self._paths is None else self._paths.read(record.path, record.path_bytes)

    def holding(self, token: int) -> int:
        """The number of the document that holds a token, by bisection."""
        low, high = 0, len(self)
        while high - low > 1:
            middle = (low + high) // 2
            if self.start(middle) <= token:
                low = middle
            else:
                high = middle
        return low

    def node(self, level: int, index: int) -> bytes:
        """A perfect subtree's hash, as the tree functions of the ledger ask for it."""
        return self._tree.read(node_position(level, index) * HASH, HASH)
