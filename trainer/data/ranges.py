"""A file elsewhere, of which only the blocks that are read are fetched, once, into a sparse file here.

Nothing read is believed for having been fetched: who reads checks it, and may have it fetched again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .shards import pieces

BLOCK = 1 << 16

Fetch = Callable[[int, int], bytes]
"""Gives exactly `count` bytes from `first` on, or raises."""


class RangedFile:
    """`size` bytes at the other end of `fetch`. Blocks are kept in `path`, and which ones in `path`.blocks."""

    def __init__(self, path: Path, size: int, fetch: Fetch, *, stays_open: bool = False) -> None:
        """Without `stays_open` the files are open while they are used: a dataset may lie in thousands of them."""
        self._path, self._size, self._fetch = path, size, fetch
        self._stays_open = stays_open
        self._held: tuple[int, int] | None = None
        self._prepared = False

    def close(self) -> None:
        """Close what stayed open; it is opened again when it is used."""
        held, self._held = self._held, None
        for descriptor in held or ():
            os.close(descriptor)

    @contextmanager
    def _open(self) -> Iterator[tuple[int, int]]:
        """Descriptors of the blocks and of their marks."""
        if self._held is None:
            self._held = self._opened()
        try:
            yield self._held
        finally:
            if not self._stays_open:
                self.close()

    def _opened(self) -> tuple[int, int]:
        if not self._prepared:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        flags, made = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, []
        try:
            for path in (self._path, self._path.with_name(self._path.name + ".blocks")):
                made.append(os.open(path, flags, 0o600))
            data, marks = made
            if not self._prepared:
                self._prepare(data, marks)
        except BaseException:
            for descriptor in made:
                os.close(descriptor)
            raise
        return data, marks

    def _prepare(self, data: int, marks: int) -> None:
        if os.fstat(data).st_size != self._size:  # of another size, so of another time
            os.ftruncate(marks, 0)
            os.ftruncate(data, 0)
            os.ftruncate(data, self._size)
        os.ftruncate(marks, -(-self._size // BLOCK))
        self._prepared = True

    def __len__(self) -> int:
        return self._size

    def forget(self, first: int, last: int) -> None:
        """Have the blocks that hold [first, last) fetched again when they are read."""
        with self._open() as (_data, marks):
            for block in range(first // BLOCK, -(-last // BLOCK)):
                os.pwrite(marks, b"\0", block)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size), fewer at the end. Neighbouring blocks are fetched in one request."""
        last = min(self._size, offset + size)
        if not 0 <= offset < last:
            return b""
        block, end = offset // BLOCK, -(-last // BLOCK)
        with self._open() as (data, marks):
            held = os.pread(marks, end - block, block)
            while block < end:
                run = len(held) - len(held.lstrip(held[:1]))
                if not held[0]:
                    first = block * BLOCK
                    fetched = self._fetch(first, min(self._size, first + run * BLOCK) - first)
                    os.pwrite(data, fetched, first)
                    os.pwrite(marks, b"\1" * run, block)
                block, held = block + run, held[run:]
            return os.pread(data, last - offset, offset)


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
