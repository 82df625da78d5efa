"""`ledger serve`: Datasette over the live ledger file, read-only and mutable (it sees what a writer appends)."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from datasette.app import Datasette

from ..exchange.listen import address_of, is_loopback, listen
from ..exchange.prompt_heads import PromptHeads
from ..store import Ledger
from .metadata import metadata
from .security import PLUGIN, accept_audits

if TYPE_CHECKING:
    from ..keys import Signer
    from ..project import Project


def run_server(
    project: Project, host: str, port: int, *, open_browser: bool, public: bool, accept: bool = False
) -> None:
    """See bitwitness.ledger.datasette_plugin.serve."""
    # The ledger is opened once before anything listens, so that a missing or damaged one is reported in one line.
    with Ledger.open(project.ledger_path):
        pass
    log = project.signer("log") if accept else None
    listener = listen(host, port)
    address = address_of(listener)
    application = make_datasette(project.ledger_path, public=public or not is_loopback(host), log=log).app()
    config = uvicorn.Config(
        application, http=PromptHeads, log_level="warning", lifespan="on", server_header=False, access_log=False
    )
    config.timeout_graceful_shutdown = 2
    print(address, flush=True)
    print("Ctrl-C stops it", file=sys.stderr, flush=True)
    if open_browser:
        webbrowser.open(address)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def make_datasette(ledger: Path, *, public: bool, log: Signer | None = None) -> Any:
    """A Datasette for one ledger file; with the log's key it takes audits of enrolled auditors in.

    Suggested facets scan whole tables (a page of 200,000 rows takes 1.1 s with them, 37 ms without). `immutable`
    would return wrong rows while the file is written.
    """
    settings: dict[str, Any] = {
        "suggest_facets": False,
        "default_allow_sql": not public,
        "allow_download": False,
        "allow_csv_stream": not public,
        "default_cache_ttl": 0,
        "default_page_size": 50,
        "truncate_cells_html": 160,
        # Our pages have threads of their own; table pages run few queries at a time.
        "num_sql_threads": 3,
    }
    stated = metadata(ledger.stem)
    stated["plugins"] = {PLUGIN: {"public": public}}
    datasette = Datasette([str(ledger)], metadata=stated, settings=settings)
    if log is not None:
        accept_audits(datasette, log)
    return datasette
