"""Ways to read what others publish: HTTP, a folder, a bucket. Each answers with bytes, within limits, or raises.

A server is not believed and not obeyed: no redirect is followed, no answer is longer than what was asked for (nor
unpacks to more), none may trickle in for ever.
"""

from __future__ import annotations

import re
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

import httpx

from ..errors import BitwitnessError
from ..exchange.listen import is_loopback
from ..files.regular_file import open_regular

_TIMEOUT = 20.0
_AGENT = "bitwitness"
_PIECE = 1 << 20
# The least that an answer may bring: this many seconds, and then so many bytes a second.
_GRACE, _SLOWEST = 60.0, 16 * 1024
# What a server that knows no ranges may send before the part that was asked for.
_SKIP_LIMIT = 1 << 28


def shown(url: str) -> str:
    """An address as messages name it: without the name and the password that may stand in it."""
    return _USER.sub("…@", url)


_USER = re.compile(r"(?<=://)[^/?#]*@")


class RemoteError(BitwitnessError):
    """Another machine could not be reached, or gave no proper answer. `url` names it."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = shown(url)
        super().__init__(f"{self.url}: {reason}")
        self.reason = reason


class NotThere(RemoteError):
    """The other side says that it has no such thing."""


class Transport(Protocol):
    """Reading below one address. `path` is relative, made by this program, and never leaves that address."""

    def pieces(self, path: str, first: int, count: int | None) -> Iterator[bytes]:
        """Bytes [first, first + count) of what is at `path`, to its end where count is None; at most that many.

        May end early, where there is no more. Raises NotThere, RemoteError.
        """

    def post(self, path: str, body: bytes, kind: str, limit: int) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer. Raises RemoteError."""

    def close(self) -> None: ...


class HttpTransport:
    """http and https. What the environment says of proxies holds for other machines only."""

    def __init__(self, url: str, host: str) -> None:
        self.url = url
        self._connections: WeakSet[Any] = WeakSet()
        try:
            self._client = httpx.Client(
                base_url=url.rstrip("/") + "/",
                timeout=_TIMEOUT,
                headers={"User-Agent": _AGENT},
                follow_redirects=False,
                trust_env=not is_loopback(host),
            )
        except httpx.InvalidURL as error:
            raise RemoteError(url, f"not the address of a server: {error}") from None

    def close(self) -> None:
        self._client.close()

    def pieces(self, path: str, first: int, count: int | None) -> Iterator[bytes]:
        if first == 0 and count is None:
            yield from self._whole(path)
            return
        last = "" if count is None else str(first + count - 1)
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        with self._exchange("GET", path, headers) as (answer, raw):
            if answer.status_code == 416:
                return
            skip = self._skip(answer, path, first)
            yield from _cut(raw, skip, count)

    def _skip(self, answer: httpx.Response, path: str, first: int) -> int:
        """How many bytes come before the part that was asked for: none, or all, where the server knows no ranges."""
        self._check_status(answer.status_code, path, (200, 206))
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise RemoteError(self.url, f"packs {path}, of which a range was asked for")
        if answer.status_code == 206:
            if not str(answer.headers.get("content-range", "")).startswith(f"bytes {first}-"):
                raise RemoteError(self.url, f"sent another range of {path} than was asked for")
            return 0
        if first > _SKIP_LIMIT:
            raise RemoteError(self.url, f"knows no ranges, and {path} is too large to be read from its beginning")
        return first

    def _whole(self, path: str) -> Iterator[bytes]:
        with self._exchange("GET", path, {"Accept-Encoding": "gzip"}) as (answer, raw):
            self._check_status(answer.status_code, path, (200,))
            packing = answer.headers.get("content-encoding", "identity").lower()
            if packing not in ("identity", "gzip"):
                raise RemoteError(self.url, f"packs {path} as {packing[:20]}")
            yield from (_unpacked(raw, self.url, path) if packing == "gzip" else raw)

    @contextmanager
    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
        """The answer to a request, and its body as it comes. Raises RemoteError, also for one that is too slow."""
        watch = _Watch(self._connections)
        try:
            with (
                watch,
                self._client.stream(
                    method, path, headers=headers, content=body, extensions={"trace": self._note_connection}
                ) as answer,
            ):
                yield answer, watch.counted(answer.iter_raw())
        except _TooSlow:
            raise RemoteError(self.url, f"sends {path} too slowly") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            if watch.late:
                raise RemoteError(self.url, f"sends {path} too slowly") from None
            raise RemoteError(self.url, f"cannot be reached ({str(error) or type(error).__name__})") from None

    def _note_connection(self, event: str, info: Mapping[str, Any]) -> None:
        made = info.get("return_value")
        if hasattr(made, "get_extra_info"):  # what connecting, and TLS, came to
            self._connections.add(made)

    def post(self, path: str, body: bytes, kind: str, limit: int) -> tuple[int, str, bytes]:
        headers = {"Content-Type": kind, "Accept-Encoding": "identity"}
        with self._exchange("POST", path, headers, body) as (answer, raw):
            data = bytearray()
            for part in raw:
                data += part
                if len(data) > limit:
                    raise RemoteError(self.url, f"the answer for {path} is larger than {limit} bytes")
            stated = str(answer.headers.get("content-type", "")).split(";")[0].strip().lower()
            return answer.status_code, stated, bytes(data)

    def _check_status(self, status: int, path: str, wanted: tuple[int, ...]) -> None:
        if status in (404, 410):
            raise NotThere(self.url, f"it has no {path}")
        if 300 <= status < 400:
            raise RemoteError(
                self.url, f"answered {status} for {path}; redirects are not followed, give the new address"
            )
        if status not in wanted:
            raise RemoteError(self.url, f"answered {status} for {path}")


class _TooSlow(Exception):
    """An answer brings less than the least that it may."""


class _Watch:
    """Ends an exchange that brings too little, whatever it is that comes: a head or a chunk's length, byte by byte.

    The client's own timeout is for one read, which a byte satisfies; nothing of it returns before a head is whole.
    """

    def __init__(self, connections: WeakSet[Any]) -> None:
        self._connections, self._over = connections, threading.Event()
        self._started, self._done = time.monotonic(), 0
        self.late = False

    def __enter__(self) -> _Watch:
        threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def counted(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """The parts of a body, which buy it time."""
        for part in parts:
            self._done += len(part)
            if self._left() < 0:
                raise _TooSlow
            yield part

    def _left(self) -> float:
        return self._started + _GRACE + self._done / _SLOWEST - time.monotonic()

    def _wait(self) -> None:
        while not self._over.wait(max(0.0, self._left())):
            if self._left() < 0:
                self.late = True
                for stream in list(self._connections):
                    held = stream.get_extra_info("socket")
                    if held is not None:
                        with suppress(OSError):
                            held.shutdown(socket.SHUT_RDWR)  # whoever reads from it comes back at once
                return


class FolderTransport:
    """Files below a folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url, self._folder = url, folder

    def close(self) -> None:
        """Nothing is kept open."""

    def pieces(self, path: str, first: int, count: int | None) -> Iterator[bytes]:
        try:
            with open_regular(self._folder / path) as file:
                file.seek(first)
                left = count
                while left is None or left > 0:
                    part = file.read(_PIECE if left is None else min(_PIECE, left))
                    if not part:
                        return
                    left = None if left is None else left - len(part)
                    yield part
        except (FileNotFoundError, NotADirectoryError):
            raise NotThere(self.url, f"it has no {path}") from None
        except OSError as error:
            raise RemoteError(self.url, f"{path}: {(error.strerror or str(error)).lower()}") from None

    def post(self, path: str, body: bytes, kind: str, limit: int) -> tuple[int, str, bytes]:
        raise RemoteError(self.url, "a folder answers nothing")


class BucketTransport:
    """Objects of a bucket, through fsspec. Only these schemes: others chain, unpack or run templates."""

    SCHEMES = ("memory", "s3", "gs", "az", "abfs")

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            import fsspec.core  # brings a tenth of a second with it

            self._system, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise RemoteError(url, f"needs a package that is not installed: {error}") from None
        except Exception as error:  # each system has errors of its own
            raise RemoteError(url, _told(error)) from None
        self._root = str(root).rstrip("/")

    def close(self) -> None:
        """fsspec keeps its connections itself."""

    def pieces(self, path: str, first: int, count: int | None) -> Iterator[bytes]:
        while count is None or count > 0:
            wanted = _PIECE if count is None else min(_PIECE, count)
            part = self._read(path, first, wanted)
            if not part:
                return
            yield part
            if len(part) < wanted:
                return
            first, count = first + len(part), None if count is None else count - len(part)

    def _read(self, path: str, first: int, wanted: int) -> bytes:
        try:
            part: Any = self._system.cat_file(f"{self._root}/{path}", start=first, end=first + wanted)
        except FileNotFoundError:
            raise NotThere(self.url, f"it has no {path}") from None
        except Exception as error:
            raise RemoteError(self.url, f"{path}: {_told(error)}") from None
        return bytes(part)[:wanted]

    def post(self, path: str, body: bytes, kind: str, limit: int) -> tuple[int, str, bytes]:
        raise RemoteError(self.url, "a bucket answers nothing")


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _cut(parts: Iterator[bytes], skip: int, count: int | None) -> Iterator[bytes]:
    for part in parts:
        dropped = min(skip, len(part))
        skip, part = skip - dropped, part[dropped:]
        if count is not None:
            part = part[:count]
            count -= len(part)
        if part:
            yield part
        if count == 0:
            return


def _unpacked(parts: Iterator[bytes], url: str, path: str) -> Iterator[bytes]:
    """Unpack gzip piece by piece, so that who reads can stop before a small answer has become a large one.

    What unpacks to nothing would never meet the limit of who reads: more of it than a piece, or anything behind the
    end, is refused.
    """
    unpacker = zlib.decompressobj(wbits=31)
    packed = unpacked = 0
    try:
        for part in parts:
            packed += len(part)
            while part:
                data = unpacker.decompress(part, _PIECE)
                unpacked += len(data)
                yield data
                part = unpacker.unconsumed_tail
            if packed > unpacked + _PIECE or unpacker.unused_data:
                raise RemoteError(url, f"{path} is packed and damaged")
        yield unpacker.flush()
    except zlib.error:
        raise RemoteError(url, f"{path} is packed and damaged") from None
