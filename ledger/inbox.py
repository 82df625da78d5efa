"""Entries that wait for whoever writes the ledger: left by a server while a run is trained, which takes them in.

A folder of files, each an entry named by its leaf hash. Nothing in it is trusted for being there.
"""

from __future__ import annotations

import re
from pathlib import Path

from . import durable
from .errors import BitwitnessError
from .regular_file import read_regular

MAX_WAITING = 256
_NAME = re.compile(r"[0-9a-f]{64}")
_REFUSED = ".refused"
_MAX_REASON = 4096


class InboxFull(BitwitnessError):
    """As many entries wait as may."""


def put(folder: Path, leaf_hash: bytes, data: bytes) -> None:
    """Leave an entry, durably; one that waits already stays. Raises InboxFull, BitwitnessError."""
    path = folder / leaf_hash.hex()
    try:
        folder.mkdir(exist_ok=True)
        if path.exists():
            return
        if len(waiting(folder)) >= MAX_WAITING:
            raise InboxFull(f"{MAX_WAITING} entries wait for the run that writes the ledger; try again later")
        durable.replace(path, data)
    except OSError as error:
        raise BitwitnessError(f"{error.filename or folder}: {(error.strerror or str(error)).lower()}") from None


def waiting(folder: Path) -> list[Path]:
    """The entries that wait, the first to come first."""
    try:
        found = [(path.lstat().st_mtime_ns, path) for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:  # nothing was ever left; or one was taken meanwhile, and the next look finds the others
        return []
    return [path for _, path in sorted(found)[:MAX_WAITING]]


def refuse(path: Path, reason: str) -> None:
    """Keep the reason in place of an entry that the log does not take."""
    durable.replace(path.with_name(path.name + _REFUSED), reason.encode("utf-8", "replace")[:_MAX_REASON])
    path.unlink(missing_ok=True)


def refusal(folder: Path, leaf_hash: bytes) -> str | None:
    """Why the entry was not taken, None if it was or still waits. It is told once: the entry may be sent again."""
    path = folder / (leaf_hash.hex() + _REFUSED)
    try:
        reason = read_regular(path, _MAX_REASON).decode("utf-8", "replace")
    except OSError:
        return None
    path.unlink(missing_ok=True)
    return reason
