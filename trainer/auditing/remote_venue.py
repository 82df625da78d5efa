"""Somebody else's log: mirrored, and audited by entries that are sent to his server or written for him to append.

Only the pinned keys of a trust.toml are needed to begin with. The mirror stays, so that a log that goes back, forks or
rewrites an entry is found by the next audit, too.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bitwitness.ledger import jcs, merkle, tlog_proof
from bitwitness.ledger.errors import BitwitnessError, NoteError
from bitwitness.ledger.exchange.replay_files import ENTRIES
from bitwitness.ledger.follow.mirror import Kept, Mirror
from bitwitness.ledger.follow.remote import Remote, RemoteError
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.note import MAX_NOTE
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import load_trust

from ..history import LedgerNotVerified
from ..material import Material
from .outbox import Outbox
from .remote_material import RemoteMaterial
from .venue import WaitsForLog

_PATIENCE, _WAIT, _LONGEST_WAIT = 600.0, 1.0, 30.0
"""Seconds for which a log that is being written is asked again, and between two times, at first and at last."""


class NotSent(BitwitnessError):
    """The other side did not take an entry."""


def work_folder(policy: Path) -> Path:
    """Where audits of the log that a policy pins keep their mirror and what they fetched: by its name and both keys."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bitwitness" / hashlib.sha256(jcs.encode(load_trust(policy).pins)).hexdigest()[:32]


class RemotePlace:
    """The log at `remote`, mirrored into `folder`, and what it publishes for replays. No key is needed to read."""

    def __init__(self, remote: Remote, folder: Path, policy: Path | None) -> None:
        """Raises BitwitnessError where the log cannot be reached or is not what was seen of it before."""
        self._remote, self._mirror = remote, Mirror(folder, policy)
        self.project = self._mirror.project
        self.material: Material = RemoteMaterial(remote, self.project)
        self.unserved: tuple[Kept, ...] = ()
        """What the log signed before, over entries that it does not show now."""

    def open(self) -> Ledger:
        self._update()
        return self.project.open_ledger()

    def _update(self) -> None:
        self.unserved = self._mirror.update(self._remote).unserved


class RemoteVenue(RemotePlace):
    """The same, to audit in. With `out` entries go into that file instead of to the server."""

    def __init__(
        self, remote: Remote, folder: Path, policy: Path | None, auditor: Signer, *, out: Path | None = None
    ) -> None:
        super().__init__(remote, folder, policy)
        self.auditor, self.work = auditor, folder / "audits"
        self._outbox = None if out is None else Outbox(out)

    def open(self) -> Ledger:
        ledger = super().open()
        if self._outbox is not None:
            self._outbox.check(ledger)
        return ledger

    @contextmanager
    def together(self) -> Iterator[None]:
        if self._outbox is None:
            yield
            return
        with self._outbox.together():
            yield

    def announce(self, ledger: Ledger, entry: bytes, *, drawn: bool) -> int | None:
        """Raises NotSent, WaitsForLog, and FoundWrong where the server's proof does not hold."""
        if self._outbox is not None:
            self._outbox.announce(ledger, entry, drawn=drawn)
            return None
        self._send(entry)
        self.refresh(ledger)
        index = ledger.find(merkle.leaf_hash(entry))
        if index is None:
            raise LedgerNotVerified(f"{self._remote.url} proved the intent to be in its log, and its tiles lack it")
        return index

    def refresh(self, ledger: Ledger) -> None:
        self._update()

    def conclude(self, ledger: Ledger, entry: bytes, leaves: list[bytes], done: Callable[[], None]) -> int | None:
        if self._outbox is not None:
            self._outbox.conclude(ledger, entry, done)
            return None
        index = self._send(entry)
        self.refresh(ledger)
        done()
        return index

    def checkpoint(self, ledger: Ledger) -> str:
        note = ledger.latest_checkpoint()
        if note is None:
            raise BitwitnessError(f"{self._remote.url} has signed no checkpoint")
        return note

    def _send(self, entry: bytes) -> int:
        """Post an entry; believe that it is in the log for its proof to a checkpoint of the pinned key alone."""
        end, wait = time.monotonic() + _PATIENCE, _WAIT
        while True:
            status, _kind, data = self._remote.send(ENTRIES, entry, "application/json", tlog_proof.MAX_PROOF + MAX_NOTE)
            text = data.decode("utf-8", "replace")
            if status != 503 or time.monotonic() + wait > end:
                break
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        if status not in (200, 201):
            told = " ".join(text.split())[:300]
            printable = "".join(char if char.isprintable() else "?" for char in told)
            kept = (
                "; the intent is kept: once that is mended, the same command goes on with it" if status == 403 else ""
            )
            raise NotSent(f"{self._remote.url} does not take the entry ({status}): {printable}{kept}")
        try:
            proof = tlog_proof.parse(text)
        except NoteError as error:
            raise NotSent(f"{self._remote.url} took the entry, it says, and proves nothing ({error})") from None
        self._mirror.verify_proof(proof, merkle.leaf_hash(entry))
        return proof.index


__all__ = ["NotSent", "RemoteError", "RemotePlace", "RemoteVenue", "WaitsForLog", "work_folder"]
