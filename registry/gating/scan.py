"""Reads a weights file once, front to back, and hashes it two ways at once: SHA-256 of the file, `weights/1` leaves.

The file goes through a few buffers of 4 MiB, so a model of any size is checked in the same memory; for loading it is
read into one piece of memory that this process owns and keeps. Either way both digests are made of the same bytes,
read once: a file that is replaced meanwhile cannot show one content to the one and another to the other.
"""

from __future__ import annotations

import hashlib
import mmap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from bitwitness.ledger import merkle
from bitwitness.ledger.commitments import CHUNK, TensorLeaf, tensor_leaf
from bitwitness.ledger.errors import CommitmentError, FoundWrong
from bitwitness.ledger.files.safetensors_header import (
    PREFIX,
    Header,
    SafetensorsError,
    TensorEntry,
    data_start,
    read_table,
)

from ..folder import FolderUnreadable, OpenFile

_SLOT = 4 << 20
_SLOTS = 4
# A file that fits into one slot is hashed where it is read: threads would cost more than they save.
_INLINE = 1 << 20


class TensorsRefused(FoundWrong):
    """The tensors of a file are not such as a commitment can hold."""


@dataclass(frozen=True)
class Scanned:
    """What was read of one file: its SHA-256, its table, the leaf of every tensor; ``memory`` if it was kept.

    ``fault`` is why there is no table; the digest is that of the whole file all the same.
    """

    name: str
    sha256: str
    size: int
    header: Header | None
    leaves: Sequence[TensorLeaf]
    memory: memoryview | None
    fault: FoundWrong | None = None


def scan(file: OpenFile, *, keep: bool = False) -> Scanned:
    """Read an open file to its end. Raises FolderRefused, FolderUnreadable; a malformed table becomes ``fault``."""
    name, size = file.path.name, file.size
    memory = _own(size, name) if keep or size <= _INLINE else None
    head = bytearray(min(PREFIX, size)) if memory is None else memory[: min(PREFIX, size)]
    file.fill(memoryview(head))
    header: Header | None = None
    fault: FoundWrong | None = None
    text: bytearray | memoryview = bytearray()
    try:
        start = data_start(bytes(head), size, name)
        text = bytearray(start - PREFIX) if memory is None else memory[PREFIX:start]
    except SafetensorsError as error:
        fault = error
    file.fill(memoryview(text))
    if fault is None:
        try:
            header = read_table(bytes(text), size, name)
            _check_tensors(header)
        except FoundWrong as error:
            header, fault = None, error
    begun = len(head) + len(text)
    whole = hashlib.sha256(head)
    whole.update(text)
    tensors = _Tensors(() if header is None else header.tensors)
    pieces = _pieces(file, begun, memory)
    if size <= _INLINE:
        for position, view in pieces:
            whole.update(view)
            tensors.take(position, view)
    else:
        _run_lanes(pieces, whole, tensors, reuse=memory is None)
    file.finish()
    leaves = tensors.leaves()
    return Scanned(name, whole.hexdigest(), size, header, leaves, memory if keep else None, fault)


def scan_tensors(file: OpenFile, wanted: frozenset[str]) -> tuple[Header, list[TensorLeaf]]:
    """Read only the table and these tensors of an open file. Raises SafetensorsError and FolderRefused."""
    prefix = bytearray(min(PREFIX, file.size))
    file.fill(memoryview(prefix))
    start = data_start(bytes(prefix), file.size, file.path.name)
    text = bytearray(start - PREFIX)
    file.fill(memoryview(text))
    header = read_table(bytes(text), file.size, file.path.name)
    _check_tensors(header)
    chosen = [entry for entry in header.tensors if entry.name in wanted]
    tensors = _Tensors(chosen)
    buffer = memoryview(bytearray(_SLOT))
    for entry in chosen:
        file.seek(entry.begin)
        for position in range(entry.begin, entry.end, _SLOT):
            view = buffer[: min(_SLOT, entry.end - position)]
            file.fill(view)
            tensors.take(position, view)
    return header, tensors.leaves()


def _own(size: int, name: str) -> memoryview:
    """Zeroed memory of this process alone. Large pieces are mapped: their pages are touched once, by the read."""
    try:
        return memoryview(bytearray(size) if size <= _INLINE else mmap.mmap(-1, size, mmap.MAP_PRIVATE))
    except (MemoryError, OSError) as error:
        raise FolderUnreadable(f"{name}: {size} bytes do not fit into memory") from error


def _pieces(file: OpenFile, begun: int, memory: memoryview | None) -> Iterator[tuple[int, memoryview]]:
    """The rest of the file, (position, bytes) in order. Without ``memory`` the slots come round again."""
    slots = [] if memory is not None else [memoryview(bytearray(_SLOT)) for _ in range(_SLOTS)]
    for number, position in enumerate(range(begun, file.size, _SLOT)):
        length = min(_SLOT, file.size - position)
        view = memory[position : position + length] if memory is not None else slots[number % _SLOTS][:length]
        file.fill(view)
        yield position, view


def _run_lanes(pieces: Iterator[tuple[int, memoryview]], whole: Any, tensors: _Tensors, *, reuse: bool) -> None:
    """Read in this thread, hash in two others: hashing lets go of the interpreter."""
    free = threading.Semaphore(_SLOTS - 1)  # the slot after the last one that is free is being read
    lanes: list[SimpleQueue[tuple[int, memoryview, list[int]] | None]] = [SimpleQueue(), SimpleQueue()]
    failed: list[BaseException] = []
    lock = threading.Lock()

    def run(lane: int) -> None:
        while (item := lanes[lane].get()) is not None:
            position, view, open_lanes = item
            try:
                if lane == 0:
                    whole.update(view)
                else:
                    tensors.take(position, view)
            except BaseException as error:  # the reader must not wait for a slot that never comes free
                failed.append(error)
            with lock:
                open_lanes[0] -= 1
                done = open_lanes[0] == 0
            if done and reuse:
                free.release()

    threads = [threading.Thread(target=run, args=(lane,), daemon=True) for lane in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        for position, view in pieces:
            open_lanes = [len(lanes)]
            for lane in lanes:
                lane.put((position, view, open_lanes))
            if reuse:
                free.acquire()
    finally:
        for lane in lanes:
            lane.put(None)
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


class _Tensors:
    """Digests of tensors from the bytes of a file as they pass, in ascending order and each once."""

    def __init__(self, entries: Sequence[TensorEntry]) -> None:
        self._entries = list(entries)
        self._trees: list[merkle.Frontier] = []
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        self._tree, self._chunk, self._left = merkle.Frontier(), hashlib.sha256(b"\x00"), CHUNK

    def take(self, position: int, view: memoryview) -> None:
        """``view`` is what stands in the file from ``position`` on; what lies before was taken."""
        end = position + len(view)
        while self._number < len(self._entries):
            entry = self._entries[self._number]
            low, high = max(entry.begin, position), min(entry.end, end)
            self._hash(view[low - position : max(low, high) - position])
            if entry.end > end:
                return
            if self._left < CHUNK:
                self._tree.append(self._chunk.digest())
            self._trees.append(self._tree)
            self._number += 1
            self._begin()
            position, view = high, view[high - position :]

    def _hash(self, view: memoryview) -> None:
        start = 0
        while start < len(view):
            count = min(self._left, len(view) - start)
            self._chunk.update(view[start : start + count])
            start, self._left = start + count, self._left - count
            if not self._left:
                self._tree.append(self._chunk.digest())
                self._chunk, self._left = hashlib.sha256(b"\x00"), CHUNK

    def leaves(self) -> list[TensorLeaf]:
        """The leaf of every tensor, in byte order of the names. All bytes must have been taken."""
        made = [
            TensorLeaf(entry.name, entry.dtype, entry.shape, entry.nbytes, tree.root().hex())
            for entry, tree in zip(self._entries, self._trees, strict=True)
        ]
        return sorted(made, key=lambda leaf: leaf.name)


def _check_tensors(header: Header) -> None:
    """Refuse before hashing what no leaf can hold: an empty tensor, a dtype outside the format's list."""
    for entry in header.tensors:
        try:
            tensor_leaf(entry.name, entry.dtype, entry.shape, entry.nbytes, "00" * 32)
        except CommitmentError as error:
            raise TensorsRefused(str(error)) from error
