"""Entries that wait for whoever writes the ledger: left by a server while a run is trained, which takes them in.

A folder of files, each an entry named by its leaf hash and its signer's keyid, or in the place of one that was not
taken the reason (`….refused`), until its sender has asked or an hour has passed. Nothing in it is trusted for being
there.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

from ..errors import BitwitnessError
from ..files import durable
from ..files.regular_file import read_regular

MAX_WAITING = 256
MAX_OF_ONE = 32
"""How many files one key may have here, reasons that it has not asked for among them."""
MAX_REFUSED = 256
REFUSED_FOR = 3600.0
"""Seconds that a reason is kept for its sender; the auditor's command asks for ten minutes."""
_ENTRY = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{64}")
_REFUSED = ".refused"
_MAX_REASON = 4096


class InboxFull(BitwitnessError):
    """As many entries wait as may, of all senders or of this one."""


def put(folder: Path, leaf_hash: bytes, keyid: str, data: bytes) -> None:
    """Leave an entry of a key, durably; one that waits already stays. Raises InboxFull, BitwitnessError."""
    path = _path(folder, leaf_hash, keyid)
    try:
        folder.mkdir(exist_ok=True)
        if path.exists():
            return
        expire(folder)
        waits = waiting(folder)
        own = sum(path.name[65:129] == keyid for _, path in (*_found(folder, ""), *_found(folder, _REFUSED)))
        if own >= MAX_OF_ONE:
            raise InboxFull(f"{own} entries of key {keyid[:16]}… wait, or were refused just now; try again later")
        if len(waits) >= MAX_WAITING:
            raise InboxFull(f"{MAX_WAITING} entries wait for the run that writes the ledger; try again later")
        durable.replace(path, data)
    except OSError as error:
        raise BitwitnessError(f"{error.filename or folder}: {(error.strerror or str(error)).lower()}") from None


def waiting(folder: Path) -> list[Path]:
    """The entries that wait, the first to come first."""
    return [path for _, path in _found(folder, "")[:MAX_WAITING]]


def refuse(path: Path, reason: str) -> None:
    """Keep the reason in place of an entry that the log does not take. What cannot be written there stops nobody."""
    with suppress(OSError):
        durable.replace(path.with_name(path.name + _REFUSED), reason.encode("utf-8", "replace")[:_MAX_REASON])
    with suppress(OSError):
        path.unlink()


def expire(folder: Path) -> None:
    """Remove reasons that nobody asked for in time, and the oldest of more than may be here."""
    found = _found(folder, _REFUSED)
    until = (time.time() - REFUSED_FOR) * 1e9
    for number, (written, path) in enumerate(found):
        if written < until or number < len(found) - MAX_REFUSED:
            with suppress(OSError):
                path.unlink()


def refusal(folder: Path, leaf_hash: bytes, keyid: str) -> str | None:
    """Why the entry was not taken, None if it was or still waits. It is told once: the entry may be sent again."""
    path = _path(folder, leaf_hash, keyid)
    path = path.with_name(path.name + _REFUSED)
    try:
        reason = read_regular(path, _MAX_REASON).decode("utf-8", "replace")
    except OSError:
        return None
    path.unlink(missing_ok=True)
    return reason


def _path(folder: Path, leaf_hash: bytes, keyid: str) -> Path:
    return folder / f"{leaf_hash.hex()}.{keyid}"


def _found(folder: Path, suffix: str) -> list[tuple[int, Path]]:
    """The files of entries whose names end so, each with when it was written in nanoseconds, the oldest first."""
    found = []
    with suppress(FileNotFoundError):  # nothing was ever left
        for path in folder.iterdir():
            if path.name.endswith(suffix) and _ENTRY.fullmatch(path.name.removesuffix(suffix)):
                with suppress(FileNotFoundError):  # it was taken, or told, meanwhile
                    found.append((path.lstat().st_mtime_ns, path))
    return sorted(found)
