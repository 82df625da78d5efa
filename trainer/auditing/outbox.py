"""The file in which audits of a log elsewhere are handed over, where nobody takes entries over the network.

It is written whole, and never in place of entries that still have to reach the log: an intent that waits stays the one
that is drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bitwitness.ledger.entry.envelope import MAX_ENTRY
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.submissions import read_submission, split_file
from bitwitness.ledger.files.durable import write_whole
from bitwitness.ledger.files.user_files import read_file
from bitwitness.ledger.store import Ledger

from .venue import WaitsForLog

_LIMIT = 1024 * (MAX_ENTRY + 1)


class Outbox:
    """What one command hands over in `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[bytes] = []
        self._done: list[Callable[[], None]] = []
        self._gathering = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Gather what is handed over inside, and write it at the end: all of it, or nothing where it was stopped."""
        self._gathering = True
        try:
            yield
        except WaitsForLog:
            self._write()
            raise
        finally:
            self._gathering = False
        self._write()

    def check(self, ledger: Ledger) -> None:
        """Raise BitwitnessError where the file holds results that `ledger`, the log, does not have yet."""
        if any(read_submission(entry).kind.name != "audit-intent" for entry in self._waiting(ledger)):
            raise self._holds_others()

    def announce(self, ledger: Ledger, intent: bytes, *, drawn: bool) -> None:
        """Hand an intent over. Raises WaitsForLog where it must be in the log before the audit goes on.

        An intent from which nothing is drawn is written with its result.
        """
        self.check(ledger)
        waiting = self._waiting(ledger)
        if drawn and waiting:
            raise WaitsForLog(self._path)
        if waiting:
            raise self._holds_others()
        self._entries.append(intent)
        if drawn:
            self._hand_over()
            raise WaitsForLog(self._path)

    def conclude(self, ledger: Ledger, entry: bytes, done: Callable[[], None]) -> None:
        """Hand a result over; `done` is called once it is in the file."""
        if self._waiting(ledger):
            raise self._holds_others()
        self._entries.append(entry)
        self._done.append(done)
        self._hand_over()

    def _waiting(self, ledger: Ledger) -> list[bytes]:
        """What the file holds and the log does not."""
        if not self._path.exists():
            return []
        entries = split_file(read_file(self._path, _LIMIT))
        return [entry for entry in entries if ledger.find(read_submission(entry).leaf_hash) is None]

    def _holds_others(self) -> BitwitnessError:
        return BitwitnessError(
            f"{self._path} holds an audit that the log does not have yet; append it there or give another --out"
        )

    def _hand_over(self) -> None:
        if not self._gathering:
            self._write()

    def _write(self) -> None:
        if self._entries:
            write_whole(self._path, b"".join(entry + b"\n" for entry in self._entries))
        for done in self._done:
            done()
        self._entries, self._done = [], []
