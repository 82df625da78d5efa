"""The tlog-tiles paths of `ledger serve` and of `ledger export --tiles`: the same bytes, which prove the whole log."""

from __future__ import annotations

import asyncio
import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import checkpoint, cli, merkle, note, tiles
from bitwitness.ledger.datasette_plugin.server import make_datasette
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.tile_export import export_tiles, held
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from . import small_ledger as small

STEPS = 300
SIZE = len(small.key_entries()) + 2 + STEPS


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / "ledger.db"
    with small.with_run(path, STEPS) as made:
        made.sign_checkpoint(small.SIGNERS["log"])
        writer = small.begin(made, "second")
        writer.append("step", small.step(1, "second"))  # not signed yet
    return path


@pytest.fixture(scope="module")
def get(ledger: Path) -> Any:
    datasette = make_datasette(ledger, public=True)

    def fetch(path: str, **headers: str) -> Any:
        return asyncio.run(datasette.client.get(path, headers={"accept-encoding": "identity", **headers}))

    return fetch


def test_one_export_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project, folder = Project.create(tmp_path / "project"), tmp_path / "out"
    command = ["--project", str(project.root), "export", "--tiles", str(folder)]
    with project.open_ledger(writable=True) as ledger:
        ledger.sign_checkpoint(project.signer("log"))
    with held(folder):
        assert cli.main(command) == 2
        assert "another export writes into" in capsys.readouterr().err and not list(folder.iterdir())
    assert cli.main(command) == 0
    for junk in (b"", b"\xff", b"x\n\n"):
        (folder / "checkpoint").write_bytes(junk)
        assert cli.main(command) == 2 and f"{folder / 'checkpoint'} is no checkpoint" in capsys.readouterr().err
    (folder / "checkpoint").unlink()
    os.mkfifo(folder / "checkpoint")
    assert cli.main(command) == 2 and "not a regular file" in capsys.readouterr().err


def test_every_path_is_the_exported_file(ledger: Path, get: Any, tmp_path: Path) -> None:
    with Ledger.open(ledger) as opened:
        done = export_tiles(opened, tmp_path)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted(["checkpoint", *(tile.path for tile in tiles.tiles_of(SIZE))])
    assert (done.size, done.written) == (SIZE, len(files) - 1)
    for name in files:
        answer = get(f"/{name}")
        assert answer.status_code == 200 and answer.content == (tmp_path / name).read_bytes(), name
        if name == "checkpoint":
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.headers["cache-control"] == "no-cache"
        else:
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert "content-disposition" not in answer.headers


def test_the_tiles_are_the_signed_tree(ledger: Path, get: Any) -> None:
    head, _note = checkpoint.open_checkpoint(get("/checkpoint").text, [small.TRUST.log], small.ORIGIN)
    assert head.size == SIZE
    entries: list[bytes] = []
    for index in range(-(-SIZE // 256)):
        bundle = tiles.tile_at(None, index, SIZE)
        entries += tiles.decode_bundle(get("/" + bundle.path).content, bundle.width)
    leaves = [merkle.leaf_hash(entry) for entry in entries]
    assert merkle.root(leaves) == head.root
    node = tiles.nodes_from_tiles(SIZE, lambda tile: get("/" + tile.path).content)
    assert merkle.root_from_nodes(SIZE, node) == head.root
    with Ledger.open(ledger) as opened:
        assert entries == [data for _index, data in opened.entries(0, SIZE)]


def test_narrower_tiles_of_older_sizes_and_none_beyond_the_checkpoint(get: Any) -> None:
    whole = get("/tile/0/000").content
    assert get("/tile/0/000.p/7").content == whole[: 7 * 32]
    width = SIZE - 256
    assert get(f"/tile/0/001.p/{width}").status_code == 200
    for path in (f"tile/0/001.p/{width + 1}", "tile/0/001", "tile/0/002.p/1", "tile/1/000", "tile/2/000.p/1",
                 "tile/entries/001", "tile/0/0", "tile/0/000.p/256", "tile/64/000", "tile/", "tile/x",
                 "tile/0/x000/000"):  # fmt: skip
        assert get("/" + path).status_code == 404, path


def test_bundles_are_compressed_for_who_takes_it(get: Any) -> None:
    plain, packed = get("/tile/entries/000"), get("/tile/entries/000", **{"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in plain.headers["vary"] and "Accept-Encoding" in packed.headers["vary"]
    assert packed.content == plain.content  # the client unpacks it
    assert len(gzip.compress(plain.content)) < len(plain.content)


def test_who_takes_gzip_is_read_as_http_says(get: Any) -> None:
    for stated in ("gzip", "GZIP", "br, gzip", "gzip;q=0.5", "identity, gzip ; q=1", "gzip;q=0.001,br"):
        assert get("/tile/entries/000", **{"accept-encoding": stated}).headers.get("content-encoding") == "gzip", stated
    for stated in ("", "identity", "gzip;q=0", "gzip; q=0.0", "gzip;q=0.000, br", "x-gzipped", "notgzip"):
        assert "content-encoding" not in get("/tile/entries/000", **{"accept-encoding": stated}).headers, stated


def test_head_and_conditional_requests(ledger: Path) -> None:
    datasette = make_datasette(ledger, public=True)

    def ask(method: str, path: str, **headers: str) -> Any:
        return asyncio.run(datasette.client.request(method, path, headers={"accept-encoding": "identity", **headers}))

    for path in ("/checkpoint", "/tile/0/000", "/tile/entries/000", "/tile/1/000.p/1"):
        whole, head = ask("GET", path), ask("HEAD", path)
        assert (head.status_code, head.content) == (200, b"")
        same = ("cache-control", "content-type", "etag")
        assert [head.headers[name] for name in same] == [whole.headers[name] for name in same]
        tag = whole.headers["etag"]
        for stated in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            known = ask("GET", path, **{"if-none-match": stated})
            assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag), stated
            assert known.headers["cache-control"] == whole.headers["cache-control"]
        for stated in ("", '"other"', tag[1:-1], tag[:-2] + '"'):
            assert ask("GET", path, **{"if-none-match": stated}).content == whole.content, stated
        packed = ask("GET", path, **{"accept-encoding": "gzip", "if-none-match": tag})
        assert packed.status_code == (200 if "entries" in path else 304)  # packed, it is other bytes under another tag
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            refused = ask(method, path)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD"), method
            assert "immutable" not in refused.headers.get("cache-control", "")
    missing = ask("GET", "/tile/0/001", **{"if-none-match": "*"})
    assert missing.status_code == 404 and missing.headers["cache-control"] == "no-cache"


def test_a_later_export_adds_what_is_new(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with small.create(tmp_path / "l.db") as ledger:
        with pytest.raises(BitwitnessError, match="no checkpoint"):
            export_tiles(ledger, folder)
        ledger.sign_checkpoint(small.SIGNERS["log"])
        export_tiles(ledger, folder)
        writer = small.begin(ledger)
        writer.append_all([("step", small.step(number)) for number in range(1, 280)])
        ledger.sign_checkpoint(small.SIGNERS["log"])
        export_tiles(ledger, folder)
        writer.append("step", small.step(280))
        ledger.sign_checkpoint(small.SIGNERS["log"])
        done = export_tiles(ledger, folder)
        assert done.written == 3  # the last bundle, tile and the partial tile above
        fresh = tmp_path / "fresh"
        export_tiles(ledger, fresh)
        for path in fresh.rglob("*"):
            if path.is_file():
                assert path.read_bytes() == (folder / path.relative_to(fresh)).read_bytes()
    with small.with_run(tmp_path / "other.db", 2) as other:
        other.sign_checkpoint(small.SIGNERS["log"])
        with pytest.raises(BitwitnessError, match="another"):
            export_tiles(other, folder)


def test_an_export_goes_on_only_where_it_is_the_same_log(ledger: Path, tmp_path: Path) -> None:
    with Ledger.open(ledger) as opened:
        export_tiles(opened, tmp_path)
        root = opened.root(SIZE)
        for origin, size, signed in (
            ("example.org/other", SIZE, root),  # the same entries in another's name
            (small.ORIGIN, SIZE, merkle.leaf_hash(b"")),  # as many entries, of another history
            (small.ORIGIN, SIZE + 1, root),  # more than are signed here
        ):
            head = checkpoint.Checkpoint(origin, size, signed)
            text = note.sign_note(head.format(), origin, small.SIGNERS["log"])
            (tmp_path / "checkpoint").write_text(text)
            with pytest.raises(BitwitnessError, match="holds another log"):
                export_tiles(opened, tmp_path)
            assert (tmp_path / "checkpoint").read_text() == text
