"""Reading from other machines, from folders or buckets in their place: limits on time and bytes, errors in a line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from .transport import BucketTransport, FolderTransport, HttpTransport, NotThere, RemoteError, Transport, shown

__all__ = ["NotThere", "Remote", "RemoteError", "is_address"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_address(text: str) -> bool:
    """Whether a text is an address (`scheme://…`) rather than a name or a path."""
    return _SCHEME.match(text) is not None


class Remote:
    """A prefix of addresses: `http(s)://…`, `s3://…` and the like, `file://…` or the path of a folder."""

    def __init__(self, url: str) -> None:
        """Raises RemoteError for what is neither an address nor a folder."""
        self.url = shown(url)
        self._transport: Transport | None = _transport(url)

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def get(self, path: str, limit: int) -> bytes:
        """The bytes at `path`, at most `limit`. Raises NotThere, RemoteError."""
        data = bytearray()
        for part in self._open().pieces(path, 0, None):
            data += part
            if len(data) > limit:
                raise RemoteError(self.url, f"the answer for {path} is larger than {limit} bytes")
        return bytes(data)

    def get_range(self, path: str, first: int, count: int) -> bytes:
        """Exactly the bytes [first, first + count) of what is at `path`. Raises NotThere, RemoteError."""
        data = b"".join(self._open().pieces(path, first, count)) if count else b""
        if len(data) != count:
            raise RemoteError(self.url, f"{path} ends at {first + len(data)} bytes, before {first + count}")
        return data

    def download(self, path: str, file: BinaryIO, limit: int) -> int:
        """Append what is at `path` to `file`, going on from what the file holds already; return its size.

        At most `limit` bytes in all. Raises NotThere, RemoteError; what came until then stays in the file.
        """
        size = file.seek(0, 2)
        for part in self._open().pieces(path, size, limit + 1 - size):
            size += len(part)
            if size > limit:
                raise RemoteError(self.url, f"{path} is larger than {limit} bytes")
            file.write(part)
        return size

    def post(self, path: str, body: str, limit: int) -> tuple[int, str, str]:
        """Status, content type and text of the answer to a text. Raises RemoteError."""
        status, kind, data = self.send(path, body.encode("utf-8"), "text/plain; charset=utf-8", limit)
        try:
            return status, kind, data.decode("utf-8")
        except UnicodeDecodeError:
            raise RemoteError(self.url, "its answer is not UTF-8") from None

    def send(self, path: str, body: bytes, kind: str, limit: int) -> tuple[int, str, bytes]:
        """Status, content type and bytes of the answer to `body`. Raises RemoteError."""
        return self._open().post(path, body, kind, limit)

    def _open(self) -> Transport:
        if self._transport is None:
            raise RemoteError(self.url, "is closed")
        return self._transport


def _transport(url: str) -> Transport:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:  # of an IPv6 address
        raise RemoteError(url, f"not an address: {error}") from None
    if parts.scheme in ("http", "https"):
        if not host or parts.query or parts.fragment:
            raise RemoteError(url, "not the address of a server")
        return HttpTransport(url, host)
    if is_address(url) and parts.scheme in BucketTransport.SCHEMES:
        return BucketTransport(url)
    if is_address(url) and parts.scheme != "file":
        raise RemoteError(url, f"addresses begin with http, https, file, {', '.join(BucketTransport.SCHEMES)}")
    folder = Path(unquote(parts.path)) if parts.scheme == "file" else Path(url)
    if not os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        raise RemoteError(url, "neither an address nor a folder")
    return FolderTransport(folder, url)
