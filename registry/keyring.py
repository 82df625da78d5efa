"""Which key may sign what, and up to which log position, as the pinned root key says.

Only the root key is trusted. It signs `key` entries; they enrol a key in one role, replace it, or end it from a
log position on. An entry counts if its key was enrolled before it, in a role that its kind allows, and no
revocation in the bundle reaches back to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bitwitness.ledger.entries import check
from bitwitness.ledger.envelope import Envelope
from bitwitness.ledger.errors import FoundWrong
from bitwitness.ledger.keys import PublicKey


class KeyRefused(FoundWrong):
    """A key may not sign an entry, or a `key` entry is not by the pinned root; the message names the entry."""


@dataclass(frozen=True)
class _Enrolment:
    public: PublicKey
    role: str
    since: int
    replaces: str | None


class Keyring:
    """Keys by keyid, filled from the `key` entries of a bundle in log order."""

    def __init__(self, root: PublicKey) -> None:
        self._root = root
        self._keys: dict[str, _Enrolment] = {}
        self._ends: dict[str, int] = {}

    @classmethod
    def read(cls, root: PublicKey, entries: Iterable[tuple[int, Envelope]]) -> Keyring:
        """Check every `key` entry of ``entries`` (log index, envelope) against the root key and take it in."""
        ring = cls(root)
        for index, envelope in sorted(entries, key=lambda item: item[0]):
            if check(envelope.statement).name == "key":
                ring._take(index, envelope)
        if not ring._keys:
            raise KeyRefused("the bundle enrols no keys")
        return ring

    def _take(self, index: int, envelope: Envelope) -> None:
        if envelope.keyid != self._root.keyid:
            raise KeyRefused(
                f"entry {index} changes keys but is signed by {envelope.keyid[:16]}…, not by the pinned root"
            )
        envelope.verify(self._root)
        predicate = envelope.statement["predicate"]
        key, action = predicate["key"], predicate["action"]
        known = self._keys.get(key["keyid"])
        if action == "revoke":
            if known is not None and known.role != key["role"]:
                raise KeyRefused(f"entry {index} revokes a {key['role']} key that is enrolled as {known.role}")
            self._end(key["keyid"], predicate["from"])
            return
        if known is not None:
            raise KeyRefused(f"entry {index} enrols key {key['keyid'][:16]}… a second time")
        replaces = predicate.get("replaces")
        if replaces is not None:
            old = self._keys.get(replaces)
            if old is None or old.role != key["role"]:
                raise KeyRefused(f"entry {index} replaces a key that is not enrolled as {key['role']}")
            self._end(replaces, index)
        public = PublicKey.from_hex(key["public"])
        self._keys[key["keyid"]] = _Enrolment(public, key["role"], index, replaces)

    def _end(self, keyid: str, index: int) -> None:
        self._ends[keyid] = min(index, self._ends.get(keyid, index))

    def verify(self, index: int, envelope: Envelope) -> None:
        """Check the signature of an entry, and that its key might make it. Raises KeyRefused or SignatureError."""
        kind = check(envelope.statement)
        if kind.name == "key":
            envelope.verify(self._root)
            # The root's own enrolment is entry 0, made by itself; its end, if any, is in the bundle like others.
            if index >= self._ends.get(self._root.keyid, index + 1):
                raise KeyRefused(f"entry {index} (key): the root key was revoked before it")
            return
        enrolment = self._keys.get(envelope.keyid)
        where = f"entry {index} ({kind.name}): key {envelope.keyid[:16]}…"
        if enrolment is None or enrolment.since >= index:
            raise KeyRefused(f"{where} was not enrolled before it")
        if enrolment.role not in kind.roles:
            raise KeyRefused(f"{where} is enrolled as {enrolment.role}; only {' or '.join(kind.roles)} may sign this")
        if index >= self._ends.get(envelope.keyid, index + 1):
            raise KeyRefused(f"{where} was revoked from entry {self._ends[envelope.keyid]} on")
        envelope.verify(enrolment.public)

    def succeeds(self, keyid: str, ancestor: str) -> bool:
        """Whether ``keyid`` is ``ancestor`` or replaced it, directly or through others."""
        seen: set[str] = set()
        current: str | None = keyid
        while current is not None and current not in seen:
            if current == ancestor:
                return True
            seen.add(current)
            enrolment = self._keys.get(current)
            current = enrolment.replaces if enrolment else None
        return False

    def describe(self) -> str:
        roles = sorted(f"{enrolment.role} {keyid[:16]}…" for keyid, enrolment in self._keys.items())
        ended = f", {len(self._ends)} revoked or replaced" if self._ends else ""
        return f"{len(roles)} keys enrolled by the pinned root{ended}: {', '.join(roles[:8])}"
