"""Where a log is read, and where an audit takes place: the log that its entries go to, and what its replay reads.

A replay needs a place (a trace is all that it makes); an audit a venue, which also takes entries. The audit itself is
one code path (audit.py). It reads a ledger file here, which is the project's own or a mirror of
somebody else's log, and hands two signed entries over: the intent, which must be in the log before the sample is
known, and the result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from bitwitness.ledger import merkle
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from ..history import LedgerNotVerified
from ..material import LocalMaterial, Material


class WaitsForLog(BitwitnessError):
    """Intents are in a file, and the audit goes on once the log holds them. `path` is the file's."""

    def __init__(self, path: Path, intents: int = 1) -> None:
        waits, them = ("the intent is", "it") if intents == 1 else (f"the intents of {intents} runs are", "them")
        super().__init__(
            f"{waits} in {path}: the log's owner appends {them} with `ledger append {path.name}`; once his log"
            f" shows {them}, give the same command again"
        )
        self.path = path


class Place(Protocol):
    """A log, and what replays of its runs read."""

    project: Project
    """Its ledger file, policy and folders; a mirror's have no keys."""
    material: Material

    def open(self) -> Ledger:
        """The ledger file, as new as the log is."""


class Venue(Place, Protocol):
    """A log that one audit deals with, for as long as it lasts."""

    auditor: Signer
    work: Path
    """Where audits that are not finished keep what they have (audit_work.py, replay_work.py)."""

    def announce(self, ledger: Ledger, entry: bytes, *, drawn: bool) -> int | None:
        """Get the intent into the log, so that `ledger` holds it; return its index.

        Where nothing is drawn from it (`drawn` is false), it may also go to the log together with the result: None.
        """

    def refresh(self, ledger: Ledger) -> None:
        """Let `ledger` hold what the log holds now."""

    def conclude(self, ledger: Ledger, entry: bytes, leaves: list[bytes], done: Callable[[], None]) -> int | None:
        """Hand the result over, then call `done`. `leaves` are those of the ledger, just verified.

        Returns its index, or None where it waits in a file for the log's owner.
        """

    def together(self) -> AbstractContextManager[None]:
        """What is handed over in a file inside it is gathered, and written once, at the end; `done` is called then."""

    def checkpoint(self, ledger: Ledger) -> str:
        """A signed checkpoint that covers what was announced."""


class LocalPlace:
    """A project of one's own, read as it is."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.material: Material = LocalMaterial(project)

    def open(self) -> Ledger:
        return self.project.open_ledger()


class LocalVenue(LocalPlace):
    """The same, written: entries are appended, checkpoints signed with its log key."""

    def __init__(self, project: Project, auditor: Signer | None = None) -> None:
        super().__init__(project)
        self.work = project.root / "audits"
        self.auditor = auditor or project.signer("auditor")
        self._log = project.signer("log")

    def open(self) -> Ledger:
        return self.project.open_ledger(writable=True)

    def announce(self, ledger: Ledger, entry: bytes, *, drawn: bool) -> int | None:
        return ledger.append([entry])[0]

    def refresh(self, ledger: Ledger) -> None:
        """It is the log."""

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def conclude(self, ledger: Ledger, entry: bytes, leaves: list[bytes], done: Callable[[], None]) -> int | None:
        """The checkpoint that follows signs the tree over just these entries. Raises LedgerNotVerified."""
        index = ledger.append([entry])[0]
        if ledger.root() != merkle.root([*leaves, merkle.leaf_hash(entry)]):
            raise LedgerNotVerified(f"{ledger.path} was changed during the audit; its tree is not signed")
        ledger.sign_checkpoint(self._log)
        done()
        return index

    def checkpoint(self, ledger: Ledger) -> str:
        return ledger.sign_checkpoint(self._log)
