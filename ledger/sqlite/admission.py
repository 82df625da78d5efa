"""What an entry must satisfy, beyond its own form, before the ledger takes it: signer, chain, no contradiction.

The verifier checks all of this again from raw bytes with code of its own (verify.py).
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from ..entry.entries import Kind
from ..entry.envelope import Envelope
from ..entry.sealed import Sealed
from ..errors import EntryError
from ..keys import PublicKey
from ..merkle import GetNode
from ..note import Verifier, parse_note
from .admission_content import Contents
from .derived import UnknownReference
from .run_tail import RunTail


class SignerNotEnrolled(EntryError):
    """The signing key is not enrolled here, is revoked, or has another role. `keyid` names it."""

    def __init__(self, keyid: str, reason: str) -> None:
        super().__init__(f"key {keyid[:16]}… {reason}", "signer")
        self.keyid = keyid


@dataclass(frozen=True)
class _EnrolledKey:
    role: str
    public: PublicKey
    revoked_from: int | None


class Admission:
    """Decides on entries of one open ledger, in order; must see each one that is appended.

    What it remembers of keys and runs is provisional until keep(), and dropped by forget().
    """

    def __init__(self, connection: sqlite3.Connection, node: GetNode) -> None:
        """`node` gives the perfect subtrees of the entries so far."""
        self._connection = connection
        self._keys: dict[str, _EnrolledKey] = {}
        self._trainers: dict[str, frozenset[str]] = {}
        self._tails: dict[str, RunTail] = {}
        self._pending: dict[str, RunTail] = {}
        self._contents = Contents(connection, node)

    def keep(self) -> None:
        """The transaction is durable: what was admitted counts."""
        self._tails.update(self._pending)
        self._pending.clear()
        self._contents.keep()

    def forget(self) -> None:
        """The transaction was taken back: nothing that was admitted counts."""
        self._forget_keys()
        self._pending.clear()
        self._contents.forget()

    def _forget_keys(self) -> None:
        self._keys.clear()
        self._trainers.clear()

    def admit(self, index: int, entry: Sealed) -> None:
        """Check the entry that is to be number `index`, and remember it as the end of its run's chain.

        Raises EntryError, SignerNotEnrolled, SignatureError, RunForked, UnknownReference.
        """
        kind, envelope = entry.kind, entry.envelope
        key = self._signer(index, kind, envelope)
        if not entry.verified:
            envelope.verify(key.public)
        if kind.name == "key":
            self._check_key_entry(index, envelope)
            self._forget_keys()
        if kind.chained:
            self._check_chain(kind, envelope, entry.leaf_hash)
        self._contents.admit(index, kind.name, envelope.statement["predicate"], entry.leaf_hash)

    def signer(self, index: int, kind: Kind, envelope: Envelope) -> PublicKey:
        """The enrolled, unrevoked key that may sign this as entry `index`; the signature is not verified here.

        Raises SignerNotEnrolled, EntryError.
        """
        return self._signer(index, kind, envelope).public

    def _signer(self, index: int, kind: Kind, envelope: Envelope) -> _EnrolledKey:
        keyid = envelope.keyid
        key = self._first_key(envelope) if index == 0 else self._enrolled(keyid)
        if key is None:
            raise SignerNotEnrolled(keyid, "is not enrolled in this ledger")
        roles = kind.signers(envelope.statement["predicate"])
        if key.role not in roles:
            raise SignerNotEnrolled(keyid, f"is a {key.role} key; a {kind.name} entry needs a {' or '.join(roles)} key")
        if key.revoked_from is not None and key.revoked_from <= index:
            raise SignerNotEnrolled(keyid, f"is revoked from entry {key.revoked_from} on")
        return key

    def _first_key(self, envelope: Envelope) -> _EnrolledKey:
        predicate = envelope.statement["predicate"]
        key = predicate.get("key", {})
        if predicate.get("action") != "enrol" or key["role"] != "root" or key["keyid"] != envelope.keyid:
            raise EntryError("the first entry of a ledger enrols its root key, signed by that key")
        return _EnrolledKey("root", PublicKey.from_hex(key["public"]), None)

    def _enrolled(self, keyid: str) -> _EnrolledKey | None:
        if keyid not in self._keys:
            row = self._connection.execute(
                "SELECT role, public, (SELECT min(from_index) FROM key_revocations WHERE key = keys.entry)"
                " FROM keys WHERE keyid = ?",
                (keyid,),
            ).fetchone()
            if row is None:
                return None
            self._keys[keyid] = _EnrolledKey(row[0], PublicKey.from_hex(row[1]), row[2])
        return self._keys[keyid]

    def _check_key_entry(self, index: int, envelope: Envelope) -> None:
        """A revoked or replaced key must be enrolled with the role that the entry states.

        It may not end where that would make invalid what stands in the ledger: this very entry, which its key signs,
        or a checkpoint that a log key has signed.
        """
        predicate = envelope.statement["predicate"]
        action, key = predicate["action"], predicate["key"]
        if action == "enrol":
            return
        old_id = predicate["replaces"] if action == "rotate" else key["keyid"]
        old = self._enrolled(old_id)
        if old is None:
            raise UnknownReference("key", old_id)
        if old.role != key["role"]:
            raise EntryError(f"key {old_id[:16]}… is a {old.role} key, not a {key['role']} key", "predicate.key.role")
        until = index if action == "rotate" else predicate["from"]
        if old_id == envelope.keyid and until <= index:
            raise EntryError(
                f"the root key signs this entry, number {index}, and cannot end before it; let another enrolled root "
                f"key sign it, or revoke from {index + 1} on",
                "predicate",
            )
        if old.role == "log":
            self._check_log_key(index, old, old_id, until, replaced=action == "rotate")

    def _check_log_key(self, index: int, key: _EnrolledKey, keyid: str, until: int, *, replaced: bool) -> None:
        if replaced and key.revoked_from is not None and key.revoked_from <= index:
            raise EntryError(
                f"log key {keyid[:16]}… has ended at entry {key.revoked_from} already; enrol the new key instead",
                "predicate.replaces",
            )
        signed = self._signed_by(key.public)
        if until < signed:
            raise EntryError(
                f"log key {keyid[:16]}… has signed a checkpoint of {signed} entries, which must stay valid; revoke it "
                f"from {signed} on or later",
                "predicate.from",
            )

    def _signed_by(self, key: PublicKey) -> int:
        """The largest size of a stored checkpoint that carries a signature line of this log key, 0 if none does."""
        (origin,) = self._connection.execute("SELECT origin FROM ledger").fetchone()
        line = (origin, Verifier(origin, key).key_id)
        for size, note in self._connection.execute("SELECT size, note FROM checkpoints ORDER BY id DESC"):
            if any((item.name, item.key_id) == line for item in parse_note(note).lines):
                return int(size)
        return 0

    def _check_chain(self, kind: Kind, envelope: Envelope, leaf_hash: bytes) -> None:
        if kind.name == "run":
            run = leaf_hash.hex()
            self._pending[run] = RunTail(run, (leaf_hash,))
            return
        predicate = envelope.statement["predicate"]
        run = predicate["run"]
        tail = self._pending.get(run) or self.tail(run)
        if envelope.keyid not in self._trainers_of(run):
            raise SignerNotEnrolled(envelope.keyid, f"is not the trainer of run {run[:16]}…")
        tail.check(predicate)
        tail.add(leaf_hash, kind.name)
        self._pending[run] = tail

    def tail(self, run: str) -> RunTail:
        """The end of a run's chain, free to be changed. O(its entries) the first time. Raises UnknownReference."""
        if run not in self._tails:
            genesis = self._genesis(run)
            rows = self._connection.execute(
                "SELECT leaf_hash FROM log JOIN entries ON idx = log.entry"
                " WHERE run = ? AND seq IS NOT NULL ORDER BY seq",
                (genesis,),
            )
            end = self._connection.execute("SELECT 1 FROM run_events WHERE run = ? AND kind = 'end'", (genesis,))
            ended = end.fetchone() is not None
            self._tails[run] = RunTail(run, (bytes(row[0]) for row in rows), ended=ended)
        return self._tails[run].copy()

    def _genesis(self, run: str) -> int:
        row = self._connection.execute("SELECT entry FROM runs WHERE hash = ?", (run,)).fetchone()
        if row is None:
            raise UnknownReference("run", run)
        return int(row[0])

    def _trainers_of(self, run: str) -> frozenset[str]:
        """The keys that may sign a run's chain: its genesis's signer and whichever key replaced that one."""
        if run not in self._trainers:
            rows = self._connection.execute(
                "WITH RECURSIVE line (entry, keyid) AS ("
                " SELECT keys.entry, keyid FROM runs JOIN keys ON keys.entry = runs.trainer WHERE runs.hash = ?"
                " UNION SELECT keys.entry, keys.keyid FROM keys JOIN line ON keys.replaces = line.entry"
                ") SELECT keyid FROM line",
                (run,),
            )
            self._trainers[run] = frozenset(str(row[0]) for row in rows)
        return self._trainers[run]
