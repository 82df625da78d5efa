"""The Datasette plugin: pages for the ledgers that a Datasette serves, and nothing for other databases.

Pages stand beside Datasette's own, which show the raw tables. Only hooks that Datasette 0.65 and 1.0 both have
are used, and Datasette itself is imported by the modules that need it, since that takes over a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker

if TYPE_CHECKING:
    from ..project import Project

hookimpl = HookimplMarker("datasette")


def serve(
    project: Project,
    host: str,
    port: int,
    *,
    open_browser: bool = False,
    public: bool = False,
    accept: bool = False,
) -> None:
    """Serve a project's ledger until interrupted (`ledger serve`); port 0 takes a free one.

    `public`, which any host but a loopback address implies, turns off SQL, downloads of the file and Datasette's
    own information pages. `accept` takes in what enrolled auditors send, and signs with the log key. Prints the
    address. Raises BitwitnessError, also where the port is taken.
    """
    from .server import run_server

    run_server(project, host, port, open_browser=open_browser, public=public, accept=accept)


@hookimpl
def register_routes(datasette: Any) -> Sequence[tuple[str, Callable[..., Any]]]:
    from .views import routes

    return routes(datasette)


@hookimpl
def startup(datasette: Any) -> None:
    from .errors_page import quiet_rich

    quiet_rich()


@hookimpl
def asgi_wrapper(datasette: Any) -> Callable[[Any], Any]:
    from .security import guard

    return guard(datasette)


@hookimpl(tryfirst=True)
def handle_exception(datasette: Any, request: Any, exception: Exception) -> Any:
    from .errors_page import answer

    return answer(datasette, request, exception)


@hookimpl
def menu_links(datasette: Any) -> list[dict[str, str]]:
    from .views import links_of

    links = links_of(datasette)
    return [] if links is None else [{"href": links.home, "label": "Ledger"}]


@hookimpl
def render_cell(value: Any, column: str, table: str | None, database: str, datasette: Any) -> Any:
    from .cells import cell

    return cell(datasette, database, table, column, value)
