"""One writer for each ledger: an operating-system lock on a file beside the database, naming who holds it.

The lock belongs to the process and goes with it, however it ends; the file that stays behind means nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import weakref
from contextlib import suppress
from pathlib import Path

from ..errors import BitwitnessError


class LedgerLocked(BitwitnessError):
    """Another writer has the ledger. `pid` is its process id, 0 if it could not be read."""

    def __init__(self, path: Path, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"{path} is being written by {holder}; wait for it to end, or stop it, and try again")
        self.path = str(path)
        self.pid = pid


class LedgerReadOnly(BitwitnessError):
    """The ledger cannot be written where it is. `reason` is the system's."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.path = str(path)
        self.reason = reason


class WriterLock:
    """Held from construction to release(). Raises LedgerLocked at once if another writer holds it."""

    def __init__(self, database: Path) -> None:
        # Beside the file itself, so that a writer who comes through a link meets the same lock.
        real = database.resolve()
        self._path = real.with_name(real.name + ".lock")
        try:
            self._descriptor = os.open(self._path, _FLAGS, 0o644)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _not_a_lock(self._path) from None
            raise LedgerReadOnly(database, (error.strerror or str(error)).lower()) from None
        try:
            # Whoever can put a file there must not have another file emptied through it.
            if not _is_lock(self._descriptor):
                raise _not_a_lock(self._path)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read_pid(self._descriptor)
            os.close(self._descriptor)
            raise LedgerLocked(database, pid) from None
        except BaseException:
            os.close(self._descriptor)
            raise
        _HELD.add(self)
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError as error:  # a full disk
            self._forget()
            raise LedgerReadOnly(database, (error.strerror or str(error)).lower()) from None

    def release(self) -> None:
        """Give the lock up; a second call does nothing."""
        if self._descriptor >= 0:
            with suppress(OSError):  # a number that stays there means nothing
                os.ftruncate(self._descriptor, 0)
            self._forget()

    def _forget(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def being_written(database: Path) -> bool:
    """Whether a live process has the ledger, by what its lock file says; takes no lock, so it is in nobody's way."""
    real = database.resolve()
    try:
        descriptor = os.open(real.with_name(real.name + ".lock"), _FLAGS & ~(os.O_RDWR | os.O_CREAT) | os.O_RDONLY)
    except OSError:
        return False
    try:
        pid = _read_pid(descriptor) if _is_lock(descriptor) else 0
    finally:
        os.close(descriptor)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return pid > 0


# Never through a symlink, nor waiting for a FIFO's other end.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_MAX_LOCK = 32
_PID = re.compile(rb"[0-9]+\n?")


def _is_lock(descriptor: int) -> bool:
    """A regular file that holds a process id or nothing."""
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode) or info.st_size > _MAX_LOCK:
        return False
    return info.st_size == 0 or _PID.fullmatch(os.pread(descriptor, _MAX_LOCK, 0)) is not None


def _not_a_lock(path: Path) -> BitwitnessError:
    return BitwitnessError(f"{path} is in the way: it is not the lock file of a ledger; move it elsewhere")


_HELD: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_HELD):
        lock._forget()


# A forked child shares the lock through the inherited descriptor and would keep it after our death.
os.register_at_fork(after_in_child=_forget_all)


def _read_pid(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0
