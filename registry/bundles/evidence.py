"""Turns a bundle into entries that can be believed: logged, signed, and by keys that were allowed to sign.

Four steps, in this order, each believing nothing that a former one did not establish: the checkpoint's note is
signed by the policy's log; every entry is in the tree of that checkpoint at its position; the `key` entries are
by the policy's root; every other entry is signed by a key enrolled for its kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger import checkpoint, merkle
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry.entries import check
from bitwitness.ledger.entry.envelope import Envelope, open_envelope
from bitwitness.ledger.errors import (
    BitwitnessError,
    EntryError,
    FormatError,
    FoundWrong,
    ProofError,
    SignatureError,
)
from bitwitness.ledger.keys import PublicKey
from bitwitness.ledger.note import ED25519, Note, Verifier
from bitwitness.ledger.verify import KeyRing, verify_entry

from ..policy import Policy
from . import bundle, log_line
from .bundle import LoggedEntry


class EvidenceRefused(FoundWrong):
    """A part of the bundle is not what the log, the root or a signer said; the message is one line."""


class PolicyUnusable(BitwitnessError):
    """A key in the policy file is not a key (exit 2: nothing can be checked with it)."""


@dataclass(frozen=True)
class Entry:
    """A log entry at its position. Its leaf hash (hex) is the name by which other entries refer to it."""

    index: int
    raw: bytes
    leaf: str
    kind: str
    envelope: Envelope

    @property
    def predicate(self) -> Mapping[str, Any]:
        predicate: Mapping[str, Any] = self.envelope.statement["predicate"]
        return predicate

    @property
    def computed(self) -> Mapping[str, Any]:
        """What a step computed; for other kinds of a run, which state the same fields directly, the predicate."""
        computed: Mapping[str, Any] = self.predicate["computed"] if self.kind == "step" else self.predicate
        return computed

    def __str__(self) -> str:
        return f"entry {self.index} ({self.kind})"


def log_verifier(policy: Policy) -> Verifier:
    """The policy's log key. Raises PolicyUnusable."""
    try:
        verifier = Verifier.parse(policy.log.key)
    except BitwitnessError as error:
        raise PolicyUnusable(f"the policy's log.key is not usable: {error}") from error
    if verifier.name != policy.log.origin or verifier.type != ED25519:
        raise PolicyUnusable(f"the policy's log.key is not an Ed25519 key named {policy.log.origin}, its log.origin")
    return verifier


def log_verifiers(policy: Policy, ring: KeyRing) -> list[Verifier]:
    """The policy's log key, and the other log keys that the policy's root enrolled."""
    pinned = log_verifier(policy)
    enrolled = [Verifier(policy.log.origin, key.public) for key in ring if key.role == "log"]
    return [pinned, *(key for key in enrolled if key != pinned)]


def open_checkpoint(
    note: str, entries: Sequence[LoggedEntry], anchors: Sequence[bundle.Anchor], policy: Policy
) -> tuple[Checkpoint, Note, str]:
    """The checkpoint of the policy's log, its note with all signatures that count, and who signed it in one line.

    It is signed by the policy's log key, or by one that took its place (log_line.py).
    """
    quorum = policy.quorum
    cosigners = () if quorum is None else quorum.verifiers
    pinned, ring = log_verifier(policy), KeyRing(root_key(policy))
    followers = log_line.heirs(entries, ring, pinned)
    try:
        found, opened = checkpoint.open_checkpoint(note, [pinned, *followers], policy.log.origin, cosigners)
        if opened.by(pinned) is not None:
            signer = "the pinned log key"
        else:
            key = log_line.signing_key(found, opened, ring, pinned, anchors)
            signer = f"log key {key.keyid[:16]}…, which took the pinned one's place"
    except FoundWrong as error:
        raise EvidenceRefused(f"the checkpoint is not one of the policy's log: {error}") from error
    if found.extensions:
        raise EvidenceRefused("the checkpoint has extension lines; checkpoints of this ledger have none")
    return found, opened, signer


def open_entries(logged: Sequence[LoggedEntry], head: Checkpoint) -> list[Entry]:
    """Check that every entry is in the tree at its position, is well formed and is there once."""
    entries = []
    payloads: dict[bytes, int] = {}
    for item in logged:
        raw = item.raw()
        leaf = merkle.leaf_hash(raw)
        try:
            merkle.verify_inclusion(
                item.index,
                head.size,
                leaf,
                [bytes.fromhex(node) for node in item.proof],
                head.root,
            )
        except ProofError as error:
            raise EvidenceRefused(f"entry {item.index} is not in the log: {error}") from error
        try:
            envelope = open_envelope(raw)
            kind = check(envelope.statement)
        except FormatError as error:
            raise EvidenceRefused(f"entry {item.index}: {error}") from error
        twin = payloads.setdefault(envelope.payload, item.index)
        if twin != item.index:
            raise EvidenceRefused(f"entries {twin} and {item.index} are one statement under two signatures")
        entries.append(Entry(item.index, raw, leaf.hex(), kind.name, envelope))
    return entries


def root_key(policy: Policy) -> PublicKey:
    """The policy's root key. Raises PolicyUnusable."""
    try:
        return PublicKey.from_hex(policy.root.key)
    except BitwitnessError as error:
        raise PolicyUnusable(f"the policy's root.key is not usable: {error}") from error


def authenticate(
    entries: Sequence[Entry], head: Checkpoint, signed: Note, policy: Policy, anchors: Sequence[bundle.Anchor]
) -> tuple[KeyRing, str]:
    """Check every entry's signature and its signer's right to make it: the keys, and what they are in one line.

    The root must have enrolled the pinned log key, too, and not have ended it before the checkpoint ``head``, unless
    a key that took its place ``signed`` that checkpoint (log_line.py).

    `key` entries come first: only with all of them read is it known what was revoked, and from where on.
    """
    ring = KeyRing(root_key(policy))
    roles: dict[str, str] = {}
    key_entries = [entry for entry in entries if entry.kind == "key"]
    if not key_entries:
        raise EvidenceRefused("the bundle enrols no keys")
    for entry in key_entries:
        _verify(entry, ring)
        try:
            ring.add(entry.index, entry.predicate)
        except FoundWrong as error:
            raise EvidenceRefused(f"{entry}: {error}") from error
        roles.setdefault(entry.predicate["key"]["keyid"], entry.predicate["key"]["role"])
    for entry in entries:
        if entry.kind != "key":
            _verify(entry, ring)
    try:
        log_line.signing_key(head, signed, ring, log_verifier(policy), anchors)
    except FoundWrong as error:
        raise EvidenceRefused(str(error)) from error
    ended = sum(1 for keyid in roles if (key := ring.get(keyid)) is not None and key.until is not None)
    said = ", ".join(sorted(f"{role} {keyid[:16]}…" for keyid, role in roles.items())[:8])
    return ring, f"{len(roles)} keys enrolled by the pinned root, {ended} revoked or replaced: {said}"


def _verify(entry: Entry, ring: KeyRing) -> None:
    try:
        verify_entry(entry.raw, ring, entry.index)
    except EntryError as error:
        reason = error.reason if error.where == f"entry {entry.index}" else str(error)
        raise EvidenceRefused(f"{entry}: {reason}") from error
    except SignatureError as error:
        raise EvidenceRefused(f"{entry}: {error}") from error
