"""A long sequence of bytes in files of bounded size: the tokens of a dataset, and the text beside them.

Every file but the last has exactly `shard_bytes` bytes, so byte n lies in file n div shard_bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# A multiple of 4, so that no token lies across two files.
SHARD_BYTES = 1 << 28
MOST_MAPPED = 64


def shard_name(stem: str, number: int) -> str:
    """`tokens-00000.bin` for shard 0 of `tokens`."""
    return f"{stem}-{number:05d}.bin"


def private_mode(private: bool) -> int:
    """The permissions of a dataset's file, before the umask."""
    return 0o600 if private else 0o666


class FileWriter:
    """One file, hashed while it is written and on disk when closed."""

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.name = path.name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._stream = os.fdopen(os.open(path, flags, private_mode(private)), "wb", 1 << 20)
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self.bytes += len(data)

    def close(self) -> dict[str, Any]:
        """Flush to the disk and return the manifest's line: name, bytes, sha256."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        return {"name": self.name, "bytes": self.bytes, "sha256": self._digest.hexdigest()}

    def abandon(self) -> None:
        """Close without a promise, after an error. A disk that is full says so again here, to nobody."""
        try:
            self._stream.close()
        except OSError:
            return


class ShardWriter:
    """Append bytes; files are cut at `shard_bytes`."""

    def __init__(self, folder: Path, stem: str, shard_bytes: int, *, private: bool = False) -> None:
        self._folder, self._stem, self._size, self._private = folder, stem, shard_bytes, private
        self._current: FileWriter | None = None
        self.files: list[dict[str, Any]] = []

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while len(rest):
            if self._current is None:
                path = self._folder / shard_name(self._stem, len(self.files))
                self._current = FileWriter(path, private=self._private)
            part = rest[: self._size - self._current.bytes]
            self._current.write(part)
            rest = rest[len(part) :]
            if self._current.bytes == self._size:
                self._end()

    def _end(self) -> None:
        if self._current is not None:
            self.files.append(self._current.close())
            self._current = None

    def close(self) -> list[dict[str, Any]]:
        """Finish the last file; return the manifest's lines in order."""
        self._end()
        return self.files

    def abandon(self) -> None:
        if self._current is not None:
            self._current.abandon()


def pieces(first: int, last: int, shard_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Where the bytes [first, last) lie: (shard, begin, end) for each file that holds some, in order."""
    while first < last:
        number, begin = divmod(first, shard_bytes)
        end = min(shard_bytes, begin + last - first)
        yield number, begin, end
        first += end - begin


class ShardReader:
    """Read any range; a file is mapped when it is touched, and only the pages read are loaded.

    The MOST_MAPPED touched last stay mapped: each takes a file descriptor.
    """

    def __init__(self, folder: Path, stem: str, size: int, shard_bytes: int) -> None:
        self._folder, self._stem, self.size, self._shard = folder, stem, size, shard_bytes
        self._map = lru_cache(MOST_MAPPED)(self._mapped)

    def _mapped(self, number: int) -> npt.NDArray[np.uint8]:
        return np.memmap(self._folder / shard_name(self._stem, number), dtype=np.uint8, mode="r")

    def read(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Bytes [first, last) as uint8 [last − first]: a view where they lie in one file."""
        if not 0 <= first <= last <= self.size:
            raise IndexError(f"bytes {first} to {last} of {self.size}")
        parts = list(pieces(first, last, self._shard))
        if len(parts) == 1:
            number, begin, end = parts[0]
            return self._map(number)[begin:end]
        data, done = np.empty(last - first, dtype=np.uint8), 0
        for number, begin, end in parts:  # copied one by one: what is held of a file keeps it mapped
            data[done : done + end - begin] = self._map(number)[begin:end]
            done += end - begin
        return data
