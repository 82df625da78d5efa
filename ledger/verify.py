"""The independent verifier of entries and proofs: raw bytes in, checks out.

Never imports the writer (store, admission, derived, run_tail, run_chain), so a mistake in one cannot hide in the
other. Nothing that a prover chose is believed: sizes and roots come from signed checkpoints, roles and keys from
`key` entries under the pinned root key.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from . import entries, jcs, merkle, tlog_proof
from .checkpoint import Checkpoint
from .entries import Kind
from .envelope import Envelope
from .errors import BitwitnessError, EntryError, FoundWrong
from .keys import PublicKey
from .note import Note
from .note_head import MAX_HASHES
from .trust import Trust, witness_line

_T = TypeVar("_T")


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


def enrolment_key(data: bytes, root: PublicKey) -> EnrolledKey:
    """The key that a `key` entry enrols, the entry being signed by `root` itself. Raises EntryError and others."""
    envelope, kind = entries.read(data)
    predicate = envelope.statement["predicate"]
    if kind.name != "key" or predicate["action"] not in ("enrol", "rotate"):
        raise EntryError("does not enrol a key", "signer's entry")
    envelope.verify(root)
    key = predicate["key"]
    return EnrolledKey(key["keyid"], key["role"], PublicKey.from_hex(key["public"]), 0)


# Proof files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProvenEntry:
    """An entry with its place in the tree."""

    data: bytes
    index: int
    hashes: tuple[bytes, ...]


def extra_bytes(entry: bytes, signer: ProvenEntry) -> bytes:
    """What goes into a proof file's `extra` line so that the file stands alone (docs/formats/standalone-proof.md).

    JCS of {"entry", "signer": {"entry", "hashes", "index"}}: the entry, and the `key` entry that enrols its signer
    with an inclusion proof to the same checkpoint.
    """
    return jcs.encode(
        {
            "entry": base64.b64encode(entry).decode("ascii"),
            "signer": {
                "entry": base64.b64encode(signer.data).decode("ascii"),
                "hashes": [item.hex() for item in signer.hashes],
                "index": signer.index,
            },
        }
    )


def read_extra(extra: bytes) -> tuple[bytes, ProvenEntry]:
    """Take `extra_bytes` apart strictly. Raises EntryError or JsonError."""
    value = jcs.parse(extra, max_bytes=tlog_proof.MAX_LINE)
    if not isinstance(value, dict) or value.keys() != {"entry", "signer"}:
        raise EntryError('not {"entry","signer"}', "extra")
    signer = value["signer"]
    if not isinstance(signer, dict) or signer.keys() != {"entry", "hashes", "index"}:
        raise EntryError('not {"entry","hashes","index"}', "extra.signer")
    index, hashes = signer["index"], signer["hashes"]
    if type(index) is not int or index < 0:
        raise EntryError("not an index", "extra.signer.index")
    if not isinstance(hashes, list) or len(hashes) > MAX_HASHES:
        raise EntryError(f"not a list of at most {MAX_HASHES} hashes", "extra.signer.hashes")
    return _decoded(value["entry"]), ProvenEntry(_decoded(signer["entry"]), index, tuple(map(_hash, hashes)))


def verify_proof(text: str | bytes, trust: Trust, entry: bytes | None = None) -> list[Check]:
    """Check a `.tlog-proof` file against pinned keys; `entry` is needed only where the file does not hold it.

    Each check builds on those before it; what can no longer be checked is reported as such.
    """
    verdict = _Verdict()
    opened = verdict.attempt("proof", lambda: _open_proof(text, entry))
    if opened is not None:
        proof, data, signer = opened
        included = verdict.attempt("inclusion", lambda: _check_inclusion(proof, data, trust))
        if included is not None and trust.asks_for_witnesses:
            verdict.checks.append(Check("witnesses", *witness_line(trust.witnesses, included[1])))
        envelope = verdict.attempt("entry", lambda: _check_form(data))
        if included is not None and envelope is not None:
            head, signed = included[0], envelope
            verdict.attempt("signature", lambda: _check_signer(proof.index, signed, signer, head, trust))
    verdict.skip("inclusion", "entry", "signature")
    return verdict.checks


class _Verdict:
    """Collects checks, each made by a step that returns its detail and result or raises why not."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def attempt(self, name: str, step: Callable[[], tuple[str, _T]]) -> _T | None:
        try:
            detail, value = step()
        except FoundWrong as error:
            self.checks.append(Check(name, False, str(error)))
        except BitwitnessError as error:
            self.checks.append(Check(name, None, str(error)))
        else:
            self.checks.append(Check(name, True, detail))
            return value
        return None

    def skip(self, *names: str) -> None:
        """Report those of these checks that were not made."""
        made = {item.name for item in self.checks}
        for name in names:
            if name not in made:
                self.checks.append(Check(name, None, "not checked, since a check above did not pass"))


def _open_proof(
    text: str | bytes, entry: bytes | None
) -> tuple[str, tuple[tlog_proof.Proof, bytes, ProvenEntry | None]]:
    proof = tlog_proof.parse(text)
    signer = None
    if proof.extra is not None:
        held, signer = read_extra(proof.extra)
        if entry is not None and entry != held:
            raise EntryError("it holds another entry than the one given", "proof")
        entry = held
    if entry is None:
        raise EntryMissing()
    return f"of entry {proof.index}, with {len(proof.hashes)} hashes", (proof, entry, signer)


def _check_inclusion(proof: tlog_proof.Proof, data: bytes, trust: Trust) -> tuple[str, tuple[Checkpoint, Note]]:
    checkpoint, note = tlog_proof.verify(proof, merkle.leaf_hash(data), [trust.log], trust.origin, trust.cosigners)
    return f"entry {proof.index} is in the log {checkpoint.origin} of {checkpoint.size} entries", (checkpoint, note)


def _check_form(data: bytes) -> tuple[str, Envelope]:
    envelope, kind = entries.read(data)
    return f"a {kind.name} entry in canonical form", envelope


def _check_signer(
    index: int, envelope: Envelope, signer: ProvenEntry | None, checkpoint: Checkpoint, trust: Trust
) -> tuple[str, EnrolledKey]:
    if signer is None:
        raise EnrolmentMissing()
    key = enrolment_key(signer.data, trust.root)
    leaf_hash = merkle.leaf_hash(signer.data)
    merkle.verify_inclusion(signer.index, checkpoint.size, leaf_hash, signer.hashes, checkpoint.root)
    roles = entries.check(envelope.statement).signers(envelope.statement["predicate"])
    if key.role not in roles:
        raise EntryError(f"a {key.role} key signed it, not a {' or '.join(roles)} key", "signer")
    if signer.index > index:
        raise EntryError(f"it was enrolled later, by entry {signer.index}", "signer")
    envelope.verify(key.public)
    return f"by {key.role} key {key.keyid[:16]}…, which the pinned root key enrolled (entry {signer.index})", key


class EntryMissing(BitwitnessError):
    """A proof file without its entry, and none given."""

    def __init__(self) -> None:
        super().__init__("the file does not hold its entry; give it with --entry FILE")


class EnrolmentMissing(BitwitnessError):
    """A proof file that does not say who enrolled the signer."""

    def __init__(self) -> None:
        super().__init__("the file does not hold the enrolment of its signer; verify the whole ledger instead")


def _decoded(text: object) -> bytes:
    if isinstance(text, str):
        try:
            data = base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            pass
        else:
            if base64.b64encode(data).decode("ascii") == text:
                return data
    raise EntryError("not standard padded base64", "extra")


def _hash(text: object) -> bytes:
    if isinstance(text, str) and len(text) == 64:
        try:
            data = bytes.fromhex(text)
        except ValueError:
            pass
        else:
            if data.hex() == text:
                return data
    raise EntryError("not 64 lower-case hex digits", "extra.signer.hashes")
