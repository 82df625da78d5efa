"""The independent verifier of entries: raw bytes in, checks out (proof_file, verify_ledger).

Never imports the writer (store, admission, derived, run_tail, run_chain), so a mistake in one cannot hide in the
other. Nothing that a prover chose is believed: sizes and roots come from signed checkpoints, roles and keys from
`key` entries under the pinned root key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .entry import entries
from .entry.entries import Kind
from .entry.envelope import Envelope
from .errors import EntryError
from .keys import PublicKey


@dataclass(frozen=True)
class Check:
    """One line of a verdict. `ok` is True, False (found wrong) or None (could not be checked)."""

    name: str
    ok: bool | None
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


def exit_code(checks: Iterable[Check]) -> int:
    """0 if every check passed, 1 if one found something wrong, else 2 (also for no checks at all)."""
    answers = [item.ok for item in checks]
    return 1 if False in answers else 2 if None in answers or not answers else 0


class KeyEnd(NamedTuple):
    """Entry `at` said that a key no longer counts from entry `until` on: it was revoked, or `replaced`."""

    until: int
    at: int
    replaced: bool


@dataclass(frozen=True)
class EnrolledKey:
    """A key as its entries say: signatures count from entry `since` to before `until`.

    Every end is kept with the entry that stated it. A later one may reach further back, but what an earlier one had
    ended already never counted, and does not pass for signed in good time.
    """

    keyid: str
    role: str
    public: PublicKey
    since: int
    ends: tuple[KeyEnd, ...] = ()
    replaces: str | None = None

    @property
    def until(self) -> int | None:
        """The first entry that the key cannot sign; None if nothing ended it."""
        return min((end.until for end in self.ends), default=None)

    def ended_before(self, index: int) -> bool:
        """Whether an entry before `index` had ended the key from `index` or earlier on."""
        return any(end.until <= index and end.at <= index for end in self.ends)


class Disowned(EntryError):
    """The key counted when the entry was made, but a later entry revoked it from an index at or before it."""

    def __init__(self, index: int, key: EnrolledKey) -> None:
        super().__init__(f"key {key.keyid[:16]}… was revoked from entry {key.until} on", f"entry {index}")
        self.key = key


class KeyRing:
    """The keys of a ledger, made from its `key` entries in order, under a root key that is known beforehand."""

    def __init__(self, root: PublicKey) -> None:
        self._root = root
        self._keys: dict[str, EnrolledKey] = {}

    def __iter__(self) -> Iterator[EnrolledKey]:
        return iter(self._keys.values())

    def get(self, keyid: str) -> EnrolledKey | None:
        return self._keys.get(keyid)

    def add(self, index: int, predicate: Mapping[str, Any]) -> None:
        """Take in the predicate of a `key` entry whose signature is verified. Raises EntryError."""
        action, stated = predicate["action"], predicate["key"]
        keyid, role = stated["keyid"], stated["role"]
        if action == "revoke":
            self._end(keyid, role, KeyEnd(predicate["from"], index, replaced=False))
            return
        if keyid in self._keys:
            raise EntryError(f"key {keyid[:16]}… is enrolled a second time", f"entry {index}")
        if action == "rotate":
            self._end(predicate["replaces"], role, KeyEnd(index, index, replaced=True))
        public = PublicKey.from_hex(stated["public"])
        self._keys[keyid] = EnrolledKey(keyid, role, public, index, replaces=predicate.get("replaces"))

    def signer(self, keyid: str, roles: Iterable[str], index: int) -> EnrolledKey:
        """The enrolled key that may sign entry `index` in one of these roles. Raises EntryError."""
        key = self._keys.get(keyid)
        if key is None and index == 0 and keyid == self._root.keyid:
            key = EnrolledKey(keyid, "root", self._root, 0)
        if key is None:
            raise EntryError(f"key {keyid[:16]}… is not enrolled", f"entry {index}")
        if key.role not in roles:
            raise EntryError(f"a {key.role} key signed it, not a {' or '.join(roles)} key", f"entry {index}")
        if index < key.since:
            raise EntryError(f"key {keyid[:16]}… was enrolled later", f"entry {index}")
        if key.ended_before(index):
            raise EntryError(f"key {keyid[:16]}… is revoked from entry {key.until} on", f"entry {index}")
        if key.until is not None and index >= key.until:
            raise Disowned(index, key)
        return key

    def revocation(self, keyid: str) -> int | None:
        """The first entry that revoked the key; None if nothing ended it but a key that took its place."""
        key = self._keys.get(keyid)
        return None if key is None else min((end.at for end in key.ends if not end.replaced), default=None)

    def may_continue(self, keyid: str, first: str) -> bool:
        """Whether `keyid` is the key `first`, or replaced it, directly or through others."""
        seen: str | None = keyid
        while seen is not None:
            if seen == first:
                return True
            key = self._keys.get(seen)
            seen = None if key is None else key.replaces
        return False

    def _end(self, keyid: str, role: str, end: KeyEnd) -> None:
        key = self._keys.get(keyid)
        if key is None or key.role != role:
            raise EntryError(f"there is no {role} key {keyid[:16]}… to end")
        self._keys[keyid] = replace(key, ends=(*key.ends, end))

    def __reduce__(self) -> tuple[Any, ...]:
        rows = [(k.keyid, k.role, k.public.raw, k.since, k.ends, k.replaces) for k in self]
        return _ring_from_rows, (self._root.raw, rows)


def _ring_from_rows(root: bytes, rows: list[tuple[Any, ...]]) -> KeyRing:
    """A key ring as it travels to another process; OpenSSL's key objects cannot."""
    ring = KeyRing(PublicKey(root))
    for keyid, role, raw, *rest in rows:
        ring._keys[keyid] = EnrolledKey(keyid, role, PublicKey(raw), *rest)
    return ring


def verify_entry(data: bytes, keys: KeyRing, index: int) -> Envelope:
    """Check an entry alone: canonical bytes, its kind's table, a signer of the right role, the signature.

    Raises EntryError, JsonError or SignatureError.
    """
    envelope, kind = entries.read(data)
    verify_signature(envelope, kind, keys, index)
    return envelope


def verify_signature(envelope: Envelope, kind: Kind, keys: KeyRing, index: int) -> None:
    """Check the signature of entry `index`, and that its signer may sign this kind there.

    Raises EntryError (Disowned if only a later revocation speaks against it; the signature is sound then) or
    SignatureError.
    """
    try:
        key = keys.signer(envelope.keyid, kind.signers(envelope.statement["predicate"]), index)
    except Disowned as revoked:
        envelope.verify(revoked.key.public)
        raise
    envelope.verify(key.public)
