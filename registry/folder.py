"""Reads a model's folder once, into memory that is ours, without following what the folder says.

Names are flat and come from a listing of the folder; files are opened relative to the open folder and never
through a symbolic link, so nothing that is renamed or replaced meanwhile can lead outside or be read twice.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.files.captured_file import MODEL_FILE

FILE_NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_FILE_NAME = re.compile(FILE_NAME_PATTERN)
# Formats that run code when they are opened. None is ever opened here; a folder that has one is refused,
# since another program might prefer it to the weights that were checked.
EXECUTABLE_SUFFIXES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill", ".npy", ".npz", ".h5", ".keras"}
)

# All that a release may list. A loader gives meaning to files by their names, and what it would do with another
# file (an index of shards, an adapter, a tokenizer's or a model's code) is not checked here, whoever signed it.
CONFIG = "config.json"
PROGRAM = MODEL_FILE
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-([0-9]{5})-of-([0-9]{5})\.safetensors")


def is_release_file(name: str) -> bool:
    """Whether a release may list a file of this name: configuration or program, weights, or shards with their index."""
    return name in (CONFIG, PROGRAM, WEIGHTS, INDEX) or _SHARD.fullmatch(name) is not None


def is_weights_file(name: str) -> bool:
    """Whether a file of a release carries tensors."""
    return name == WEIGHTS or _SHARD.fullmatch(name) is not None


def shard_name(number: int, count: int) -> str:
    """The name of shard ``number`` (from 1) of ``count``, as Hugging Face spells it."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


FILES_LIMIT = 1000


class FolderUnreadable(BitwitnessError):
    """The folder or a file in it cannot be opened at all (exit 2)."""


class FolderRefused(FoundWrong):
    """The folder holds something that a model's folder must not hold (exit 1)."""


class Folder:
    """An open model folder. ``names`` are its regular files; anything else in it was refused on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
                raise FolderRefused(f"{path} is a symbolic link; name the folder itself") from error
            raise FolderUnreadable(f"{path}: {error.strerror}") from error
        try:
            self.names = frozenset(self._listing())
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def _listing(self) -> list[str]:
        names: list[str] = []
        folded: dict[str, str] = {}
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if len(names) == FILES_LIMIT:
                    raise FolderRefused(f"it holds more than {FILES_LIMIT} files")
                shown = ascii(entry.name[:100])
                if entry.is_symlink():
                    raise FolderRefused(f"{shown} is a symbolic link: what it leads to was not signed")
                if not entry.is_file(follow_symlinks=False):
                    raise FolderRefused(f"{shown} is not a regular file")
                if Path(entry.name).suffix.lower() in EXECUTABLE_SUFFIXES:
                    raise FolderRefused(f"{shown} can run code when it is opened: such files are refused by name")
                if not _FILE_NAME.fullmatch(entry.name):
                    raise FolderRefused(f"{shown} is not a plain file name (A-Z a-z 0-9 . _ -)")
                twin = folded.setdefault(entry.name.lower(), entry.name)
                if twin != entry.name:
                    raise FolderRefused(f"{shown} and {twin!a} differ only in case")
                names.append(entry.name)
        return names

    def size(self, name: str) -> int:
        """Bytes of a file now; `open` decides again on what it opens."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size

    def read(self, name: str, *, limit: int) -> bytearray:
        """The whole file in a fresh buffer; FolderRefused if it is longer than ``limit`` bytes."""
        with self.open(name, limit=limit) as file:
            try:
                data = bytearray(file.size)
            except MemoryError as error:
                raise FolderUnreadable(f"{name}: {file.size} bytes do not fit into memory") from error
            file.fill(memoryview(data))
            file.finish()
        return data

    def open(self, name: str, *, limit: int) -> OpenFile:
        """Open a file to be read once, from front to back; FolderRefused if it is longer than ``limit`` bytes."""
        if not _FILE_NAME.fullmatch(name):
            raise FolderRefused(f"{name[:100]!a} is not a plain file name: it could lead out of the folder")
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError as error:
            raise FolderRefused(f"{name} is missing") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise FolderRefused(f"{name} is a symbolic link") from error
            raise FolderUnreadable(f"{self.path / name}: {error.strerror}") from error
        file = OpenFile(self.path / name, fd)
        try:
            if not stat.S_ISREG(file.status.st_mode):
                raise FolderRefused(f"{name} is not a regular file")
            if file.size > limit:
                raise FolderRefused(f"{name} has {file.size} bytes, more than the {limit} that are allowed")
        except BaseException:
            file.close()
            raise
        return file


class OpenFile:
    """A file of the folder, as large as it was on opening: one that grows or shrinks meanwhile is refused."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd
        self.status = os.fstat(fd)
        self.size = self.status.st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def fill(self, view: memoryview) -> None:
        """Read the next bytes, as many as ``view`` has room for. Raises FolderRefused if the file ends before."""
        filled = 0
        while filled < len(view):
            try:
                count = os.readv(self._fd, [view[filled:]])
            except OSError as error:
                raise FolderUnreadable(f"{self.path}: {error.strerror}") from error
            if not count:
                raise FolderRefused(f"{self.path.name} became shorter while it was read")
            filled += count

    def seek(self, position: int) -> None:
        """Go on reading from there."""
        os.lseek(self._fd, position, os.SEEK_SET)

    def finish(self) -> None:
        """Raise FolderRefused if there is more to read than there was on opening."""
        if os.read(self._fd, 1):
            raise FolderRefused(f"{self.path.name} became longer while it was read")
