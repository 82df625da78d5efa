"""What a log key remembers: the largest tree that it has signed, in a small file beside it (docs/formats/keys.md).

A signature binds the log for ever, but a ledger file can be put back to an older copy. With the memory beside the key
the next signature over another history is refused where it would be made, whatever the ledger file says. The file is
written, and is on the disk, before the signature exists.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import jcs, merkle
from ..errors import BitwitnessError, FoundWrong, JsonError, KeyFileError
from ..files import durable
from ..files.regular_file import read_regular

_MAX_FILE = 64 * 1024

Proof = Callable[[int], list[bytes]]
"""The consistency proof from a smaller size to the tree that is to be signed."""


class LogRolledBack(FoundWrong):
    """The ledger does not extend what its log key has signed. `signed` is the size of that."""

    def __init__(self, path: Path, signed: int, reason: str) -> None:
        super().__init__(
            f"{path}: the log key has signed {signed} entries, and {reason}: the ledger was rolled back or rewritten; "
            "restore the ledger that it signed"
        )
        self.signed = signed


@dataclass(frozen=True)
class Head:
    """A signed tree: the log's origin, its size and root."""

    origin: str
    size: int
    root: bytes


def check(path: Path, head: Head, proof: Proof) -> None:
    """Whether the tree `head` extends what is remembered of its log. Raises LogRolledBack, KeyFileError."""
    _check(path, _read(path), head, proof)


def remember(path: Path, head: Head, proof: Proof) -> None:
    """Check, and remember `head` durably. Raises LogRolledBack, KeyFileError."""
    path = Path(os.path.realpath(path))  # a link stays one, and what it leads to is written
    with _locked(path):
        known = _read(path)
        _check(path, known, head, proof)
        if known.get(head.origin) != head:
            _write(path, {**known, head.origin: head})


def _check(path: Path, known: dict[str, Head], head: Head, proof: Proof) -> None:
    before = known.get(head.origin)
    if before is None:
        return
    if before.size > head.size:
        raise LogRolledBack(path, before.size, f"the ledger holds {head.size}")
    try:
        steps = proof(before.size) if before.size else []
        merkle.verify_extension(before.size, head.size, before.root, head.root, steps)
    except FoundWrong:
        raise LogRolledBack(path, before.size, "the ledger begins with others") from None


def _read(path: Path) -> dict[str, Head]:
    try:
        data = read_regular(path, _MAX_FILE)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KeyFileError(path, (error.strerror or str(error)).lower()) from None
    try:
        record = jcs.parse(data.removesuffix(b"\n"), max_bytes=_MAX_FILE)
        if not isinstance(record, dict) or record.keys() != {"heads"} or not isinstance(record["heads"], list):
            raise JsonError('not {"heads"}')
        return {head.origin: head for head in map(_head, record["heads"])}
    except (BitwitnessError, ValueError) as error:
        raise KeyFileError(path, f"not what a log key has remembered ({error}); restore it from a copy") from None


def _head(value: object) -> Head:
    if not isinstance(value, dict) or value.keys() != {"origin", "root", "size"}:
        raise JsonError('not {"origin","root","size"}')
    origin, size, root = value["origin"], value["size"], value["root"]
    if not isinstance(origin, str) or type(size) is not int or size < 0 or not isinstance(root, str):
        raise JsonError("not an origin, a size and a root")
    head = Head(origin, size, bytes.fromhex(root))
    if len(head.root) != merkle.HASH_SIZE:
        raise JsonError("the root has not 32 bytes")
    return head


def _write(path: Path, known: dict[str, Head]) -> None:
    heads = [{"origin": head.origin, "size": head.size, "root": head.root.hex()} for head in known.values()]
    try:
        durable.replace(path, jcs.encode({"heads": heads}) + b"\n", mode=0o600)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise KeyFileError(path, f"what the log key signs cannot be remembered there: {reason}") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Nobody else checks and writes the memories of this folder meanwhile."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise KeyFileError(path.parent, (error.strerror or str(error)).lower()) from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
