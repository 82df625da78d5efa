"""A witness, C2SP tlog-witness: cosigns a log's checkpoint only if it extends the last one that it cosigned.

Its whole memory is one SQLite file with the newest cosigned checkpoint of each log. Comparing with it and replacing
it are one durable transaction, committed before the cosignature is given out.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import merkle, note
from ..checkpoint import Checkpoint, parse_checkpoint
from ..errors import BitwitnessError, FoundWrong, MalformedSignature, NoKnownSigner, NoteError, ProofError
from ..files import durable
from ..follow import fork
from ..keys import Signer
from ..note import Verifier
from ..sqlite import guard
from ..sqlite.ledger_file import read_only, refuse_strays
from ..sqlite.schema import split_statements
from .witness_request import AddCheckpoint, parse_request

MAX_FORKS = 100
"""So many of one log are kept: whoever signs more of them is known by then."""
TEXT = "text/plain; charset=utf-8"
SIZE = "text/x.tlog.size"
_APPLICATION_ID = 0x62697777  # "biww"
_VERSION = 1
_SCHEMA = """
CREATE TABLE cosigned (
    origin TEXT PRIMARY KEY,
    size INTEGER NOT NULL CHECK (size >= 0),
    root BLOB NOT NULL CHECK (length(root) = 32),
    note TEXT NOT NULL
) STRICT;
CREATE TRIGGER cosigned_grows BEFORE UPDATE ON cosigned WHEN NEW.size < OLD.size OR NEW.origin <> OLD.origin
BEGIN SELECT RAISE(ABORT, 'a witness never goes back'); END;
CREATE TRIGGER cosigned_stays BEFORE DELETE ON cosigned
BEGIN SELECT RAISE(ABORT, 'a witness never forgets'); END;
-- Signed checkpoints of a log that cannot both be of one append-only tree: evidence against its key.
CREATE TABLE forks (
    id INTEGER PRIMARY KEY,
    origin TEXT NOT NULL,
    cosigned TEXT NOT NULL,
    refused TEXT NOT NULL,
    UNIQUE (origin, cosigned, refused)
) STRICT;
"""


class WitnessStateError(BitwitnessError):
    """The witness's memory cannot be used. `path` names it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)


@dataclass(frozen=True)
class Answer:
    """What the witness says: an HTTP status, and its body. `alarm` is for its own people: the log was forked."""

    status: int
    body: str
    content_type: str = TEXT
    alarm: str | None = field(default=None, repr=False)


class Witness:
    """A witness for the logs whose keys it is given; safe for several threads and, by SQLite, several processes."""

    def __init__(
        self,
        name: str,
        signer: Signer,
        logs: Iterable[Verifier],
        state: Path | str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`name` is the key name of its cosignatures; each log's key has the log's origin as its name."""
        if signer.role != "witness":
            raise BitwitnessError(f"a witness signs with a witness key, not with a {signer.role} key")
        self.verifier = Verifier(name, signer.public, note.COSIGNATURE)
        self.origins: dict[str, list[Verifier]] = {}
        for log in logs:
            if log.type != note.ED25519:
                raise BitwitnessError(f"the key of log {log.name} is a cosigner's, not a log's")
            self.origins.setdefault(log.name, []).append(log)
        self._signer = signer
        self._clock = clock
        self._path = Path(state)
        self._lock = threading.Lock()
        self._connection = _open(self._path)

    def close(self) -> None:
        self._connection.close()

    def add_checkpoint(self, body: str | bytes) -> Answer:
        """Answer a request of C2SP tlog-witness; the body of status 200 is the cosignature line.

        400 malformed, 403 no trusted signature, 404 unknown log, 409 not the size cosigned last (the body says it)
        or another root for that size, 422 the proof does not verify.
        """
        try:
            request = parse_request(body)
            checkpoint = parse_checkpoint(_text(request.checkpoint_note))
        except NoteError as error:
            return Answer(400, f"{error}\n")
        verifiers = self.origins.get(checkpoint.origin)
        if verifiers is None:
            return Answer(404, "unknown log\n")
        try:
            opened = note.open_note(request.checkpoint_note, verifiers)
        except NoKnownSigner:
            return Answer(403, "no signature by a known key of this log\n")
        except FoundWrong:
            return Answer(403, "invalid signature\n")
        if request.old > checkpoint.size:
            return Answer(400, f"the old size {request.old} is above the checkpoint's {checkpoint.size}\n")
        # Only what the log's key signed is kept: other lines are not authenticated.
        signed = note.Note(opened.text, tuple(item.line for item in opened.verified)).format()
        with self._transaction() as execute:
            answer, last = self._compare_and_set(execute, request, checkpoint, signed)
        return answer if last is None else replace(answer, alarm=self._convict(checkpoint, last, signed))

    def newest(self, origin: str) -> tuple[int, bytes] | None:
        """Size and root of the newest cosigned checkpoint of a log."""
        with self._lock:
            row = self._connection.execute("SELECT size, root FROM cosigned WHERE origin = ?", (origin,)).fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def forks(self) -> list[tuple[str, str, str]]:
        """Pairs of signed notes that prove a log forked: (origin, the cosigned one, the refused one)."""
        with self._lock:
            return self._connection.execute("SELECT origin, cosigned, refused FROM forks ORDER BY id").fetchall()

    def _convict(self, checkpoint: Checkpoint, last: str, signed: str) -> str:
        """Write the evidence of a fork, which `ledger verify` checks, beside the memory; says so in one line."""
        evidence = fork.two_roots(last, signed)
        folder = self._path.with_name(f"{self._path.name}.forks")
        path = folder / f"{hashlib.sha256(evidence).hexdigest()[:16]}.fork.json"
        try:
            folder.mkdir(exist_ok=True)
            if not path.exists() and len(os.listdir(folder)) < MAX_FORKS:
                durable.replace(path, evidence + b"\n")
            where = path if path.exists() else folder
        except OSError:
            where = self._path  # the table `forks`
        return f"FORK: {checkpoint.origin} signed two roots for {checkpoint.size} entries; evidence in {where}"

    def _compare_and_set(
        self, execute: Callable[..., sqlite3.Cursor], request: AddCheckpoint, checkpoint: Checkpoint, signed: str
    ) -> tuple[Answer, str | None]:
        """The answer; with it, where the log was forked, the note that was cosigned before."""
        row = execute("SELECT size, root, note FROM cosigned WHERE origin = ?", (checkpoint.origin,)).fetchone()
        size, root, last = (0, merkle.EMPTY_ROOT, None) if row is None else (int(row[0]), bytes(row[1]), str(row[2]))
        if last is not None and size == checkpoint.size and root != checkpoint.root:
            execute(
                "INSERT OR IGNORE INTO forks (origin, cosigned, refused) SELECT ?1, ?2, ?3"
                " WHERE (SELECT count(*) FROM forks WHERE origin = ?1) < ?4",
                (checkpoint.origin, last, signed, MAX_FORKS),
            )
            return Answer(409, f"{size}\n", SIZE), last
        if request.old != size:
            return Answer(409, f"{size}\n", SIZE), None
        try:
            merkle.verify_extension(size, checkpoint.size, root, checkpoint.root, request.proof)
        except ProofError:
            return Answer(422, "the consistency proof does not verify\n"), None
        line = note.cosignature_line(checkpoint.format(), self.verifier.name, self._signer, int(self._clock()))
        execute(
            "INSERT INTO cosigned (origin, size, root, note) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (origin) DO UPDATE SET size = excluded.size, root = excluded.root, note = excluded.note",
            (checkpoint.origin, checkpoint.size, checkpoint.root, signed),
        )
        return Answer(200, line.format()), None

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """All or nothing, and on the disk when it ends; others wait."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise WitnessStateError(self._path, guard.reason(error, self._path)) from None
                raise


def _text(signed: str) -> str:
    """A note's text. That of one with a malformed signature, too: such a one is refused as a wrong one is."""
    try:
        return note.parse_note(signed).text
    except MalformedSignature:
        return signed.rpartition("\n\n")[0] + "\n"


def _check_identity(connection: sqlite3.Connection, path: Path) -> None:
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    if found != [_APPLICATION_ID, _VERSION]:
        raise WitnessStateError(path, "not the memory of a witness of this version")


def _open(path: Path) -> sqlite3.Connection:
    refuse_strays(path, new=not path.exists())
    with suppress(sqlite3.Error), closing(read_only(path)) as reader:
        # A connection that can write moves what lies in the write-ahead log into the file, at the latest when it is
        # closed. The log may be of another database.
        if reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            _check_identity(reader, path)
    return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
    except sqlite3.Error as error:
        raise WitnessStateError(path, guard.reason(error, path)) from None
    try:
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            _check_identity(connection, path)  # before anything of another program's file is changed
        else:
            connection.execute("PRAGMA journal_mode = MEMORY")  # so that no journal of ours is ever left
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
            for statement in split_statements(_SCHEMA):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
        _check_identity(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise WitnessStateError(path, guard.reason(error, path)) from None
    except BaseException:
        connection.close()
        raise
    return connection
