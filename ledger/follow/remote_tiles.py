"""The tiles of one signed tree on another machine: fetched when they are needed, and proven to be the tree's.

Whoever serves a log signs its size, too, so nothing is made or fetched in proportion to that. First comes the tree's
right edge, at most eight tiles, which must give the signed root. Every other hash tile is held against the tile above
it before it is used; of all that was fetched a few tiles are kept.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import merkle, tiles
from ..checkpoint import Checkpoint
from ..merkle import HASH_SIZE
from ..tiles import WIDTH, Tile, TileError
from .followed_keys import NotWhatWasSigned
from .remote import NotThere, Remote

_HELD = 64


class RemoteTiles:
    """The tree of `head` at `remote`. Every method raises NotThere, RemoteError, NotWhatWasSigned."""

    def __init__(self, remote: Remote, head: Checkpoint) -> None:
        self._remote, self._head = remote, head
        self._edge: dict[int, list[bytes]] | None = None
        self._held: dict[tuple[int, int], list[bytes]] = {}

    def hashes(self, level: int, index: int) -> list[bytes]:
        """The hashes of a tile."""
        tile = tiles.tile_at(level, index, self._head.size)
        if tile.width < WIDTH:
            return self._right_edge()[level]
        if (level, index) not in self._held:
            above = self.hashes(level + 1, index // WIDTH)[index % WIDTH]
            found = self._hashes(tile)
            if merkle.root(found) != above:
                raise NotWhatWasSigned(f"{tile.path} does not hash to what the tile above it says")
            while len(self._held) >= _HELD:
                del self._held[next(iter(self._held))]
            self._held[level, index] = found
        return self._held[level, index]

    def node(self, level: int, index: int) -> bytes:
        """The hash of a perfect subtree."""
        return tiles.node_in_tiles(level, index, self.hashes)

    def entries(self, index: int) -> list[bytes]:
        """The entries whose leaf hashes are tile `index` of level 0."""
        bundle, leaves = tiles.tile_at(None, index, self._head.size), self.hashes(0, index)
        entries = self._read(bundle, tiles.decode_bundle)
        for number, (entry, leaf) in enumerate(zip(entries, leaves, strict=True), bundle.start):
            if merkle.leaf_hash(entry) != leaf:
                raise NotWhatWasSigned(f"entry {number} in its bundle is not the one that it signed")
        return entries

    def _right_edge(self) -> dict[int, list[bytes]]:
        """The partial tile of each level that has one: together they give the root."""
        if self._edge is None:
            size, edge, root = self._head.size, dict[int, list[bytes]](), b""
            for level in range(tiles.MAX_LEVEL + 1):
                index, width = divmod(tiles.hashes_at(level, size), WIDTH)
                if width:
                    edge[level] = self._hashes(Tile(level, index, width))
                    for height, place in reversed(merkle.perfect_nodes(0, width)):
                        first = place << height
                        peak = merkle.root(edge[level][first : first + (1 << height)])
                        root = merkle.node_hash(peak, root) if root else peak
            if root != self._head.root:
                raise NotWhatWasSigned(f"its tiles do not hash to the root that it signed for {size} entries")
            self._edge = edge
        return self._edge

    def _hashes(self, tile: Tile) -> list[bytes]:
        return self._read(tile, tiles.decode_hashes)

    def _read(self, tile: Tile, decode: Callable[[bytes, int], list[bytes]]) -> list[bytes]:
        try:
            return decode(self._fetch(tile), tile.width)
        except TileError as error:
            raise NotWhatWasSigned(f"{self._remote.url}: {tile.path} is no such tile ({error})") from None

    def _fetch(self, tile: Tile) -> bytes:
        """A tile's bytes; where a partial one is gone, the first part of the full one."""
        limit = tiles.MAX_BUNDLE if tile.level is None else WIDTH * HASH_SIZE
        try:
            return self._remote.get(tile.path, limit)
        except NotThere:
            if tile.width == WIDTH:
                raise
            data = self._remote.get(tile.whole.path, limit)
        if tile.level is None:
            return tiles.encode_bundle(tiles.decode_bundle(data, WIDTH)[: tile.width])
        return data[: tile.width * HASH_SIZE]
