"""Tiles of a log, C2SP tlog-tiles: paths, hash tiles and entry bundles (docs/formats/tiles.md). Fetches nothing.

A hash tile holds up to 256 consecutive hashes: at level 0 leaf hashes, at each level above the roots of full tiles
below. An entry bundle holds the entries whose leaf hashes are one tile of level 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from . import merkle
from .errors import FormatError
from .merkle import HASH_SIZE, MAX_SIZE

WIDTH = 256
HEIGHT = 8
MAX_LEVEL = 63
MAX_ENTRY = 65_535
MAX_BUNDLE = WIDTH * (2 + MAX_ENTRY)

_PATH = re.compile(r"tile/(entries|0|[1-9][0-9]?)/((?:x[0-9]{3}/)*[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?")


class TileError(FormatError):
    """A tile, bundle or tile path that does not follow C2SP tlog-tiles."""

    def __init__(self, reason: str, where: str = "tile") -> None:
        super().__init__(where, reason)


@dataclass(frozen=True, order=True)
class Tile:
    """A hash tile, or with level None an entry bundle; partial if `width` is below 256."""

    level: int | None
    index: int
    width: int = WIDTH

    def __post_init__(self) -> None:
        if self.level is not None and not 0 <= self.level <= MAX_LEVEL:
            raise TileError(f"the level {self.level} is not between 0 and {MAX_LEVEL}")
        if not 0 <= self.index <= MAX_SIZE // WIDTH:
            raise TileError(f"the index {self.index} is not between 0 and {MAX_SIZE // WIDTH}")
        if not 1 <= self.width <= WIDTH:
            raise TileError(f"the width {self.width} is not between 1 and {WIDTH}")

    @property
    def start(self) -> int:
        """The number, within its level, of its first hash or entry."""
        return self.index * WIDTH

    @property
    def whole(self) -> Tile:
        """The full tile that this one becomes."""
        return Tile(self.level, self.index)

    @property
    def path(self) -> str:
        """`tile/LEVEL/INDEX[.p/WIDTH]`, the index in groups of three digits, each but the last after an x."""
        digits = str(self.index)
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        index = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
        level = "entries" if self.level is None else str(self.level)
        return f"tile/{level}/{index}" + ("" if self.width == WIDTH else f".p/{self.width}")


def parse_path(path: str) -> Tile:
    """Read a tile's path strictly; `parse_path(path).path == path`. Raises TileError."""
    found = _PATH.fullmatch(path) if len(path) <= 100 else None
    if found is None:
        raise TileError("not tile/LEVEL/INDEX or tile/entries/INDEX, with .p/WIDTH if partial", "tile path")
    level, index, width = found.groups()
    tile = Tile(
        None if level == "entries" else int(level),
        int(index.replace("x", "").replace("/", "")),
        WIDTH if width is None else int(width),
    )
    if tile.path != path:
        raise TileError(f"{path} is not the one way to write {tile.path}", "tile path")
    return tile


def hashes_at(level: int, size: int) -> int:
    """How many hashes the tiles of this level hold for a tree of `size`: one for each full tile below."""
    return size >> (HEIGHT * level)


def tile_at(level: int | None, index: int, size: int) -> Tile:
    """The tile as a tree of `size` has it, full or partial. Raises TileError if it has none."""
    width = min(WIDTH, hashes_at(level or 0, size) - index * WIDTH)
    if width < 1:
        raise TileError(f"a tree of {size} has no tile {index} at level {'entries' if level is None else level}")
    return Tile(level, index, width)


def tiles_of(size: int, since: int = 0) -> Iterator[Tile]:
    """All tiles of a tree of `size`, bundles first, but for full ones that a tree of `since` has, too."""
    for level in (None, *range(MAX_LEVEL + 1)):
        count, before = hashes_at(level or 0, size), hashes_at(level or 0, since)
        if not count:
            return
        for index in range(before // WIDTH, -(-count // WIDTH)):
            yield tile_at(level, index, size)


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    """Each entry after its length, two bytes big-endian. Raises TileError."""
    if not 1 <= len(entries) <= WIDTH:
        raise TileError(f"{len(entries)} entries are not 1 to {WIDTH}", "entry bundle")
    if any(len(entry) > MAX_ENTRY for entry in entries):
        raise TileError(f"an entry has more than {MAX_ENTRY} bytes", "entry bundle")
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def decode_bundle(data: bytes, width: int) -> list[bytes]:
    """The `width` entries of a bundle, to its last byte. Raises TileError."""
    entries: list[bytes] = []
    at = 0
    for _ in range(width):
        if len(data) < at + 2:
            raise TileError(f"it ends after {len(entries)} of {width} entries", "entry bundle")
        length = int.from_bytes(data[at : at + 2], "big")
        entries.append(data[at + 2 : at + 2 + length])
        at += 2 + length
        if len(data) < at:
            raise TileError(f"its entry {len(entries) - 1} is cut short", "entry bundle")
    if at != len(data):
        raise TileError(f"{len(data) - at} bytes follow its {width} entries", "entry bundle")
    return entries


def decode_hashes(data: bytes, width: int) -> list[bytes]:
    """The `width` hashes of a tile. Raises TileError."""
    if len(data) != width * HASH_SIZE:
        raise TileError(f"{len(data)} bytes are not {width} hashes of {HASH_SIZE}")
    return [data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE)]


def nodes_from_tiles(size: int, fetch: Callable[[Tile], bytes]) -> merkle.GetNode:
    """The perfect subtrees of a tree of `size`, made from its hash tiles; each tile is fetched once.

    What comes back is as good as the tiles: authenticate it by a proof to a signed root.
    """
    held: dict[Tile, list[bytes]] = {}

    def hashes(level: int, index: int) -> list[bytes]:
        tile = tile_at(level, index, size)
        if tile not in held:
            held[tile] = decode_hashes(fetch(tile), tile.width)
        return held[tile]

    return lambda level, index: node_in_tiles(level, index, hashes)


def node_in_tiles(level: int, index: int, hashes: Callable[[int, int], list[bytes]]) -> bytes:
    """The hash of a perfect subtree; `hashes` gives those of the tile at (tile level, index)."""
    above, height = divmod(level, HEIGHT)
    number, place = divmod(index << height, WIDTH)
    return merkle.root(hashes(above, number)[place : place + (1 << height)])
