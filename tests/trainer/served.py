"""A trained project and what serves it: in this process, so that a test starts and ends it in a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from bitwitness.ledger import keys
from bitwitness.ledger.datasette_plugin.server import make_datasette
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.exchange.listen import address_of, listen
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project


@contextmanager
def serving(project: Project, *, accept: bool = True) -> Iterator[str]:
    """The address of `ledger serve` for a project, as others reach it."""
    listener = listen("127.0.0.1", 0)
    log = project.signer("log") if accept else None
    application = make_datasette(project.ledger_path, public=True, log=log).app()
    config = uvicorn.Config(application, log_level="warning", lifespan="on", access_log=False)
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def stranger(project: Project, folder: Path, *, enrolled: bool = True) -> Signer:
    """An auditor with a key of his own in `folder`, enrolled in the project's log; his trust.toml is the project's."""
    folder.mkdir(parents=True, exist_ok=True)
    signer = keys.generate("auditor")
    keys.save(signer, folder / "alice.pem", None)
    (folder / "trust.toml").write_bytes(project.trust_path.read_bytes())
    if enrolled:
        with project.open_ledger(writable=True) as ledger:
            ledger.append([enrolment(project.signer("root"), signer.public, "auditor", name="alice")])
            ledger.sign_checkpoint(project.signer("log"))
    return signer
