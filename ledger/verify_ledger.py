"""The independent verifier of a whole ledger file: every entry, signature, link and checkpoint, from raw bytes.

Reads the file with SQL of its own and shares no code with the writer. Entries are opened and their signatures
checked by verify_rows, in several processes; what links them is followed in order by verify_links.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import merkle
from .entry import entries
from .errors import EntryError, FoundWrong
from .keys import PublicKey
from .sqlite import guard
from .trust import Trust
from .verify import Check, KeyRing, verify_signature
from .verify_checkpoints import CheckpointChecks
from .verify_links import Links
from .verify_rows import connect, entry_bytes, examine_all

UNCOVERED = "uncovered"
"""The check that says which entries no checkpoint of the pinned log covers."""
_SHOWN = 5
_MAX_FAULTS = 1000
_TABLES = ("ledger", "entries", "checkpoints")
# What can be found, in the order in which it is reported.
_CHECKS = {
    "file": "an SQLite file with a ledger's tables; those derived from entries (runs, steps …) only fsck compares",
    "entries": "canonical, each as its kind demands, under its stored leaf hash",
    "signatures": "by enrolled keys of the right role, enrolled by the root key",
    "runs": "each run an unbroken chain with its history, nothing forked, its steps and states in agreement",
    "links": "everything that is referred to is in the ledger, before it, and is what is said of it",
    "checkpoints": "signed by the log key, over these very entries",
}


@dataclass(frozen=True)
class Fault:
    """Something wrong, and where: the check that found it, the table, the row."""

    check: str
    table: str
    index: int | None
    detail: str

    def __str__(self) -> str:
        place = self.table if self.index is None else f"{self.table} {self.index}"
        return f"{place}: {self.detail}"

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, "table": self.table, "index": self.index, "detail": self.detail}


@dataclass
class LedgerReport:
    """All that was found. `size` and `root` are those of the entries as they are."""

    size: int = 0
    root: bytes = merkle.EMPTY_ROOT
    checkpoints: int = 0
    faults: list[Fault] = field(default_factory=list)
    disowned: int = 0
    """Entries that stand but no longer count: their key was revoked later from an index at or before them, or the
    policy asks for witnesses, and none had cosigned them before the revocation."""
    witnessed: int | None = None
    """How many entries a checkpoint covers that the policy's witnesses have cosigned; None if it asks for none."""
    covered: int | None = None
    """How many entries the newest checkpoint of the pinned log covers; None without a policy."""
    complete: bool = False
    hindrance: str | None = None
    """Why the file could not be read to its end, where that says nothing against it."""
    _numbers: Counter[str] = field(default_factory=Counter, repr=False)

    def fault(self, check: str, table: str, index: int | None, detail: str) -> None:
        self._numbers[check] += 1
        if self._numbers[check] <= _MAX_FAULTS:  # a hostile file must not fill the memory
            self.faults.append(Fault(check, table, index, detail))

    @property
    def checks(self) -> list[Check]:
        checks = summarise(self.faults, self._said(), self.complete)
        if self.hindrance is not None:
            checks.insert(0, Check("reading", None, f"the file could not be read: {self.hindrance}"))
        if self.covered is not None:
            checks.append(self._coverage(self.covered))
        if self.witnessed is not None:
            said = (
                f"{self.witnessed} of {self.size} entries are under a checkpoint that the policy's witnesses cosigned"
            )
            checks.append(Check("witnesses", self.witnessed > 0, said))
        return checks

    def _coverage(self, covered: int) -> Check:
        if covered == 0:
            said = "no sound checkpoint by the pinned log key is in the file, so nobody vouches for its entries"
        elif covered < self.size:
            said = f"{self.size - covered} entries came after the newest checkpoint of the pinned log, over {covered};"
            said += " a run signs one as it goes and at its end, `ledger checkpoint` at any time"
        else:
            said = f"no entry: a checkpoint of the pinned log covers all {covered}"
        return Check(UNCOVERED, True if 0 < covered == self.size else None, said)

    def _said(self) -> dict[str, str]:
        said = dict(_CHECKS)
        said["entries"] = f"{self.size} entries, {said['entries']}"
        if self.disowned:
            said["signatures"] += f"; {self.disowned} no longer count, their key was revoked"
        said["checkpoints"] = f"{self.checkpoints} checkpoints, {said['checkpoints']}"
        return said


def summarise(faults: Iterable[Fault], said: dict[str, str], complete: bool) -> list[Check]:
    """One check for each name in `said`: False with its first faults where there are any, else True if complete."""
    found: dict[str, list[Fault]] = {name: [] for name in said}
    for fault in faults:
        found[fault.check].append(fault)
    checks = []
    for name, detail in said.items():
        wrong = found[name]
        if wrong:
            detail = "; ".join(map(str, wrong[:_SHOWN]))
            if len(wrong) > _SHOWN:
                detail += f"; and {len(wrong) - _SHOWN} more"
        elif not complete:
            detail = "not checked to the end"
        checks.append(Check(name, False if wrong else True if complete else None, detail))
    return checks


def verify_ledger(
    path: Path,
    trust: Trust | None,
    *,
    processes: int | None = None,
    on_nodes: Callable[[list[merkle.Node]], None] = lambda nodes: None,
    moment: sqlite3.Connection | None = None,
) -> LedgerReport:
    """Verify a ledger file. Without `trust` the file's own first entry and origin stand in for pinned keys.

    Everything is read in one moment of the file, so a writer may go on meanwhile; it is that of the open transaction
    of `moment`, a connection of connect(), where one is given. `on_nodes` is told the perfect
    subtrees that each entry completes, itself first. Nothing wrong with the file raises; it is in the report.
    """
    report = LedgerReport()
    try:
        with _moment(path, moment) as connection:
            report.complete = _verify(path, connection, trust, report, processes, on_nodes)
    except (OSError, MemoryError, BrokenExecutor) as error:
        report.hindrance = guard.reason(error, path)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter quotes a damaged schema
        if isinstance(error, sqlite3.Error) and guard.is_environment(error):
            report.hindrance = guard.reason(error, path)
        else:
            report.fault("file", "ledger", None, f"cannot be read: {error}")
    return report


@contextmanager
def _moment(path: Path, given: sqlite3.Connection | None) -> Iterator[sqlite3.Connection]:
    if given is not None:
        yield given
        return
    with closing(connect(path)) as connection:
        connection.execute("BEGIN")
        yield connection


def _verify(
    path: Path,
    connection: sqlite3.Connection,
    trust: Trust | None,
    report: LedgerReport,
    processes: int | None,
    on_nodes: Callable[[list[merkle.Node]], None],
) -> bool:
    """Fill the report; False if the checks could not be made for want of a root key."""
    wrong = guard.faults(connection, _TABLES)
    for detail in wrong:
        report.fault("file", "sqlite_schema", None, detail)
    if wrong:
        return False
    rows = connection.execute("SELECT origin FROM ledger").fetchmany(2)
    origin = _text(rows[0][0]) if len(rows) == 1 else None
    report.covered = None if trust is None else 0
    if origin is None:
        report.fault("file", "ledger", None, "the origin is missing")
    elif trust is not None and origin != trust.origin:
        report.fault("file", "ledger", None, f"the log is {origin}, not {trust.origin}")
    root = trust.root if trust is not None else _first_key(connection, report)
    if root is None:
        return False
    keys, sizes = _foretold(connection, root, report)
    sizes |= _checkpoint_sizes(connection)
    # What revoked keys signed before: it stands only if witnesses saw it then.
    signed: dict[str, list[int]] = {key.keyid: [] for key in keys if keys.revocation(key.keyid) is not None}
    roots: dict[int, bytes] = {0: merkle.EMPTY_ROOT}
    links = Links(report, keys, origin, roots)
    tree, expected = merkle.Frontier(), 0
    for opened in examine_all(path, connection, keys, processes):
        for name, detail in opened.faults:
            report.fault(name, "entries", opened.number, detail)
        if opened.number != expected:
            detail = f"missing, up to entry {opened.number}" if opened.number > expected else "is in another's place"
            report.fault("entries", "entries", expected, detail)
        expected = opened.number + 1
        on_nodes(tree.append(opened.leaf_hash))
        report.disowned += opened.disowned
        if opened.facts is not None and not opened.disowned and opened.facts.keyid in signed:
            signed[opened.facts.keyid].append(opened.number)
        if opened.facts is not None:
            links.follow(opened.number, opened.leaf_hash, opened.facts)
        if tree.size in sizes:
            roots[tree.size] = tree.root()
    report.size, report.root = tree.size, tree.root()
    _check_checkpoints(connection, trust, origin, keys, roots, signed, report)
    return True


_KEY, _INTENT = b"bitwitness.dev/key/v1", b"bitwitness.dev/audit-intent/v1"
# A `size` in canonical JSON.
_SIZE = re.compile(rb'"size":([1-9][0-9]{0,18})[,}]')
_CHECKPOINTS = """
    SELECT id, CASE typeof(size) WHEN 'integer' THEN size END, CASE typeof(note) WHEN 'text' THEN note END
    FROM checkpoints NOT INDEXED ORDER BY id
"""


def _check_checkpoints(
    connection: sqlite3.Connection,
    trust: Trust | None,
    origin: str | None,
    keys: KeyRing,
    roots: dict[int, bytes],
    signed: dict[str, list[int]],
    report: LedgerReport,
) -> None:
    name = trust.origin if trust is not None else origin
    if name is None:
        return
    try:
        checks = CheckpointChecks(name, trust, keys, roots, report.size)
    except FoundWrong as error:
        report.fault("checkpoints", "ledger", None, str(error))
        return
    for row in connection.execute(_CHECKPOINTS):
        for detail in checks.follow(*row):
            report.fault("checkpoints", "checkpoints", row[0], detail)
    report.checkpoints = checks.number
    report.covered = None if trust is None else checks.covered
    if trust is not None and trust.asks_for_witnesses:
        report.witnessed = max(checks.witnessed_sizes, default=0)
        for keyid, indexes in signed.items():
            before = keys.revocation(keyid) or 0
            covered = max((size for size in checks.witnessed_sizes if size <= before), default=0)
            report.disowned += sum(index >= covered for index in indexes)


# Keys ----------------------------------------------------------------------------------------------------


def _foretold(connection: sqlite3.Connection, root: PublicKey, report: LedgerReport) -> tuple[KeyRing, set[int]]:
    """What the pass over all entries needs to know before: all keys, and the sizes whose roots intents state.

    The keys are those of the `key` entries, in order: few, and all other signatures need them.
    """
    ring, sizes = KeyRing(root), set[int]()
    # Needles that the canonical payload of every such entry holds; what else holds one is opened and passed over, or
    # has a root computed that nobody asks for.
    rows = connection.execute(
        "SELECT idx, payload, signature FROM entries NOT INDEXED"
        " WHERE instr(payload, ?) > 0 OR instr(payload, ?) > 0 ORDER BY idx",
        (_KEY.decode(), _INTENT.decode()),
    )
    for index, payload, signature in rows:
        if isinstance(payload, bytes):
            if _INTENT in payload:
                sizes.update(map(int, _SIZE.findall(payload)))
            if _KEY not in payload:
                continue
        try:
            data = entry_bytes(payload, signature)
            envelope, kind = entries.read(data)
            if kind.name == "key":
                verify_signature(envelope, kind, ring, index)
                ring.add(index, envelope.statement["predicate"])
        except FoundWrong as error:
            report.fault("signatures", "entries", index, f"key entry: {error}")
    return ring, sizes


def _first_key(connection: sqlite3.Connection, report: LedgerReport) -> PublicKey | None:
    """The root key that the ledger itself names, for want of a pinned one."""
    row = connection.execute("SELECT payload, signature FROM entries NOT INDEXED WHERE idx = 0").fetchone()
    try:
        if row is None:
            raise EntryError("there is no first entry to enrol a root key, and no policy pins one")
        envelope, kind = entries.read(entry_bytes(*row))
        if kind.name != "key":
            raise EntryError("does not enrol the root key")
        return PublicKey.from_hex(envelope.statement["predicate"]["key"]["public"])
    except FoundWrong as error:
        report.fault("entries", "entries", 0, str(error))
        return None


def _checkpoint_sizes(connection: sqlite3.Connection) -> set[int]:
    return {
        row[0] for row in connection.execute("SELECT size FROM checkpoints NOT INDEXED WHERE typeof(size) = 'integer'")
    }


def _text(value: object) -> str | None:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else None
    except UnicodeDecodeError:
        return None
