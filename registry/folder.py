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

FILE_NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_FILE_NAME = re.compile(FILE_NAME_PATTERN)
# Formats that run code when they are opened. None is ever opened here; a folder that has one is refused,
# since another program might prefer it to the weights that were checked.
EXECUTABLE_SUFFIXES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill", ".npy", ".npz", ".h5", ".keras"}
)

# All that a release may list. A loader gives meaning to files by their names, and what it would do with another
# file (an index of shards, an adapter, a tokenizer's or a model's code) is not checked here, whoever signed it.
RELEASE_FILES = frozenset({"config.json", "model.safetensors"})

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
        """Bytes of a file now; `read` decides again on what it opens."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size

    def read(self, name: str, *, limit: int) -> bytearray:
        """The whole file in a fresh buffer; FolderRefused if it is longer than ``limit`` bytes.

        The buffer is as large as the file was on opening: a file that grows or shrinks meanwhile is refused.
        """
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
        with open(fd, "rb", buffering=0) as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise FolderRefused(f"{name} is not a regular file")
            if status.st_size > limit:
                raise FolderRefused(f"{name} has {status.st_size} bytes, more than the {limit} that are allowed")
            try:
                data = bytearray(status.st_size)
            except MemoryError as error:
                raise FolderUnreadable(f"{name}: {status.st_size} bytes do not fit into memory") from error
            view = memoryview(data)
            filled = 0
            while filled < len(data):
                try:
                    count = file.readinto(view[filled:])
                except OSError as error:
                    raise FolderUnreadable(f"{self.path / name}: {error.strerror}") from error
                if not count:
                    raise FolderRefused(f"{name} became shorter while it was read")
                filled += count
            if file.read(1):
                raise FolderRefused(f"{name} became longer while it was read")
        return data
