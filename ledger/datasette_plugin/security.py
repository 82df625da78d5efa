"""Headers that keep a page from loading or sending anything elsewhere, and what a public server does not show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from ..exchange.replay_files import PREFIX
from ..keys import Signer
from .attached import attached_ledger
from .replay_app import ReplayApp

# Our pages have one style sheet, one icon and no script.
PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Datasette's own pages have inline scripts and styles, but nothing from elsewhere either.
_TABLE_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

# Below /-/ a public server has only what pages load; the rest tells of the machine (paths, versions, threads).
_PUBLIC_BELOW = ("/-/static/", "/-/static-plugins/")

PLUGIN = "bitwitness"

Application = Callable[[Any, Any, Any], Awaitable[None]]


def guard(datasette: Any) -> Callable[[Application], Application]:
    """The ASGI wrapper of one Datasette; changes nothing if that serves no ledger."""
    attached = attached_ledger(datasette)
    if attached is None:
        return lambda application: application
    replay = ReplayApp(attached.path, lambda: log_signer(datasette))
    public = bool((datasette.plugin_config(PLUGIN) or {}).get("public"))
    base = str(datasette.setting("base_url"))

    def wrap(application: Application) -> Application:
        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            path = scope["path"]
            below = "/" + path.removeprefix(base) if base != "/" else path
            if public and (below == "/-" or below.startswith("/-/")) and not below.startswith(_PUBLIC_BELOW):
                scope = {**scope, "path": f"{base}-/not-public", "raw_path": f"{base}-/not-public".encode()}

            async def send_guarded(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": _with_policy(message.get("headers", []))}
                await send(message)

            if below.startswith("/" + PREFIX):
                await replay(scope, receive, send_guarded, below[1:])
                return
            await application(scope, receive, send_guarded)

        return guarded

    return wrap


_SIGNERS: WeakKeyDictionary[Any, Signer] = WeakKeyDictionary()


def accept_audits(datasette: Any, log: Signer) -> None:
    """Let this Datasette take audits of enrolled auditors into its log. The key is no setting, which pages show."""
    _SIGNERS[datasette] = log


def log_signer(datasette: Any) -> Signer | None:
    """The log key with which this Datasette takes audits in, or None."""
    return _SIGNERS.get(datasette)


def _with_policy(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _value in headers}
    added = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin")]
    if b"content-security-policy" not in names:
        added.append((b"content-security-policy", _TABLE_POLICY.encode("ascii")))
    return [*headers, *added]
