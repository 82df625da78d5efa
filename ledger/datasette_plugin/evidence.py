"""The evidence for one entry: its bytes, its chain, its signature, its place under the newest checkpoint.

Everything is computed from the entry's bytes when the page is asked for. It is still the server's word; the page
offers the proof file and the commands by which a reader checks without this server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from .. import merkle
from ..checkpoint import Checkpoint, parse_checkpoint
from ..entry.entries import KINDS, kind_of
from ..entry.envelope import Envelope, open_envelope
from ..errors import BitwitnessError, EntryError, FoundWrong
from ..exchange.prove import NoCheckpoint, covering_checkpoint, tlog_proof_text
from ..keys import PublicKey
from ..note import Verifier, parse_note
from ..proof_file import verify_proof
from ..store import Ledger
from ..trust import Trust, load_trust
from ..verify import Check, KeyRing, verify_entry
from . import merkle_path
from .answers import Asked, NotHere

# The history commitment covers all earlier entries of a run; a page recomputes it up to this many.
MAX_HISTORY = 5000


@dataclass(frozen=True)
class Inclusion:
    """The way from an entry to the root of a checkpoint."""

    checkpoint: Checkpoint
    checkpoint_id: int
    hashes: tuple[bytes, ...]
    drawing: Markup


@dataclass(frozen=True)
class Evidence:
    """One entry with all that speaks for it. `inclusion` is None until a checkpoint covers the entry."""

    index: int
    kind: str
    data: bytes
    leaf_hash: str
    statement: Mapping[str, Any]
    signature: str
    signer: Mapping[str, Any]
    run: Mapping[str, Any] | None
    next_in_run: int | None
    checks: tuple[Check, ...]
    pinned: bool
    address: str
    inclusion: Inclusion | None

    @property
    def predicate(self) -> Mapping[str, Any]:
        predicate: Mapping[str, Any] = self.statement["predicate"]
        return predicate

    @property
    def envelope(self) -> Any:
        """The entry's bytes read as JSON: payload and signature in base64."""
        return json.loads(self.data)

    @property
    def verdict(self) -> bool | None:
        """True if every check passed, False if one found something wrong, None if one could not be made."""
        answers = [item.ok for item in self.checks]
        return False if False in answers else None if None in answers else True


def evidence(asked: Asked, index: int) -> Evidence:
    """The evidence for entry `index`. Raises NotHere if there is none."""
    ledger = asked.ledger
    if not 0 <= index < ledger.size:
        raise NotHere(f"This ledger has {ledger.size:,} entries, numbered from 0; there is no entry {index}.")
    data = ledger.entry(index)
    envelope = open_envelope(data)
    kind = kind_of(envelope.statement)
    signer = asked.record("keys", "SELECT * FROM keys WHERE keyid = ?", envelope.keyid, keyid=envelope.keyid)
    logged = asked.record("log", "SELECT entry, run, seq FROM log WHERE entry = ?", index)
    run = next_in_run = None
    if logged and logged["run"] is not None:
        run = asked.record("runs", "SELECT entry, name, hash FROM runs WHERE entry = ?", logged["run"])
        if logged["seq"] is not None:
            query = "SELECT entry FROM log WHERE run = ? AND seq = ?"
            next_in_run = asked.value(query, logged["run"], logged["seq"] + 1)
    trust, pinned = trusted(asked)
    return Evidence(
        index=index,
        kind=kind,
        data=data,
        leaf_hash=merkle.leaf_hash(data).hex(),
        statement=envelope.statement,
        signature=envelope.signature.hex(),
        signer=signer or {"keyid": envelope.keyid, "role": "unknown", "entry": None, "name": None},
        run=run,
        next_in_run=next_in_run,
        checks=tuple(_checks(asked, index, data, envelope, trust)),
        pinned=pinned,
        address=asked.origin,
        inclusion=_inclusion(asked, index),
    )


def trusted(asked: Asked) -> tuple[Trust, bool]:
    """The log and root key: pinned by the project's trust.toml, or else (False) as the ledger itself states them."""
    policy = Path(asked.ledger.path).parent / "trust.toml"
    if policy.is_file():
        try:
            trust = load_trust(policy)
        except BitwitnessError:
            pass
        else:
            if trust.origin == asked.ledger.origin:
                return trust, True
    query = "SELECT * FROM keys WHERE role = ? ORDER BY entry"
    root = asked.record("keys", query + " LIMIT 1", "root", role="root")
    log = asked.record("keys", query + " DESC LIMIT 1", "log", role="log")
    if root is None or log is None:
        raise NotHere("This ledger has not enrolled its root and log keys yet.")
    origin = asked.ledger.origin
    return Trust(origin, Verifier(origin, PublicKey.from_hex(log["public"])), PublicKey.from_hex(root["public"])), False


def proof_file(asked: Asked, index: int) -> bytes:
    """The `.tlog-proof` file of an entry, as `ledger prove` writes it. Raises NotHere if no checkpoint covers it."""
    try:
        note = covering_checkpoint(asked.ledger, index)
        return tlog_proof_text(asked.ledger, index, note).encode("utf-8")
    except NoCheckpoint:
        raise NotHere(
            f"No signed checkpoint covers entry {index} yet. The log signs the next one with `ledger checkpoint`."
        ) from None


def _inclusion(asked: Asked, index: int) -> Inclusion | None:
    newest = asked.row("SELECT id, note FROM checkpoints WHERE size > ? ORDER BY id DESC LIMIT 1", index)
    if newest is None:
        return None
    checkpoint = parse_checkpoint(parse_note(newest["note"]).text)
    hashes = asked.ledger.inclusion_proof(index, checkpoint.size)
    rungs, root = merkle_path.climb(index, checkpoint.size, asked.ledger.leaf_hash(index), hashes)
    return Inclusion(checkpoint, newest["id"], tuple(hashes), merkle_path.draw(rungs, root))


def _checks(asked: Asked, index: int, data: bytes, envelope: Envelope, trust: Trust) -> Iterator[Check]:
    ledger = asked.ledger
    stored = ledger.leaf_hash(index)
    same = stored == merkle.leaf_hash(data)
    yield Check(
        "leaf", same, "the bytes have the leaf hash that stands in the tree" if same else "the bytes were edited"
    )
    yield _check("signer", lambda: _signer(ledger, index, data, trust))
    try:
        proof = proof_file(asked, index)
    except NotHere as missing:
        yield Check("inclusion", None, missing.message)
    else:
        yield from verify_proof(proof, trust)
    if KINDS[kind_of(envelope.statement)].chained:
        yield _check("chain", lambda: _chain(asked, envelope.statement["predicate"]))


def _check(name: str, test: Any) -> Check:
    try:
        return Check(name, True, test())
    except FoundWrong as error:
        return Check(name, False, str(error))
    except BitwitnessError as error:
        return Check(name, None, str(error))


def _signer(ledger: Ledger, index: int, data: bytes, trust: Trust) -> str:
    """The signature under the key entries of the whole ledger, later revocations included."""
    ring = KeyRing(trust.root)
    for (entry,) in ledger.connection.execute("SELECT entry FROM log WHERE kind = 'key' ORDER BY entry"):
        envelope = verify_entry(ledger.entry(entry), ring, entry)
        ring.add(entry, envelope.statement["predicate"])
    envelope = verify_entry(data, ring, index)
    key = ring.get(envelope.keyid)
    if key is None:
        raise EntryError("the signer is not enrolled")
    return f"{key.role} key {key.keyid[:16]}…, enrolled by entry {key.since} and not revoked here"


def _chain(asked: Asked, predicate: Mapping[str, Any]) -> str:
    seq = predicate["seq"]
    if seq == 0:
        return "the genesis: the first entry of its run"
    rows = asked.ledger.connection.execute(
        "SELECT leaf_hash FROM log JOIN entries ON idx = log.entry"
        " WHERE run = (SELECT entry FROM runs WHERE hash = ?) AND seq >= ? AND seq < ? ORDER BY seq",
        (predicate["run"], 0 if seq <= MAX_HISTORY else seq - 1, seq),
    )
    before = [bytes(row[0]) for row in rows]
    if not before or before[-1].hex() != predicate["prev"]:
        raise EntryError("prev is not the run's entry before this one", "chain")
    if seq > MAX_HISTORY:
        return f"follows entry {seq - 1} of its run (the history over all {seq:,} is checked by `ledger fsck`)"
    if len(before) != seq or merkle.root(before).hex() != predicate["history"]["root"]:
        raise EntryError("history is not the tree over the run's entries before this one", "chain")
    return f"follows entry {seq - 1} of its run, and its history is the tree over all {seq:,} before it"


__all__ = ["Evidence", "Inclusion", "evidence", "proof_file", "trusted"]
