"""Files that are on the disk when a function returns: new ones, and ones that take another's place whole."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_new(path: Path, data: bytes | Iterable[bytes | memoryview], *, mode: int = 0o666) -> int:
    """Create a file with these bytes, or with these parts one after the other, and return its size.

    Nothing that is there is overwritten, a link is not followed (FileExistsError), and nothing is left behind after
    an error. The name is durable after `sync_folder` of its folder. Raises OSError.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in (data,) if isinstance(data, bytes) else data:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            error.filename = os.fspath(path)  # the system does not say where
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def replace(
    path: Path, data: bytes | Iterable[bytes | memoryview], *, mode: int = 0o666, temporary: Path | None = None
) -> int:
    """Put these bytes in a file's place, whole or not at all, whoever looks meanwhile; returns their number.

    They are first written to `temporary`, on the same file system: a name of this call's own in the file's folder
    unless the caller names one that only it uses, for a folder where a leftover would be in the way. Raises OSError.
    """
    if temporary is None:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    else:
        temporary.unlink(missing_ok=True)
    size = write_new(temporary, data, mode=mode)
    try:
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return size


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there in full or not at all, whenever somebody looks or the machine stops.

    Its folder is made if it is missing. For one writer at a time: what is not whole yet is `NAME.part`. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, data, temporary=path.with_name(path.name + ".part"))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
