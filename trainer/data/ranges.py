"""A file elsewhere, of which only the blocks that are read are fetched, once, into a sparse file here.

Nothing read is believed for having been fetched: who reads checks it, and may have it fetched again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .shards import pieces

BLOCK = 1 << 16

Fetch = Callable[[int, int], bytes]
"""Gives exactly `count` bytes from `first` on, or raises."""


class RangedFile:
    """`size` bytes at the other end of `fetch`. Blocks are kept in `path`, and which ones in `path`.blocks."""

    def __init__(self, path: Path, size: int, fetch: Fetch) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._size, self._fetch = size, fetch
        self._data = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._marks = os.open(path.with_name(path.name + ".blocks"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._data).st_size != size:  # of another size, so of another time
            os.ftruncate(self._marks, 0)
            os.ftruncate(self._data, 0)
            os.ftruncate(self._data, size)
        os.ftruncate(self._marks, -(-size // BLOCK))

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        os.close(self._data)
        os.close(self._marks)

    def forget(self, first: int, last: int) -> None:
        """Have the blocks that hold [first, last) fetched again when they are read."""
        for block in range(first // BLOCK, -(-last // BLOCK)):
            os.pwrite(self._marks, b"\0", block)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size), fewer at the end. Neighbouring blocks are fetched in one request."""
        last = min(self._size, offset + size)
        if not 0 <= offset < last:
            return b""
        block, end = offset // BLOCK, -(-last // BLOCK)
        marks = os.pread(self._marks, end - block, block)
        while block < end:
            held = marks[0]
            run = len(marks) - len(marks.lstrip(marks[:1]))
            if not held:
                self._take(block, run)
            block, marks = block + run, marks[run:]
        return os.pread(self._data, last - offset, offset)

    def _take(self, block: int, count: int) -> None:
        first = block * BLOCK
        data = self._fetch(first, min(self._size, first + count * BLOCK) - first)
        os.pwrite(self._data, data, first)
        os.pwrite(self._marks, b"\1" * count, block)


class RangedShards:
    """A sequence of bytes in such files of `shard_bytes` each, as ShardReader reads it from a folder."""

    def __init__(self, files: list[RangedFile], shard_bytes: int) -> None:
        self.files, self._shard = files, shard_bytes
        self.size = sum(len(file) for file in files)

    def read(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Bytes [first, last) as uint8 [last − first]."""
        if not 0 <= first <= last <= self.size:
            raise IndexError(f"bytes {first} to {last} of {self.size}")
        parts = [self.files[number].read(begin, end - begin) for number, begin, end in pieces(first, last, self._shard)]
        return np.frombuffer(b"".join(parts), dtype=np.uint8)

    def forget(self, first: int, last: int) -> None:
        """Have the bytes [first, last) fetched again when they are read."""
        for number, begin, end in pieces(first, last, self._shard):
            self.files[number].forget(begin, end)
