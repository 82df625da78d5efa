"""Audit entries that others have signed, taken into a log: from a request, or from a file that was handed over.

Only `audit-intent`, `audit` and `recheck` entries of enrolled, unrevoked auditors get in, by the rules that every
append follows, and none of others waits for it. The signature is all that a sender needs to show; an entry that the log
has already is answered with its proof again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..entry import sealed
from ..entry.envelope import MAX_ENTRY
from ..entry.sealed import Sealed
from ..errors import BitwitnessError, EntryError
from ..files.regular_file import read_regular
from ..keys import Signer
from ..project import Project
from ..sqlite.admission import Admission, SignerNotEnrolled
from ..sqlite.ledger_file import LedgerFull
from ..sqlite.lock import LedgerLocked
from ..store import Ledger
from . import inbox
from .prove import prove

KINDS = ("audit-intent", "audit", "recheck")
MAX_OPEN_INTENTS = 64
"""How many intents without an audit one auditor may have here: each stands in the log for ever."""
MAX_RECHECKS = 8
"""How often one auditor may recheck one audit here."""
_PATIENCE = 5.0


class NotAccepted(BitwitnessError):
    """The log does not take this entry."""


class TooMany(NotAccepted):
    """The auditor has announced more audits than he has finished, or rechecked one often enough."""


@dataclass(frozen=True)
class Receipt:
    """Where an entry stands in the log, and the text of its proof (C2SP tlog-proof) to a signed checkpoint."""

    index: int
    kind: str
    proof: str
    new: bool


def read_submission(data: bytes) -> Sealed:
    """Open an entry that somebody sent. Raises EntryError, NotAccepted; the signature is not verified yet."""
    if len(data) > MAX_ENTRY:
        raise NotAccepted(f"{len(data)} bytes are more than the {MAX_ENTRY} of an entry")
    entry = sealed.read(data)
    if entry.kind.name not in KINDS:
        raise NotAccepted(f"only {', '.join(KINDS)} entries are taken, not {entry.kind.name}")
    return entry


def submit(project: Project, log: Signer, data: bytes, *, patience: float = _PATIENCE) -> Receipt:
    """Take an entry into the project's log, sign a checkpoint over it and prove it.

    Everything that needs no lock is checked before the ledger is opened for writing; another writer is waited for
    `patience` seconds. Raises EntryError, SignatureError, NotAccepted, LedgerLocked and what appending raises.
    """
    entry = read_submission(data)
    with project.open_ledger() as ledger:
        if (receipt := _receipt(ledger, entry)) is not None:
            return receipt
        _check_sender(ledger, entry)
    with _writing(project, patience) as ledger:
        found = ledger.find(entry.leaf_hash)
        index = found if found is not None else ledger.append([data])[0]
        note = ledger.sign_checkpoint(log)
        return Receipt(index, entry.kind.name, prove(ledger, index, note).format(), new=found is None)


def leave(project: Project, data: bytes) -> None:
    """Let an entry wait in the inbox for the run that is writing the ledger. Raises as `submit` does, and InboxFull."""
    entry = read_submission(data)
    with project.open_ledger() as ledger:
        _check_sender(ledger, entry)
    inbox.put(project.inbox_dir, entry.leaf_hash, entry.envelope.keyid, data)


def receipt_for(project: Project, data: bytes) -> Receipt | None:
    """The receipt of an entry that was left, None while it waits. Raises NotAccepted if it was refused meanwhile."""
    entry = read_submission(data)
    if (reason := inbox.refusal(project.inbox_dir, entry.leaf_hash, entry.envelope.keyid)) is not None:
        raise NotAccepted(reason)
    with project.open_ledger() as ledger:
        return _receipt(ledger, entry)


def take_waiting(project: Project, ledger: Ledger, log: Signer) -> int:
    """Append what waits in the inbox, and sign a checkpoint over it, so that its sender gets a proof; how many.

    For whoever holds the ledger for long, between two appends of its own. What the log does not take is set aside
    with the reason.
    """
    done = []
    inbox.expire(project.inbox_dir)
    for path in inbox.waiting(project.inbox_dir):
        try:
            data = read_regular(path, MAX_ENTRY + 1)
            entry = read_submission(data)
            if ledger.find(entry.leaf_hash) is None:
                _check_sender(ledger, entry)
                ledger.append([data])
            done.append(path)
        except LedgerFull:  # not the entry's fault: it waits on
            raise
        except (BitwitnessError, OSError) as error:
            inbox.refuse(path, str(error))
    if done:
        ledger.sign_checkpoint(log)
        for path in done:
            path.unlink(missing_ok=True)
    return len(done)


def _receipt(ledger: Ledger, entry: Sealed) -> Receipt | None:
    found = ledger.find(entry.leaf_hash)
    note = None if found is None else ledger.latest_checkpoint(at_least=found + 1)
    if found is None or note is None:
        return None
    return Receipt(found, entry.kind.name, prove(ledger, found, note).format(), new=False)


def _check_sender(ledger: Ledger, entry: Sealed) -> None:
    """An enrolled, unrevoked auditor signed it, and has not announced too much."""
    keyid = entry.envelope.keyid
    try:
        key = Admission(ledger.connection, ledger.node).signer(ledger.size, entry.kind, entry.envelope)
    except SignerNotEnrolled as error:
        raise NotAccepted(f"{error}; only auditors whose keys the log's owner has enrolled are heard") from None
    entry.envelope.verify(key)
    row = ledger.connection.execute("SELECT entry FROM keys WHERE keyid = ?", (keyid,)).fetchone()
    if entry.kind.name == "audit-intent":
        (waiting,) = ledger.connection.execute(
            "SELECT count(*) FROM audit_intents WHERE auditor = ? AND entry NOT IN (SELECT intent FROM audits)",
            (row[0],),
        ).fetchone()
        if waiting >= MAX_OPEN_INTENTS:
            raise TooMany(f"{waiting} intents of key {keyid[:16]}… have no audit yet; finish some of them first")
    if entry.kind.name == "recheck":
        (made,) = ledger.connection.execute(
            "SELECT count(*) FROM rechecks JOIN audits ON audits.entry = audit WHERE rechecks.auditor = ? AND hash = ?",
            (row[0], entry.envelope.statement["predicate"]["audit"]),
        ).fetchone()
        if made >= MAX_RECHECKS:
            raise TooMany(f"key {keyid[:16]}… has rechecked this audit {made} times")


def _writing(project: Project, patience: float) -> Ledger:
    end = time.monotonic() + patience
    while True:
        try:
            return project.open_ledger(writable=True)
        except LedgerLocked:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)


def split_file(data: bytes) -> list[bytes]:
    """The entries of a file that was handed over: one canonical JSON object a line. Raises EntryError."""
    lines = [line for line in data.split(b"\n") if line]
    if not lines:
        raise EntryError("the file holds no entry", "file")
    return lines
