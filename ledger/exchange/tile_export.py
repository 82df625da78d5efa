"""`ledger export --tiles`: the log as static files, the bytes that `ledger serve` answers, for any web server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import tiles
from ..checkpoint import parse_checkpoint
from ..errors import BitwitnessError, NoteError
from ..files import folder_lock
from ..files.durable import write_whole
from ..files.regular_file import read_regular
from ..handover import PATH, encode_handovers
from ..note import MAX_NOTE, parse_note
from ..store import Ledger
from .prove import handovers
from .tile_source import tile_bytes

CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Exported:
    """How many tiles were written, to a checkpoint of how many entries."""

    size: int
    written: int


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if it is missing, against another export. Raises BitwitnessError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock.held(folder, BitwitnessError(f"another export writes into {folder}; wait for it to end")):
        yield


def export_tiles(ledger: Ledger, folder: Path) -> Exported:
    """Write the tiles of the newest checkpoint below `folder`, then the checkpoint itself, replacing an older one.

    A folder that holds an earlier export of the same log is continued: full tiles there are kept, they never change.
    Raises BitwitnessError if there is no checkpoint, or if the folder holds another log or a longer one.
    """
    note = ledger.latest_checkpoint()
    if note is None:
        raise BitwitnessError("no checkpoint is signed yet; `ledger checkpoint` signs one")
    head = parse_checkpoint(parse_note(note).text)
    since = _earlier(ledger, folder, head.size)
    written = 0
    for tile in tiles.tiles_of(head.size, since):
        data = tile_bytes(ledger, tile, head.size)
        if data is None:
            raise BitwitnessError(f"{ledger.path} does not hold {tile.path}; run `ledger fsck`")
        write_whole(folder / tile.path, data)
        written += 1
    if found := handovers(ledger, head.size):
        write_whole(folder / PATH, encode_handovers(found))
    # Last, so that whoever sees a checkpoint finds its tiles.
    write_whole(folder / CHECKPOINT, note.encode("utf-8"))
    return Exported(head.size, written)


def _earlier(ledger: Ledger, folder: Path, size: int) -> int:
    """The size of the export that the folder holds, 0 for none."""
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    try:
        there = parse_checkpoint(parse_note(read_regular(path, MAX_NOTE)).text)
    except NoteError as error:
        raise BitwitnessError(f"{path} is no checkpoint ({error}); give an empty folder") from None
    if there.origin != ledger.origin or there.size > size or ledger.root(there.size) != there.root:
        raise BitwitnessError(f"{folder} holds another log, or another history of this one; give an empty folder")
    return there.size
