"""Errors as pages of ours, and Datasette's error handler kept from failing by itself."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from .answers import Page
from .views import links_of, not_found, page_response


def quiet_rich() -> None:
    """Keep Datasette's error handler from printing with rich, which typer brings.

    Printing locals fails on an unknown deep address and turns its 404 into a 500 (measured on 0.65.5, 1.0a41).
    """
    import datasette.handle_exception

    datasette.handle_exception.rich = None


def answer(datasette: Any, request: Any, exception: Exception) -> Any:
    """Our page for an address that does not exist or fails; None leaves the answer to Datasette.

    Datasette keeps its JSON and CSV addresses and every status of its own (bad requests, forbidden, timeouts).
    """
    path = str(request.path)
    if path.endswith((".json", ".csv")) or path.startswith("/-/"):
        return None
    links = links_of(datasette)
    if links is None:
        return None
    status = getattr(exception, "status", 500)
    if status == 404:
        text = str(exception)
        return not_found(links, "There is no such page." if text in ("", "404") else text)
    if status == 500:
        traceback.print_exception(exception, file=sys.stderr)
        page = Page(
            "message.html", "Error", "", {"message": "This page failed; the server's log says why.", "detail": ""}, 500
        )
        return page_response(page, links, "")
    return None
