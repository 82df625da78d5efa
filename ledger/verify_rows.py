"""Entries of a ledger file, each examined alone: raw rows in, faults and facts out, by several processes.

Part of the independent verifier: it reads the file with SQL of its own and shares no code with the writer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from . import jcs, merkle
from .entry import entries
from .entry.derivation_rules import FIELDS as RELEASE_FIELDS
from .entry.derivation_rules import sources_of
from .entry.entries import Kind
from .entry.envelope import MAX_ENTRY, PAYLOAD_TYPE, Envelope
from .entry.run_rules import essence
from .errors import EntryError, FoundWrong
from .sqlite import guard
from .verify import Disowned, KeyRing, verify_signature

_RANGE = 2000
_SIGNER = re.compile(rb'"signer":"([0-9a-f]{64})"')


def connect(path: Path) -> sqlite3.Connection:
    """Open a ledger file for reading only; text comes as raw bytes, since edited text need not be UTF-8."""
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        address += "&immutable=1"  # a read-only folder, where SQLite cannot put its shared memory
    connection = sqlite3.connect(address, uri=True, isolation_level=None)
    connection.text_factory = bytes
    guard.restrain(connection)
    guard.bound(connection, path)
    return connection


class Facts(NamedTuple):
    """What the checks between entries need of one: all from its signed bytes."""

    kind: str
    keyid: str
    run: str | None
    seq: int | None
    prev: str | None
    history: str | None
    payload: bytes | None
    """SHA-256 of the payload of an entry that is in no chain, where a copy can hide."""
    refers: tuple[tuple[str, str], ...]
    """(kind, leaf hash) of the entries that it names."""
    name: str | None
    said: Mapping[str, Any]
    """What of its predicate is compared with other entries."""


class Opened(NamedTuple):
    """One row of `entries`, examined alone."""

    number: int
    leaf_hash: bytes
    facts: Facts | None
    faults: tuple[tuple[str, str], ...]
    disowned: bool
    """Signed soundly, by a key that a later entry revoked from an index at or before this one."""


def examine(row: tuple[Any, ...], keys: KeyRing) -> Opened:
    """Rebuild and check the entry in a row (idx, payload, signature, leaf_hash), all as SQLite gives raw bytes."""
    index, payload, signature, stored = row
    faults: list[tuple[str, str]] = []
    facts = None
    disowned = False
    leaf_hash = stored if isinstance(stored, bytes) and len(stored) == merkle.HASH_SIZE else bytes(merkle.HASH_SIZE)
    try:
        data = entry_bytes(payload, signature)
        leaf_hash = merkle.leaf_hash(data)
        if leaf_hash != stored:
            faults.append(("entries", "its bytes are not those of the stored leaf hash"))
        envelope, kind = entries.read(data)
        facts = _facts(envelope, kind)
        verify_signature(envelope, kind, keys, index)
    except Disowned:
        disowned = True
    except FoundWrong as error:
        faults.append(("signatures" if facts else "entries", str(error)))
    return Opened(index, leaf_hash, facts, tuple(faults), disowned)


def entry_bytes(payload: object, signature: object) -> bytes:
    """The signed bytes of the stored parts (docs/formats/ledger-file.md)."""
    if not isinstance(payload, bytes) or not isinstance(signature, bytes):
        raise EntryError("the stored payload is not text, or the signature not a blob")
    if len(payload) + len(signature) > MAX_ENTRY:
        raise EntryError(f"the stored payload is larger than an entry of {MAX_ENTRY} bytes")
    if jcs.nests_deeper(payload, jcs.MAX_DEPTH):
        raise EntryError(f"the stored payload is nested deeper than {jcs.MAX_DEPTH}")
    return jcs.encode(
        {
            "payload": base64.b64encode(payload).decode("ascii"),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": _signer(payload), "sig": base64.b64encode(signature).decode("ascii")}],
        }
    )


def _signer(payload: bytes) -> str:
    """The keyid that a payload seems to state; entries.read holds it to the one that it does state."""
    stated = _SIGNER.findall(payload)
    if len(stated) == 1:
        return str(stated[0].decode("ascii"))
    try:
        keyid = json.loads(payload)["predicate"]["signer"]
    except (ValueError, KeyError, TypeError, RecursionError):
        keyid = None
    if not isinstance(keyid, str):
        raise EntryError("the stored payload is not a statement with a signer")
    return keyid


def _facts(envelope: Envelope, kind: Kind) -> Facts:
    p = envelope.statement["predicate"]
    refers: list[tuple[str, str]] = []
    if kind.name == "run":
        refers += [("dataset", used["entry"]) for used in p["datasets"]]
        if p["init"]["kind"] == "parent":
            refers += [("run", p["init"]["run"]), ("state", p["init"]["entry"])]
    elif kind.name == "eval":
        refers.append(("dataset", p["dataset"]["entry"]))
    elif kind.name == "audit":
        refers.append(("audit-intent", p["intent"]))
    elif kind.name == "recheck":
        refers.append(("audit", p["audit"]))
    elif kind.name == "endorse":
        refers.append(("release", p["release"]))
    elif kind.name == "release":
        refers += [("release", source) for source in sources_of(p)]
    if not kind.chained and "run" in p:
        refers.append(("run", p["run"]))
    chained = kind.chained
    return Facts(
        kind=kind.name,
        keyid=envelope.keyid,
        run=p.get("run") if chained else None,
        seq=p.get("seq"),
        prev=p.get("prev"),
        history=p["history"]["root"] if chained else None,
        payload=None if chained else hashlib.sha256(envelope.payload).digest(),
        refers=tuple(refers),
        name=p["name"] if kind.name == "run" else None,
        said=_said(kind, p),
    )


# The fields of each kind that verify_links reads, besides those that the rules of runs read.
_SAID = {
    "dataset": ("dataset",),
    "run": ("datasets", "origin"),
    "eval": ("dataset",),
    "release": (*RELEASE_FIELDS, "derivation"),
    "audit-intent": ("beacon", "last", "root", "run", "size", "time"),
    "audit": ("basis", "beacon", "intent", "run", "seed"),
    "recheck": ("audit", "run"),
}


def _said(kind: Kind, predicate: Mapping[str, Any]) -> dict[str, Any]:
    said = essence(kind.name, predicate) if kind.chained else {}
    return said | {name: predicate[name] for name in _SAID.get(kind.name, ()) if name in predicate}


def extent(connection: sqlite3.Connection) -> tuple[int, bool]:
    """How many rows `entries` has, and whether they are numbered from 0 without a gap."""
    query = "SELECT count(*), min(idx), max(idx) FROM entries NOT INDEXED"
    count, first, last = connection.execute(query).fetchone()
    return count, count == 0 or (first, last) == (0, count - 1)


def examine_all(
    path: Path, connection: sqlite3.Connection, keys: KeyRing, processes: int | None = None
) -> Iterator[Opened]:
    """Every row in order of its index, examined; by several processes where that pays."""
    rows, gapless = extent(connection)
    count = processes or len(os.sched_getaffinity(0))
    if count == 1 or rows <= _RANGE or not gapless:
        for row in connection.execute(f"{_ROWS} ORDER BY idx"):
            yield examine(row, keys)
        return
    # Workers start afresh: a fork would share this process's threads' locks and open files.
    with ProcessPoolExecutor(count, get_context("spawn"), _start_worker, (str(path), keys)) as pool:
        ranges = [(start, min(start + _RANGE, rows)) for start in range(0, rows, _RANGE)]
        waiting: list[Future[list[Opened]]] = []
        for span in ranges:
            waiting.append(pool.submit(_examine_range, span))
            if len(waiting) > 2 * count:  # keeps memory bounded
                yield from waiting.pop(0).result()
        for future in waiting:
            yield from future.result()


_worker: tuple[sqlite3.Connection, KeyRing] | None = None


def _start_worker(path: str, keys: KeyRing) -> None:
    global _worker
    _worker = connect(Path(path)), keys


def _examine_range(span: tuple[int, int]) -> list[Opened]:
    if _worker is None:
        raise RuntimeError("the worker was not started")
    connection, keys = _worker
    query = f"{_ROWS} WHERE idx >= ? AND idx < ? ORDER BY idx"
    return [examine(row, keys) for row in connection.execute(query, span)]


# No index of the file is asked, since it may hold other values than the table; values of another type are NULL.
_ROWS = """
    SELECT idx, CASE typeof(payload) WHEN 'text' THEN payload END,
        CASE typeof(signature) WHEN 'blob' THEN signature END, CASE typeof(leaf_hash) WHEN 'blob' THEN leaf_hash END
    FROM entries NOT INDEXED
"""
