"""tlog-tiles: paths, widths, bundles, and that tiles give every root and proof."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwitness.ledger import merkle, tiles
from bitwitness.ledger.tiles import Tile, TileError, parse_path, tile_at, tiles_of


def test_public_paths(vectors: Path) -> None:
    """Go's paths name the height as well: those of height 8 are ours without it."""
    data = json.loads((vectors / "tlog" / "tile_paths.json").read_text())
    for case in data["go_paths"]:
        _tile, _height, rest = case["path"].split("/", 2)
        path = "tile/" + rest.replace("data/", "entries/")
        if case["H_L_N_W"] is None:
            with pytest.raises(TileError):
                parse_path(path)
            continue
        _height, level, index, width = case["H_L_N_W"]
        partial = ".p/" in path
        tile = Tile(None if level == -1 else level, index, width if partial else 256)
        assert parse_path(path) == tile and tile.path == path
    example, seventy, full = data["c2sp_examples"]
    assert Tile(0, example["index"]).path == f"tile/0/{example['path']}"
    found = {(tile.level, tile.width == 256) for tile in tiles_of(seventy["tree_size"])}
    assert found == {(None, True), (None, False), (0, True), (0, False), (1, True), (1, False), (2, False)}
    count = sum(1 for tile in tiles_of(seventy["tree_size"]) if tile.level == 0 and tile.width == 256)
    assert count == seventy["level0_full"]
    for level in (0, 1, 2):
        (partial_tile,) = (t for t in tiles_of(seventy["tree_size"]) if t.level == level and t.width < 256)
        assert partial_tile.width == seventy[f"level{level}_partial_width"]
    assert list(tiles_of(full["tree_size"])) == [Tile(None, 0), Tile(0, 0), Tile(1, 0, 1)]


@pytest.mark.parametrize(
    "path",
    ["", "tile", "tile/0", "tile/0/0", "tile/0/0000", "tile/00/000", "tile/64/000", "tile/-1/000", "tile/0/x000/000",
     "tile/0/x001", "tile/0/001/x234", "tile/0/001/234", "tile/0/000.p", "tile/0/000.p/0", "tile/0/000.p/256",
     "tile/0/000.p/01", "tile/0/000.p/1/", "/tile/0/000", "tile/0/000\n", "tile/entry/000", "tile/0/٠٠٠",
     "tile/0/" + "x000/" * 5 + "001", "tile/0/" + "x999/" * 5 + "999", "tile/0/" + "x001/" * 500 + "000"],
)  # fmt: skip
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(TileError):
        parse_path(path)


@given(st.one_of(st.none(), st.integers(0, 63)), st.integers(0, 2**55 - 1), st.integers(1, 256))
def test_paths_come_back(level: int | None, index: int, width: int) -> None:
    tile = Tile(level, index, width)
    assert parse_path(tile.path) == tile


def test_tiles_since() -> None:
    for size in (0, 1, 255, 256, 257, 512, 70_000):
        for since in (0, 1, 255, 256, 257, 511, size):
            if since <= size:
                new = set(tiles_of(size, since))
                assert new == {t for t in tiles_of(size) if t.width < 256 or t not in set(tiles_of(since))}
    with pytest.raises(TileError):
        tile_at(0, 1, 256)


def test_bundles() -> None:
    entries = [b"", b"a", b"\x00" * 65_535]
    data = tiles.encode_bundle(entries)
    assert data[:3] == b"\x00\x00\x00" and tiles.decode_bundle(data, 3) == entries
    for wrong, width in ((data, 2), (data, 4), (data[:-1], 3), (data + b"\x00", 3), (b"", 1), (b"\x00", 1)):
        with pytest.raises(TileError):
            tiles.decode_bundle(wrong, width)
    for made in ([], [b""] * 257, [b"\x00" * 65_536]):
        with pytest.raises(TileError):
            tiles.encode_bundle(made)
    with pytest.raises(TileError):
        tiles.decode_hashes(bytes(33), 1)


def test_what_is_wrong_is_said() -> None:
    for level, index, width, says in (
        (64, 0, 1, "level"), (-1, 0, 1, "level"), (0, -1, 1, "index"), (0, 2**55, 1, "index"), (0, 0, 0, "width"),
        (0, 0, 257, "width"), (None, 0, -1, "width"),
    ):  # fmt: skip
        with pytest.raises(TileError, match=f"the {says} "):
            Tile(level, index, width)
    for level, index in ((0, 1), (None, 1), (1, 1), (2, 0)):
        with pytest.raises(TileError, match="has no tile"):
            tile_at(level, index, 256)
    for data, says in (
        (b"", "ends after 0 of 1"),
        (b"\0", "ends after 0"),
        (b"\0\2a", "cut short"),
        (b"\0\0a", "follow"),
    ):
        with pytest.raises(TileError, match=says):
            tiles.decode_bundle(data, 1)


def test_every_node_of_a_tree_comes_from_its_tiles() -> None:
    leaves = [merkle.leaf_hash(b"%d" % number) for number in range(70_000)]
    levels = [leaves]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([merkle.node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)])
    fetched: list[Tile] = []

    def fetch(tile: Tile) -> bytes:
        fetched.append(tile)
        assert tile.level is not None
        return b"".join(levels[8 * tile.level][tile.start : tile.start + tile.width])

    for size in (1, 255, 256, 257, 65_535, 65_536, 69_999, 70_000):
        fetched.clear()
        node = tiles.nodes_from_tiles(size, fetch)
        assert merkle.root_from_nodes(size, node) == merkle.root(leaves[:size])
        proof = merkle.consistency_proof_from_nodes(max(1, size // 3), size, node)
        merkle.verify_consistency(
            max(1, size // 3), size, merkle.root(leaves[: max(1, size // 3)]), merkle.root(leaves[:size]), proof
        )
        merkle.verify_inclusion(
            size // 2, size, leaves[size // 2], merkle.inclusion_proof_from_nodes(size // 2, size, node),
            merkle.root(leaves[:size]),
        )  # fmt: skip
        assert len(fetched) == len(set(fetched)) <= 12
        assert set(fetched) <= set(tiles_of(size))
