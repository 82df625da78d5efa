"""From a request to a response: open the ledger, read one moment of it in a thread, render what the page says."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from datasette import Response

from ..errors import BitwitnessError, FoundWrong
from ..store import Ledger
from .answers import Asked, File, Moved, NotHere, Page, View
from .attached import Attached, attached_ledger
from .html import render, style_version
from .links import Links
from .pages import ROUTES, tiles
from .security import PAGE_POLICY

ALL_ROUTES: tuple[tuple[str, View], ...] = (*ROUTES, *tiles.ROUTES)

_FOR_EVER = "public, max-age=31536000, immutable"
# Accept-Encoding: an item that names gzip, and no weight of nought after it (RFC 9110, 12.5.3).
_GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[0-9.]+\s*)?(?:,|$)", re.IGNORECASE)


def routes(datasette: Any) -> Sequence[tuple[str, Callable[..., Any]]]:
    """The routes for this Datasette; none if it serves no ledger."""
    attached = attached_ledger(datasette)
    if attached is None:
        return ()
    return [(pattern, _handler(attached, view)) for pattern, view in ALL_ROUTES]


def links_of(datasette: Any) -> Links | None:
    """The addresses of this Datasette's ledger pages; None if it serves no ledger."""
    attached = attached_ledger(datasette)
    return None if attached is None else _links(datasette, attached)


def page_response(page: Page, links: Links, origin: str, proven: int = 0, edited: int = 0) -> Any:
    """An HTML response that may load nothing but our style sheet and icon.

    Entries before `proven` are under a signed checkpoint, so that they have a proof to link to. `edited` is how many
    rows of the derived tables behind the page are not what the entries give.
    """
    frame = {"to": links, "title": page.title, "section": page.section, "log_origin": origin, "proven": proven}
    frame["edited"] = edited
    context = {**page.context, **frame}
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": PAGE_POLICY}
    return Response.html(render(page.template, context), status=page.status, headers=headers)


def not_found(links: Links, message: str, origin: str = "", edited: int = 0) -> Any:
    page = Page("message.html", "Not found", "", {"message": message, "detail": ""}, status=404)
    return page_response(page, links, origin, edited=edited)


def _handler(attached: Attached, view: View) -> Callable[..., Awaitable[Any]]:
    async def respond(request: Any, datasette: Any) -> Any:
        if request.method not in ("GET", "HEAD"):
            return Response.text("only GET and HEAD\n", status=405, headers={"Allow": "GET, HEAD"})
        links = _links(datasette, attached)
        query = {name: request.args.get(name) for name in request.args}
        address = f"{request.scheme}://{request.host}"
        packed = _GZIP.search(request.headers.get("accept-encoding", "")) is not None
        answer = await asyncio.to_thread(_answer, attached, view, links, request.url_vars, query, address, packed)
        return _unless_known(answer, request.headers.get("if-none-match", ""))

    return respond


def _answer(
    attached: Attached,
    view: View,
    links: Links,
    parts: dict[str, str],
    query: dict[str, str],
    address: str,
    packed: bool,
) -> Any:
    origin = ""
    try:
        # A connection for each page: opening takes a fraction of a millisecond, and none is shared by threads.
        with Ledger.open(attached.path) as ledger, ledger.snapshot():
            origin = ledger.origin
            asked = Asked(ledger, links, parts, query, address)
            try:
                answer = view(asked)
            except NotHere as missing:
                return not_found(links, missing.message, origin, asked.signed.edited)
            # Rendered inside, so that what a template asks for is of the same moment.
            if isinstance(answer, Page):
                return page_response(answer, links, origin, _proven(ledger), asked.signed.edited)
    except BitwitnessError as error:
        return page_response(_unreadable(error, attached), links, origin)
    if isinstance(answer, Moved):
        return Response.redirect(answer.location)
    return _file_response(answer, packed)


def _unreadable(error: BitwitnessError, attached: Attached) -> Page:
    """The page for a record that is wrong or cannot be read; where the file stands is nobody's business."""
    detail = str(error).replace(str(attached.path), attached.path.name)
    title = "Found wrong" if isinstance(error, FoundWrong) else "Not readable"
    return Page("message.html", title, "", {"message": "This record cannot be shown.", "detail": detail}, status=500)


def _proven(ledger: Ledger) -> int:
    row = ledger.connection.execute("SELECT size FROM checkpoints ORDER BY id DESC LIMIT 1").fetchone()
    return 0 if row is None else int(row[0])


def _file_response(file: File, packed: bool) -> Any:
    headers = {
        "Cache-Control": _FOR_EVER if file.immutable else "no-cache",
        "Content-Security-Policy": PAGE_POLICY,
    }
    data = file.data
    if file.name is not None:
        headers["Content-Disposition"] = f'attachment; filename="{file.name}"'
    if file.compress:
        headers["Vary"] = "Accept-Encoding"
        if packed:
            headers["Content-Encoding"] = "gzip"
            data = gzip.compress(data, compresslevel=1, mtime=0)
    headers["ETag"] = f'"{hashlib.sha256(data).hexdigest()[:32]}"'  # of what is sent: packed, it is another one
    return Response(body=data, status=200, headers=headers, content_type=file.content_type)


def _unless_known(response: Any, known: str) -> Any:
    """304 to who has these very bytes, as If-None-Match says: a log that does not grow is followed for nothing."""
    tag = response.headers.get("ETag")
    stated = {item.strip().removeprefix("W/") for item in known.split(",")}
    if response.status != 200 or tag is None or not stated & {tag, "*"}:
        return response
    kept = {name: value for name, value in response.headers.items() if name in ("Cache-Control", "ETag", "Vary")}
    return Response(body=b"", status=304, headers=kept)


def _links(datasette: Any, attached: Attached) -> Links:
    return Links(str(datasette.urls.path("/")), attached.route, style_version())
