"""Reading out of buckets and folders: ranges, ends, what is missing, and which addresses are opened at all."""

from __future__ import annotations

import io
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec
import pytest

from bitwitness.ledger.follow import transport
from bitwitness.ledger.follow.remote import NotThere, Remote, RemoteError

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


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
TRICKLES = {
    "head": (b"HTTP/1.1 200 OK\r\nX-Name: ", itertools.repeat(b"a")),
    "headers": (b"HTTP/1.1 200 OK\r\n", itertools.repeat(b"X-Name: a\r\n")),
    "interim answers": (b"", itertools.repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n")),
    "length of a chunk": (HEAD + b"\r\n", itertools.repeat(b"0")),
    "body": (HEAD + b"\r\n", itertools.repeat(b"1\r\na\r\n")),
}


@contextmanager
def trickling(first: bytes, then: Iterator[bytes]) -> Iterator[str]:
    """A server that answers with `first`, and then with a little of `then` every hundredth of a second."""
    over = threading.Event()

    def run() -> None:
        connection, _address = server.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(first)
            while not over.wait(0.01):
                connection.sendall(next(then))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        over.set()
        thread.join(5)


@pytest.mark.parametrize("name", TRICKLES)
@pytest.mark.parametrize("method", ["get", "range", "post"])
def test_a_server_that_trickles_for_ever_is_left(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes soon enough for a read, and none of it is of use."""
    monkeypatch.setattr(transport, "_GRACE", 0.3)
    started = time.monotonic()
    with trickling(*TRICKLES[name]) as url, Remote(url) as remote, pytest.raises(RemoteError, match="too slowly"):
        if method == "get":
            remote.get("checkpoint", 1 << 20)
        elif method == "range":
            remote.get_range("tile/0/000", 0, 1 << 20)
        else:
            remote.send("replay/entries", b"{}", "application/json", 1 << 20)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "url",
    [
        "http://[", "http://[::1", "http://\x00/", "http://a:b/", "http://a:99999/", "http://\ud800/", "http://a\n/",
        "http://127.0.0.1:1/" + "x" * 100_000, "x" * 5000, "\x00", "file://\x00", "http://", "nothing://here",
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_address_is_said_to_be_none(url: str) -> None:
    with pytest.raises(RemoteError) as caught, Remote(url) as remote:
        remote.get("checkpoint", 100)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


def test_a_password_in_an_address_is_not_told() -> None:
    for url in ("http://me:secret@127.0.0.1:9/log", "http://me:se@cret@127.0.0.1:9/log", "ftp://me:secret@host/"):
        with pytest.raises(RemoteError) as raised, Remote(url) as remote:
            remote.get("checkpoint", 10)
        assert "cret" not in str(raised.value) and "cret" not in raised.value.url and "://…@" in raised.value.url
