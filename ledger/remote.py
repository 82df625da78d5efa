"""Reading from other machines, or from folders in their place: HTTP with limits on time and bytes, errors in a line."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

import httpx

from .errors import BitwitnessError
from .listen import is_loopback

_TIMEOUT = 20.0
_AGENT = "bitwitness"


class RemoteError(BitwitnessError):
    """Another machine could not be reached, or gave no proper answer. `url` names it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason


class NotThere(RemoteError):
    """The other side says that it has no such thing."""


class Remote:
    """A prefix of addresses: `http(s)://…`, `file://…` or the path of a folder. Paths below it are relative to it."""

    def __init__(self, url: str) -> None:
        """Raises RemoteError for what is neither an address nor a folder."""
        parts = urlsplit(url)
        self.url = url
        self._folder: Path | None = None
        self._client: httpx.Client | None = None
        if parts.scheme in ("http", "https"):
            if not parts.hostname or parts.query or parts.fragment:
                raise RemoteError(url, "not the address of a server")
            self._client = httpx.Client(
                base_url=url.rstrip("/") + "/",
                timeout=_TIMEOUT,
                headers={"User-Agent": _AGENT},
                trust_env=not is_loopback(parts.hostname),  # proxies of the environment are for other machines
            )
            return
        folder = Path(unquote(parts.path)) if parts.scheme == "file" else Path(url)
        if not folder.is_dir():
            raise RemoteError(url, "neither an http(s) address nor a folder")
        self._folder = folder

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def get(self, path: str, limit: int) -> bytes:
        """The bytes at `path`, at most `limit`. Raises NotThere, RemoteError."""
        if self._folder is not None:
            return _read(self._folder / path, self.url, limit)
        status, _kind, data = self._request("GET", path, None, limit)
        if status in (404, 410):
            raise NotThere(self.url, f"it has no {path}")
        if status != 200:
            raise RemoteError(self.url, f"answered {status} for {path}")
        return data

    def post(self, path: str, body: str, limit: int) -> tuple[int, str, str]:
        """Status, content type and text of the answer. Raises RemoteError."""
        if self._folder is not None:
            raise RemoteError(self.url, "a folder answers nothing")
        status, kind, data = self._request("POST", path, body.encode("utf-8"), limit)
        try:
            return status, kind, data.decode("utf-8")
        except UnicodeDecodeError:
            raise RemoteError(self.url, "its answer is not UTF-8") from None

    def _request(self, method: str, path: str, body: bytes | None, limit: int) -> tuple[int, str, bytes]:
        if self._client is None:
            raise RemoteError(self.url, "is closed")
        try:
            with self._client.stream(method, path, content=body) as answer:
                data = bytearray()
                for part in answer.iter_bytes():
                    data += part
                    if len(data) > limit:
                        raise RemoteError(self.url, f"the answer for {path} is larger than {limit} bytes")
                kind = str(answer.headers.get("content-type", "")).split(";")[0].strip().lower()
                return answer.status_code, kind, bytes(data)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise RemoteError(self.url, f"cannot be reached ({str(error) or type(error).__name__})") from None


def _read(path: Path, url: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise NotThere(url, f"it has no {path.name}") from None
    except OSError as error:
        raise RemoteError(url, (error.strerror or str(error)).lower()) from None
    if len(data) > limit:
        raise RemoteError(url, f"{path.name} is larger than {limit} bytes")
    return data
