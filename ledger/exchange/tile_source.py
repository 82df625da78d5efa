"""The bytes of a ledger's tiles, from its entries and stored tree nodes: what is served, and what is exported."""

from __future__ import annotations

from .. import tiles
from ..store import Ledger
from ..tiles import Tile


def tile_bytes(ledger: Ledger, tile: Tile, size: int) -> bytes | None:
    """The content of a tile of the tree of `size`; None if that tree has no such tile, or a narrower one.

    Narrower ones than the tree has now are given, since checkpoints of older sizes lead to them.
    """
    if tile.start + tile.width > tiles.hashes_at(tile.level or 0, size):
        return None
    last = tile.start + tile.width
    if tile.level is None:
        return tiles.encode_bundle([entry for _index, entry in ledger.entries(tile.start, last)])
    return b"".join(ledger.node(tiles.HEIGHT * tile.level, index) for index in range(tile.start, last))
