"""What a gate remembers between runs, so that it cannot be shown an older world than one it has seen.

Per log: its largest checkpoint that was verified, per model the highest version and the largest checkpoint that came
with it, and what the newest status took back. A release or bundle that is older than what was deployed before is a
rollback, two roots for one size are two logs under one name, and what one bundle told of a revocation holds for the
next. Of a model that was not verified only that is kept, else the old bundle of a revoked release would pass once more.
The file is written whole or not at all, where a link leads to if it is one (docs/gate.md).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from bitwitness.ledger import jcs
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.files import durable
from bitwitness.ledger.files.regular_file import read_regular
from bitwitness.ledger.files.schema_error import first_reason

from ..bundles.bundle import Hash, Position, Strict
from ..bundles.evidence import Entry
from .rules import Revoked

FORMAT: Literal["bitwitness/gate-memory/1"] = "bitwitness/gate-memory/1"
_SIZE_LIMIT = 16 << 20


class MemoryUnusable(BitwitnessError):
    """The memory file cannot be read or written: without it a rollback cannot be ruled out (exit 2)."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"gate memory {path}: {reason}")


class RolledBack(FoundWrong):
    """The gate has seen something newer, or something else, of this log."""


class EndedKey(Strict):
    keyid: Hash
    first: Position


class SeenModel(Strict):
    """The highest version that was verified, and the largest checkpoint that this version came with."""

    size: Position
    version: Annotated[int, Field(ge=1)]


class SeenStatus(Strict):
    """What the `status` of the highest number took back."""

    keys: list[EndedKey]
    releases: list[Hash]
    sequence: Position
    time: str


class SeenLog(Strict):
    models: dict[str, SeenModel]
    root: Hash
    size: Position
    status: SeenStatus | None = None


class _File(Strict):
    format: Literal["bitwitness/gate-memory/1"]
    logs: dict[str, SeenLog]


@dataclass(frozen=True)
class Memory:
    """What was seen, by the origin of the log."""

    logs: Mapping[str, SeenLog] = field(default_factory=dict)

    def check(self, head: Checkpoint, release: Mapping[str, Any]) -> str:
        """Whether a release under a checkpoint is no step back; says in one line what is known. Raises RolledBack."""
        seen = self.logs.get(head.origin)
        if seen is None:
            return f"the first that this gate sees of {head.origin}"
        if head.size == seen.size and head.root.hex() != seen.root:
            raise RolledBack(
                f"this gate has seen another root of {head.origin} at size {head.size}: two logs go by this name"
            )
        name, version = release["model"], release["version"]
        before = seen.models.get(name)
        if before is None:
            return f"the first version of {name} that this gate sees; it has seen {head.origin} up to size {seen.size}"
        if version < before.version:
            raise RolledBack(
                f"version {version} of {name} is older than {before.version}, which this gate verified before"
            )
        if version == before.version and head.size < before.size:
            raise RolledBack(
                f"this bundle is of log size {head.size}, the gate has seen one of {before.size} for {name}/{version}: "
                "what came since is left out"
            )
        return f"no older than version {before.version} of {name} at log size {before.size}, seen before"

    def revoked(self, origin: str) -> list[Revoked]:
        """What the newest status that was seen of a log took back."""
        seen = self.logs.get(origin)
        if seen is None or seen.status is None:
            return []
        keys = [{"keyid": key.keyid, "from": key.first} for key in seen.status.keys]
        return [Revoked(f"{seen.status.time}, which this gate remembers", keys, seen.status.releases)]

    def with_model(self, head: Checkpoint, release: Mapping[str, Any], statuses: list[Entry]) -> Memory:
        """What is known after a release was verified under ``head``, with these `status` entries."""
        old = self.logs.get(head.origin) or SeenLog(models={}, root=head.root.hex(), size=head.size)
        name, version = release["model"], release["version"]
        before = old.models.get(name)
        size = head.size if before is None or before.version < version else max(before.size, head.size)
        largest = (head.size, head.root.hex()) if head.size > old.size else (old.size, old.root)
        log = SeenLog(
            models={**old.models, name: SeenModel(size=size, version=max(version, before.version if before else 0))},
            root=largest[1],
            size=largest[0],
            status=_newest(old.status, statuses),
        )
        return Memory({**self.logs, head.origin: log})

    def with_statuses(self, head: Checkpoint, statuses: list[Entry]) -> Memory:
        """What is known after these `status` entries were authenticated, of a log that stands at ``head`` or beyond."""
        old = self.logs.get(head.origin) or SeenLog(models={}, root=head.root.hex(), size=head.size)
        newest = _newest(old.status, statuses)
        if newest == old.status or newest is None or not (newest.keys or newest.releases):
            return self
        return Memory({**self.logs, head.origin: old.model_copy(update={"status": newest})})


def load(path: Path) -> Memory:
    """Read the memory; one that is not there yet is empty. Raises MemoryUnusable."""
    try:
        data = read_regular(path, _SIZE_LIMIT)
    except FileNotFoundError:
        return Memory()
    except OSError as error:
        raise MemoryUnusable(path, (error.strerror or str(error)).lower()) from None
    try:
        return Memory(_File.model_validate(jcs.parse(data, max_bytes=_SIZE_LIMIT)).logs)
    except ValidationError as error:
        raise MemoryUnusable(path, first_reason(error)) from None
    except BitwitnessError as error:
        raise MemoryUnusable(path, str(error)) from None


def remember(path: Path, head: Checkpoint, release: Mapping[str, Any], statuses: list[Entry]) -> None:
    """Add what was verified to the file. It is read again under a lock: another gate may have written meanwhile.

    Raises MemoryUnusable, or RolledBack if that other gate has seen something newer.
    """
    with _locked(path) as real:
        held = load(real)
        held.check(head, release)
        _write(real, held.with_model(head, release, statuses))


def remember_revoked(path: Path, head: Checkpoint, statuses: list[Entry]) -> None:
    """Add what authentic statuses took back, though the model was not verified. Raises MemoryUnusable."""
    with _locked(path) as real:
        held = load(real)
        told = held.with_statuses(head, statuses)
        if told is not held:
            _write(real, told)


def _write(path: Path, memory: Memory) -> None:
    data = jcs.encode(_File(format=FORMAT, logs=dict(memory.logs)).model_dump(exclude_none=True))
    try:
        durable.replace(path, data)
    except OSError as error:
        raise MemoryUnusable(path, (error.strerror or str(error)).lower()) from None


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """The file that a path leads to, locked: by whatever links two gates come to it, they wait for each other."""
    try:
        path = Path(os.path.realpath(path))
        lock = os.open(
            path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        raise MemoryUnusable(path, (error.strerror or str(error)).lower()) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(lock)


def _newest(seen: SeenStatus | None, statuses: list[Entry]) -> SeenStatus | None:
    status = max(statuses, key=lambda entry: entry.predicate["sequence"], default=None)
    if status is None or (seen is not None and status.predicate["sequence"] <= seen.sequence):
        return seen
    return _seen(status)


def _seen(status: Entry) -> SeenStatus:
    said = status.predicate
    return SeenStatus(
        keys=[EndedKey(keyid=item["keyid"], first=item["from"]) for item in said["revoked_keys"]],
        releases=list(said["revoked_releases"]),
        sequence=said["sequence"],
        time=said["time"],
    )
