"""Reading out of buckets and folders: ranges, ends, what is missing, and which addresses are opened at all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from bitwitness.ledger.remote import NotThere, Remote, RemoteError

DATA = bytes(range(256)) * 5000


@pytest.fixture(params=["memory", "folder", "file"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Remote]:
    if request.param == "memory":
        url = "memory://bucket/log"
        fsspec.filesystem("memory").pipe("/bucket/log/a/b.bin", DATA)
    else:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "b.bin").write_bytes(DATA)
        url = str(tmp_path) if request.param == "folder" else tmp_path.as_uri()
    with Remote(url) as opened:
        yield opened


def test_reading(remote: Remote) -> None:
    assert remote.get("a/b.bin", len(DATA)) == DATA
    for first, count in ((0, 1), (5, 100), (1 << 20, 200_000), (len(DATA) - 3, 3), (7, 0)):
        assert remote.get_range("a/b.bin", first, count) == DATA[first : first + count]
    with pytest.raises(RemoteError, match="ends at"):
        remote.get_range("a/b.bin", len(DATA) - 3, 4)
    with pytest.raises(RemoteError, match="larger than 10 bytes"):
        remote.get("a/b.bin", 10)
    with pytest.raises(NotThere):
        remote.get("a/c.bin", 10)
    with pytest.raises(RemoteError, match="answers nothing"):
        remote.send("replay/entries", b"{}", "application/json", 100)


def test_a_download_goes_on_where_it_ended(remote: Remote) -> None:
    file = io.BytesIO(DATA[:1000])
    assert remote.download("a/b.bin", file, len(DATA)) == len(DATA)
    assert file.getvalue() == DATA
    with pytest.raises(RemoteError, match="larger than"):
        remote.download("a/b.bin", io.BytesIO(), len(DATA) - 1)


@pytest.mark.parametrize(
    "url",
    ["ftp://example.org/x", "simplecache::memory://bucket", "reference://x", "github://a:b@c/", "http://", "/nowhere"],
)
def test_other_addresses_are_not_opened(url: str) -> None:
    with pytest.raises(RemoteError):
        Remote(url)
