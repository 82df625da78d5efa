"""The ledger: an append-only list of signed entries, its Merkle tree and its checkpoints, in one SQLite file.

One writer holds an operating-system lock; readers never wait (write-ahead log) and see only whole appends. An
append is one durable transaction (synchronous=FULL) of entries with the inner nodes that they complete, and of derived
rows, which may come later where steps are appended singly (derived.py). Roots and proofs of every size are made from
stored nodes in O(log n).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from . import merkle
from .checkpoint import Checkpoint, parse_checkpoint
from .entry import sealed
from .entry.sealed import Sealed
from .errors import BitwitnessError, NoteError
from .keys import Signer
from .note import Note, parse_note, signature_line
from .sqlite import derived, derived_schema, log_keys, log_memory, nodes, schema
from .sqlite.admission import Admission
from .sqlite.append_rows import AppendRows
from .sqlite.derived import Derivation
from .sqlite.ledger_file import (
    LedgerDamaged,
    LedgerFull,
    LedgerNotFound,
    NotALedger,
    check_header,
    check_identity,
    connect,
    create_whole,
    refuse_strays,
    reporting,
    set_durable,
    unmerged,
)
from .sqlite.lock import WriterLock
from .sqlite.run_tail import RunTail
from .sqlite.tail_check import TailCheck

__all__ = ["Ledger", "LedgerDamaged", "LedgerFull", "LedgerNotFound", "NoSuchEntry", "NotALedger"]

_HASH_PREFIX = re.compile("[0-9a-f]{8,64}")


# (idx, leaf_hash) of the entries whose leaf hash begins and lies between the given ends: full blocks by their index,
# the newest entries one by one.
_PLACES = f"""
    SELECT idx, leaf_hash FROM (
        SELECT idx, leaf_hash FROM leaf_places JOIN entries ON idx = entry WHERE prefix BETWEEN ?1 AND ?2
        UNION ALL
        SELECT idx, leaf_hash FROM entries WHERE idx >= (SELECT (max(idx) + 1) / {derived_schema.LEAF_BLOCK}
            * {derived_schema.LEAF_BLOCK} FROM entries)
    ) WHERE leaf_hash BETWEEN ?3 AND ?4
"""


_RUN_ENTRIES = """
    SELECT idx, payload, signature, leaf_hash FROM log JOIN entries ON idx = log.entry
    WHERE run = ? AND seq IS NOT NULL ORDER BY seq
"""
# Those that the derived tables do not have yet.
_RUN_TAIL = """
    SELECT idx, payload, signature, leaf_hash FROM entries
    WHERE idx >= ? AND json_extract(payload, '$.predicate.run') = ?
    AND json_extract(payload, '$.predicate.seq') IS NOT NULL ORDER BY idx
"""


class NoSuchEntry(BitwitnessError):
    """The ledger has no such entry or run; `wanted` is what was asked for."""

    def __init__(self, wanted: object, size: int) -> None:
        super().__init__(f"the ledger has {size} entries and none that is {wanted}")
        self.wanted = wanted
        self.size = size


class Ledger:
    """An open ledger file. Use as a context manager, or call close()."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: WriterLock | None) -> None:
        """Use create() or open()."""
        self.path = path
        self._connection = connection
        self._lock = lock
        self._tree: merkle.Frontier | None = None
        self._own = 0  # the first entry that this process appended itself
        self._derivation = Derivation(connection)
        self._admission = Admission(connection, self.node)
        with self._reporting():
            self.origin = str(connection.execute("SELECT origin FROM ledger").fetchone()[0])

    @classmethod
    def create(cls, path: Path | str, origin: str) -> Ledger:
        """Make an empty ledger file and open it for writing. Raises BitwitnessError if the file exists."""
        path = Path(path)
        lock = WriterLock(path)
        try:
            if path.exists():
                raise BitwitnessError(f"{path} exists; a ledger is never overwritten")
            refuse_strays(path, new=True)
            with reporting(path):
                create_whole(path, origin)
                connection = connect(path, writable=True)
            try:
                set_durable(connection)
                ledger = cls(path, connection, lock)
                ledger._tree = merkle.Frontier()
                return ledger
            except BaseException:
                connection.close()
                raise
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path | str, *, writable: bool = False) -> Ledger:
        """Open a ledger file. With `writable`, take the writer's lock and check the end of the tree.

        Raises LedgerNotFound, NotALedger, LedgerDamaged, LedgerLocked.
        """
        return cls._open(Path(path), writable=writable)

    @staticmethod
    def check_file(path: Path | str) -> None:
        """Whether a file is a ledger at all. Raises LedgerNotFound, NotALedger, LedgerDamaged."""
        path = Path(path)
        check_header(path)
        with reporting(path):
            connection = connect(path, writable=False)
            try:
                check_identity(path, connection)
            finally:
                connection.close()

    @classmethod
    def _open(cls, path: Path, *, writable: bool, derived_too: bool = True) -> Ledger:
        check_header(path)
        lock = WriterLock(path) if writable else None
        connection: sqlite3.Connection | None = None
        held = ExitStack()
        try:
            with reporting(path):
                if writable:
                    held.enter_context(unmerged(path))
                connection = connect(path, writable=writable)
                check_identity(path, connection, views_too=derived_too)
                if writable:
                    set_durable(connection)
            ledger = cls(path, connection, lock)
            if writable:
                ledger._start_writing()
                if derived_too:
                    ledger._check_derived()
            return ledger
        except BaseException:
            if connection is not None:
                connection.close()
            if lock is not None:
                lock.release()
            raise
        finally:
            held.close()

    def close(self) -> None:
        """Write the derived rows that wait, close the file and give the writer's lock up."""
        try:
            self._settle()
        finally:
            self._release()

    def _release(self) -> None:
        self._connection.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # what waits is written by the next writer
            self._release()

    @property
    def connection(self) -> sqlite3.Connection:
        """For queries on derived tables, which tell of every entry where this process is the writer; a reader beside
        another may find the newest steps missing (derived.py). Writing through it is refused by triggers, or found by
        fsck.
        """
        self._settle()
        return self._connection

    @property
    def writable(self) -> bool:
        return self._lock is not None

    # Reading ----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of entries now."""
        if self._tree is not None:
            return self._tree.size
        with self._reporting():
            return _size(self._connection)

    def root(self, size: int | None = None) -> bytes:
        """The Merkle root of the first `size` entries (of all)."""
        if size is None:
            size = self.size
        self._check_size(size)
        with self._reporting():
            return merkle.root_from_nodes(size, self.node)

    def node(self, level: int, index: int) -> bytes:
        """The hash of the perfect subtree over entries [index << level, (index + 1) << level)."""
        if level == 0:
            row = self._connection.execute("SELECT leaf_hash FROM entries WHERE idx = ?", (index,)).fetchone()
        else:
            row = self._connection.execute(nodes.NODE, (level, index)).fetchone()
        if row is None or len(row[0]) != merkle.HASH_SIZE:
            raise LedgerDamaged(self.path, f"the tree node at level {level}, index {index} is missing")
        return bytes(row[0])

    def entry(self, index: int) -> bytes:
        """The signed bytes of entry `index`. Raises NoSuchEntry."""
        for _index, data in self.entries(index, index + 1):
            return data
        raise NoSuchEntry(f"number {index}", self.size)

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
        """(index, signed bytes) of the entries from `start` to before `stop` (to the end)."""
        query = "SELECT idx, payload, signature, leaf_hash FROM entries WHERE idx >= ? AND idx < ? ORDER BY idx"
        return self._read(query, (start, merkle.MAX_SIZE if stop is None else stop))

    def run_entries(self, run: str) -> Iterator[tuple[int, bytes]]:
        """(index, signed bytes) of a run's chain, in order of `seq`. `run` is the genesis leaf hash in hex."""
        return self._run_entries(run, self._genesis(run))

    def _run_entries(self, run: str, genesis: int) -> Iterator[tuple[int, bytes]]:
        with self._reporting():
            tail = derived.derived_size(self._connection)
        for index, data in self._read(_RUN_ENTRIES, (genesis,)):
            tail = max(tail, index + 1)
            yield index, data
        yield from self._read(_RUN_TAIL, (tail, run))

    def leaf_hash(self, index: int) -> bytes:
        """The stored leaf hash of entry `index`. Raises NoSuchEntry."""
        if not 0 <= index < self.size:
            raise NoSuchEntry(f"number {index}", self.size)
        with self._reporting():
            return self.node(0, index)

    def find(self, leaf_hash: bytes) -> int | None:
        """The index of the entry with this leaf hash."""
        with self._reporting():
            row = self._connection.execute(_PLACES, (leaf_hash[:8], leaf_hash[:8], leaf_hash, leaf_hash)).fetchone()
        return None if row is None else int(row[0])

    def find_prefix(self, prefix: str) -> list[int]:
        """The indexes of entries whose leaf hash in hex begins with `prefix` (at least 8 digits), in order."""
        low = bytes.fromhex(prefix[:16].ljust(16, "0"))
        high = bytes.fromhex(prefix[:16].ljust(16, "f"))
        with self._reporting():
            rows = self._connection.execute(f"{_PLACES} ORDER BY idx", (low, high, low, high + b"\xff" * 24)).fetchall()
        return [int(index) for index, leaf in rows if leaf.hex().startswith(prefix)]

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """The inclusion proof of entry `index` in the tree of `size` (now). Raises NoSuchEntry, ProofError."""
        if size is None:
            size = self.size
        self._check_size(size)
        with self._reporting():
            return merkle.inclusion_proof_from_nodes(index, size, self.node)

    def consistency_proof(self, size1: int, size2: int | None = None) -> list[bytes]:
        """The consistency proof from `size1` to `size2` (now). Raises NoSuchEntry, ProofError."""
        if size2 is None:
            size2 = self.size
        self._check_size(size2)
        with self._reporting():
            return merkle.consistency_proof_from_nodes(size1, size2, self.node)

    def latest_checkpoint(self, at_least: int = 0) -> str | None:
        """The newest stored checkpoint note, if it covers at least that many entries."""
        query = "SELECT size, note FROM checkpoints ORDER BY id DESC LIMIT 1"
        with self._reporting():
            row = self._connection.execute(query).fetchone()
        if row is None or row[0] < at_least:
            return None
        try:
            parse_checkpoint(parse_note(row[1]).text)
        except NoteError as error:
            raise LedgerDamaged(
                self.path, f"its newest checkpoint cannot be read ({error}); run `ledger fsck`"
            ) from None
        return str(row[1])

    def newest_checkpoints(self, limit: int) -> list[tuple[int, str]]:
        """(size, note) of the newest stored checkpoints, newest first, at most `limit`."""
        query = "SELECT size, note FROM checkpoints ORDER BY id DESC LIMIT ?"
        with self._reporting():
            return [(int(size), str(note)) for size, note in self._connection.execute(query, (limit,))]

    def checkpoints_over(self, index: int) -> list[str]:
        """The notes of all stored checkpoints that cover the entry at `index`, in the order in which they came."""
        query = "SELECT note FROM checkpoints WHERE size > ? ORDER BY id"
        with self._reporting():
            return [str(note) for (note,) in self._connection.execute(query, (index,))]

    def run_tail(self, run: str) -> RunTail:
        """The end of a run's chain, to be continued. `run` is the genesis leaf hash in hex. O(run's entries)."""
        self._genesis(run)
        with self._reporting():
            return self._admission.tail(run)

    def find_run(self, text: str) -> str | None:
        """The identity (hex leaf hash) of the run with this name, or with a hash that begins so (8 or more digits).

        Raises BitwitnessError if several runs' hashes begin so.
        """
        with self._reporting():
            row = self._connection.execute("SELECT hash FROM runs WHERE name = ?", (text,)).fetchone()
            if row is None and _HASH_PREFIX.fullmatch(text):
                query = "SELECT hash FROM runs WHERE hash >= ? AND hash <= ? LIMIT 2"
                rows = self._connection.execute(query, (text, text.ljust(64, "f"))).fetchall()
                if len(rows) > 1:
                    raise BitwitnessError(f"several runs begin with {text}; give more digits")
                row = rows[0] if rows else None
        return None if row is None else str(row[0])

    def releases(self, run: str) -> list[dict[str, Any]]:
        """The rows of table `releases` that belong to a run, oldest first. `run` is the genesis leaf hash in hex."""
        return self._rows("SELECT * FROM releases WHERE run = ? ORDER BY entry", (self._genesis(run),))

    def _rows(self, query: str, parameters: tuple[Any, ...]) -> list[dict[str, Any]]:
        with self._reporting():
            cursor = self._connection.execute(query, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def run_has_ended(self, run: str) -> bool:
        """Whether the run's chain holds its `end`. `run` is the genesis leaf hash in hex."""
        query = "SELECT 1 FROM run_events WHERE run = ? AND kind = 'end'"
        with self._reporting():
            return self._connection.execute(query, (self._genesis(run),)).fetchone() is not None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside sees one moment of the ledger."""
        if self._connection.in_transaction:
            yield
            return
        self._settle()
        with self._reporting():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("COMMIT")

    # Writing ----------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[bytes | Sealed]) -> range:
        """Add signed entries, all or none, durably; return their indexes.

        Every entry is checked: its form, its kind, that an enrolled and unrevoked key of the right role signed
        it, its place in its run's chain, and that nothing in the ledger contradicts it. Form and signature of an
        entry that this process has sealed itself need no second look.
        Raises EntryError, SignatureError, SignerNotEnrolled, RunForked, Conflict, LedgerFull.
        """
        tree = self._writing().copy()
        first = tree.size
        if self._connection.in_transaction:  # it would be durable only at that transaction's end
            raise BitwitnessError("nothing is appended inside a snapshot or another transaction")
        if self._derivation.behind:
            self._settle()
        with self._reporting():
            try:
                rows = AppendRows(self._connection, self._derivation)
                for item in entries:
                    entry = item if isinstance(item, Sealed) else sealed.read(item)
                    index = tree.size
                    if entry.kind.name != "step":
                        rows.write()  # what it says of entries before it is looked up in the file
                    self._admission.admit(index, entry)
                    rows.add(index, entry, tree.append(entry.leaf_hash))
                rows.commit()
            except BaseException:
                self._take_back()
                raise
        self._tree = tree
        self._admission.keep()
        return range(first, tree.size)

    def sign_checkpoint(self, signer: Signer, *others: Signer) -> str:
        """Sign the tree as it stands, store the note and return it. If it is signed already, return what is stored.

        `others` sign, too: the key that this one has replaced, once. Refuses to sign a tree that does not extend the
        newest stored checkpoint (LedgerDamaged) or whatever the key remembers that it has signed (LogRolledBack), or
        whose entries since then are not sound (see tail_check), and with a key that does not count (see log_keys).
        """
        size = self._writing().size
        for item in (signer, *others):
            if item.role != "log":
                raise BitwitnessError(f"checkpoints are signed by the log key, not by a {item.role} key")
        latest, before = self.latest_checkpoint(), 0
        if latest is not None:
            newest = parse_checkpoint(parse_note(latest).text)
            self._check_extends(newest)
            before = newest.size
        with self._reporting():
            log_keys.check_signers(self._connection, before, size, (item.keyid for item in (signer, *others)))
            root = self._writing().root()
            TailCheck(self.path, self._connection, self.origin, self.node, self._own).check(
                size, root, (signer, *others)
            )
        head = log_memory.Head(self.origin, size, root)
        for item in (signer, *others):
            if item.memory is not None:
                log_memory.remember(item.memory, head, lambda before: self.consistency_proof(before, size))
        body = Checkpoint(self.origin, size, root).format()
        lines = tuple(signature_line(body, self.origin, item) for item in (signer, *others))
        if latest is not None:
            stored = parse_note(latest)
            if stored.text == body and set(lines) <= set(stored.lines):
                return latest  # it may carry cosignatures, too
        note = Note(body, lines).format()
        self._insert_checkpoint(size, note)
        return note

    def check_memory(self, memory: Path) -> None:
        """Whether the ledger extends what a log key remembers in this file. Raises LogRolledBack, KeyFileError."""
        size = self.size
        head = log_memory.Head(self.origin, size, self.root(size))
        log_memory.check(memory, head, lambda before: self.consistency_proof(before, size))

    def keep_checkpoint(self, note: str) -> None:
        """Store a checkpoint that others have signed or cosigned; the caller has verified its signatures.

        It must be of this log, of what it holds, and not older than the newest stored one. Raises BitwitnessError,
        LedgerDamaged.
        """
        self._writing()
        checkpoint = parse_checkpoint(parse_note(note).text)
        if checkpoint.origin != self.origin:
            raise BitwitnessError(f"the checkpoint is of the log {checkpoint.origin[:200]}, not of {self.origin}")
        self._check_extends(checkpoint)
        latest = self.latest_checkpoint()
        if note == latest:
            return
        if latest is not None and parse_checkpoint(parse_note(latest).text).size > checkpoint.size:
            raise BitwitnessError(f"a newer checkpoint than this one of {checkpoint.size} entries is stored")
        self._insert_checkpoint(checkpoint.size, note)

    def _insert_checkpoint(self, size: int, note: str) -> None:
        with self._transaction():
            self._derive_waiting()
            self._connection.execute(
                "INSERT INTO checkpoints (id, size, note) SELECT coalesce(max(id) + 1, 0), ?, ? FROM checkpoints",
                (size, note),
            )

    @classmethod
    def rebuild(cls, path: Path | str) -> int:
        """Make all derived tables of a ledger file anew from its entries; return the number of entries.

        Takes the writer's lock. Entries that contradict each other are reported, and nothing is changed.
        """
        with cls._open(Path(path), writable=True, derived_too=False) as ledger:
            # Dropping a table deletes its rows one by one, which foreign keys would refuse.
            ledger._connection.execute("PRAGMA foreign_keys = OFF")
            with ledger._transaction():
                return derived.derive(ledger._connection, ledger._sealed())

    # Inside -----------------------------------------------------------------------------------------------

    def _start_writing(self) -> None:
        """Load the right edge of the tree, and refuse to build on an end that does not hold together."""
        with self._reporting():
            size = _size(self._connection)
            self._tree = merkle.Frontier.load(size, self.node)
            self._own = size
            if size:
                self.entry(size - 1)
            latest = self.latest_checkpoint()
            if latest is not None:
                self._check_extends(parse_checkpoint(parse_note(latest).text))

    def _check_derived(self) -> None:
        if derived.version(self._connection) != derived_schema.VERSION:
            raise LedgerDamaged(self.path, "its derived tables are missing or of another version; run `ledger rebuild`")
        self._settle()

    def _settle(self) -> None:
        """Have the derived tables tell of every entry; in a reader they are what they are."""
        if self._tree is not None and (self._derivation.behind or self._derivation.waiting):
            with self._transaction():
                self._derive_waiting()

    def _derive_waiting(self) -> None:
        """Derive what waits, in the open transaction: also where another process left it so, or an append failed."""
        if self._derivation.behind:
            done = derived.derived_size(self._connection)
            wrong = LedgerDamaged(
                self.path, f"the derived tables cover {done} of {self.size} entries; run `ledger rebuild`"
            )
            if not self.size - derived.MOST_WAITING < done <= self.size:
                raise wrong
            for index, entry in self._sealed(done):
                if entry.kind.name != "step":  # the only kind that waits
                    raise wrong
                try:
                    self._derivation.apply(index, entry)
                except BitwitnessError:
                    raise wrong from None
            self._derivation.behind = False
        self._derivation.flush()

    def _check_extends(self, checkpoint: Checkpoint) -> None:
        size = self.size
        if checkpoint.size > size:
            raise LedgerDamaged(self.path, f"it ends with {size} entries, but a checkpoint signed {checkpoint.size}")
        if self.root(checkpoint.size) != checkpoint.root:
            raise LedgerDamaged(
                self.path,
                f"its first {checkpoint.size} entries are not those that the checkpoint signed; run `ledger fsck`",
            )

    def _writing(self) -> merkle.Frontier:
        if self._tree is None:
            raise BitwitnessError(f"{self.path} was opened for reading only")
        return self._tree

    def _sealed(self, start: int = 0) -> Iterator[tuple[int, Sealed]]:
        for index, data in self.entries(start):
            yield index, sealed.read(data)

    def _read(self, query: str, parameters: tuple[Any, ...]) -> Iterator[tuple[int, bytes]]:
        """Rebuild entries from rows (idx, payload, signature, leaf_hash); an edited one is never handed out."""
        with self._reporting():
            for index, payload, signature, leaf_hash in self._connection.execute(query, parameters):
                try:
                    data = schema.entry_bytes(payload.encode("utf-8"), signature)
                except (ValueError, KeyError, TypeError):
                    data = b""
                if merkle.leaf_hash(data) != leaf_hash:
                    raise LedgerDamaged(self.path, f"entry {index} was edited; run `ledger fsck`")
                yield int(index), data

    def _genesis(self, run: str) -> int:
        with self._reporting():
            row = self._connection.execute("SELECT entry FROM runs WHERE hash = ?", (run,)).fetchone()
        if row is None:
            raise NoSuchEntry(f"run {run}", self.size)
        return int(row[0])

    def _check_size(self, size: int) -> None:
        if not 0 <= size <= self.size:
            raise NoSuchEntry(f"number {size - 1}", self.size)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing."""
        with self._reporting():
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._take_back()
                raise

    def _take_back(self) -> None:
        """After an error: no transaction is open, and what was remembered about it is forgotten."""
        if self._connection.in_transaction:  # SQLite ends it itself when the disk is full
            self._connection.execute("ROLLBACK")
        self._derivation.forget()
        self._admission.forget()

    def _reporting(self) -> reporting:
        return reporting(self.path, self._safe_size)

    def _safe_size(self) -> int:
        return 0 if self._tree is None else self._tree.size


def _size(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT coalesce(max(idx) + 1, 0) FROM entries").fetchone()[0])
