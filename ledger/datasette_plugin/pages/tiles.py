"""The log for machines, C2SP tlog-tiles: its newest checkpoint, and the tiles and entry bundles that lead to it."""

from __future__ import annotations

from ... import tiles
from ...checkpoint import parse_checkpoint
from ...exchange.prove import handovers
from ...exchange.tile_source import tile_bytes
from ...handover import encode_handovers
from ...note import parse_note
from ..answers import Asked, File, NotHere

_NO_CHECKPOINT = "This log has signed no checkpoint yet; `ledger checkpoint` signs one."


def checkpoint(asked: Asked) -> File:
    """The newest signed checkpoint; it changes, so nothing may keep it."""
    return File(_newest(asked).encode("utf-8"), None, "text/plain; charset=utf-8")


def tile(asked: Asked) -> File:
    """A hash tile or an entry bundle under the newest checkpoint: what nobody has signed is not published."""
    try:
        wanted = tiles.parse_path(asked.parts["path"])
    except tiles.TileError as error:
        raise NotHere(str(error)) from None
    size = parse_checkpoint(parse_note(_newest(asked)).text).size
    data = tile_bytes(asked.ledger, wanted, size)
    if data is None:
        raise NotHere(f"The newest checkpoint covers {size:,} entries, which do not make this tile.")
    return File(data, None, "application/octet-stream", immutable=True, compress=wanted.level is None)


def handed_over(asked: Asked) -> File:
    """How log keys took each other's place; it grows with the checkpoint."""
    found = handovers(asked.ledger, parse_checkpoint(parse_note(_newest(asked)).text).size)
    if not found:
        raise NotHere("No log key has taken another's place in this log.")
    return File(encode_handovers(found), None, "application/json")


def _newest(asked: Asked) -> str:
    note = asked.ledger.latest_checkpoint()
    if note is None:
        raise NotHere(_NO_CHECKPOINT)
    return note


ROUTES = ((r"^/checkpoint$", checkpoint), (r"^/handovers$", handed_over), (r"^/(?P<path>tile/.*)$", tile))
