"""What auditors ask a server for beyond the log: files by range, and a place to send entries to. Plain ASGI.

Files are streamed in pieces, so that none is ever in memory; a request's body is read no further than an entry may
be long. See docs/formats/replay-files.md.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

from ..entry.envelope import MAX_ENTRY
from ..errors import BitwitnessError
from ..exchange import listen
from ..exchange.inbox import InboxFull
from ..exchange.replay_files import ENTRIES, open_file, parse_address
from ..exchange.submissions import NotAccepted, Receipt, TooMany, leave, receipt_for, submit
from ..keys import Signer
from ..project import CONFIG, Project
from ..sqlite.admission import SignerNotEnrolled
from ..sqlite.lock import LedgerLocked
from ..store import Ledger

_PIECE = 1 << 18
_PATIENCE, _LOOK = 8.0, 0.1
"""Seconds that a request waits for a run to take its entry in, and between two looks."""
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


class _Answer(Exception):
    """What to say instead of a file: a status, and one line."""

    def __init__(self, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers or {}


class ReplayApp:
    """Serves `replay/…` of the project that a ledger file is in. Where `log` gives no key, entries are not taken."""

    def __init__(self, ledger: Path, log: Callable[[], Signer | None]) -> None:
        self._ledger, self._log = ledger, log
        self._project = Project.find(ledger.parent) if (ledger.parent / CONFIG).is_file() else None
        self._one_writer = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Receive, send: Send, path: str) -> None:
        """Answer a request for `path`, which begins with `replay/`."""
        try:
            if path == ENTRIES:
                await self._take(scope, receive, send)
            else:
                await self._give(scope, send, path)
        except _Answer as answer:
            body = (answer.reason + "\n").encode("utf-8")
            await _start(send, answer.status, "text/plain; charset=utf-8", len(body), answer.headers)
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _give(self, scope: Any, send: Send, path: str) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise _Answer(405, "only GET and HEAD", {"allow": "GET, HEAD"})
        file = await asyncio.to_thread(self._file, path)
        if file is None:
            raise _Answer(404, "there is no such file here")
        with file:
            size = os.fstat(file.fileno()).st_size
            first, last = _wanted(scope, size)
            headers = {"accept-ranges": "bytes", "cache-control": "no-cache"}
            if (first, last) != (0, size) or _header(scope, b"range") is not None:
                headers["content-range"] = f"bytes {first}-{last - 1}/{size}"
            status = 206 if "content-range" in headers else 200
            await _start(send, status, "application/octet-stream", last - first, headers)
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            await _stream(file, first, last, send)

    def _file(self, path: str) -> BinaryIO | None:
        address = parse_address(path)
        if address is None or self._project is None:
            return None
        try:
            with Ledger.open(self._ledger) as ledger, ledger.snapshot():
                return open_file(self._project, ledger, address)
        except BitwitnessError:
            return None

    async def _take(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise _Answer(405, "entries are sent here with POST", {"allow": "POST"})
        project, log = self._project, self._log()
        if log is None or project is None:
            raise _Answer(403, "this server takes no entries; hand them over as a file (`ledger audit --out`)")
        try:
            async with asyncio.timeout(listen.SLOWEST):
                data = await _body(scope, receive)
        except TimeoutError:
            raise _Answer(
                408, f"the request took more than {listen.SLOWEST:g} seconds", {"connection": "close"}
            ) from None
        try:
            async with self._one_writer:
                receipt = await asyncio.to_thread(_submit, project, log, data)
            end = time.monotonic() + _PATIENCE
            while receipt is None and time.monotonic() < end:
                await asyncio.sleep(_LOOK)
                receipt = await asyncio.to_thread(receipt_for, project, data)
        except (TooMany, InboxFull) as error:
            raise _Answer(429, _public(error, project), {"retry-after": "3600"}) from None
        except (NotAccepted, SignerNotEnrolled) as error:
            raise _Answer(403, _public(error, project)) from None
        except BitwitnessError as error:
            raise _Answer(422, _public(error, project)) from None
        if receipt is None:
            reason = "the entry waits for the run that writes the log, which takes it in after its step; ask again"
            raise _Answer(503, reason, {"retry-after": "10"})
        body = receipt.proof.encode("utf-8")
        await _start(send, 201 if receipt.new else 200, "text/plain; charset=utf-8", len(body), {})
        await send({"type": "http.response.body", "body": body})


def _submit(project: Project, log: Signer, data: bytes) -> Receipt | None:
    """Append an entry; while somebody else writes the ledger, leave it for him and answer None."""
    try:
        return submit(project, log, data, patience=0.0)
    except LedgerLocked:
        leave(project, data)
        return None


def _public(error: BitwitnessError, project: Project) -> str:
    """What was wrong, without telling where the project stands on this machine."""
    return " ".join(str(error).replace(f"{project.root}{os.sep}", "").split())[:500]


def _wanted(scope: Any, size: int) -> tuple[int, int]:
    """The bytes [first, last) that a request asks for; a range of another form than bytes=A-B or A- is not heard."""
    stated = _header(scope, b"range")
    match = None if stated is None else _RANGE.fullmatch(stated)
    if match is None:
        if stated is not None:
            raise _Answer(416, "give a single range, bytes=A-B", {"content-range": f"bytes */{size}"})
        return 0, size
    first, last = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    if first >= last:
        raise _Answer(416, f"there are {size} bytes", {"content-range": f"bytes */{size}"})
    return first, last


def _header(scope: Any, name: bytes) -> str | None:
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return values[0].decode("latin-1").strip() if values else None


async def _body(scope: Any, receive: Receive) -> bytes:
    length = _header(scope, b"content-length")
    if length is not None and (not length.isdigit() or int(length) > MAX_ENTRY):
        raise _Answer(413, f"an entry has at most {MAX_ENTRY} bytes", {"connection": "close"})
    data = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _Answer(400, "the request ended early")
        data += message.get("body", b"")
        if len(data) > MAX_ENTRY:
            raise _Answer(413, f"an entry has at most {MAX_ENTRY} bytes", {"connection": "close"})
        more = message.get("more_body", False)
    return bytes(data)


async def _stream(file: BinaryIO, first: int, last: int, send: Send) -> None:
    while first < last:
        part = await asyncio.to_thread(os.pread, file.fileno(), min(_PIECE, last - first), first)
        if not part:  # the file became shorter; the connection ends before the stated length
            raise ConnectionError("a served file was cut")
        first += len(part)
        await send({"type": "http.response.body", "body": part, "more_body": first < last})


async def _start(send: Send, status: int, kind: str, length: int, headers: dict[str, str]) -> None:
    stated = {"content-type": kind, "content-length": str(length), **headers}
    raw = [(name.encode("ascii"), value.encode("utf-8")) for name, value in stated.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
