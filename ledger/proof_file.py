"""The independent verifier of proof files: a `.tlog-proof` with what it needs beside pinned keys, in its `extra` line.

docs/formats/standalone-proof.md describes what `extra` holds, of which nothing is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from . import _base64, jcs, merkle, tlog_proof
from .checkpoint import Checkpoint
from .entry import entries
from .entry.envelope import Envelope
from .errors import BitwitnessError, EntryError, FoundWrong
from .handover import Handover, ProvenEntry, decoded, handovers_json, log_line, read_handovers, read_proven
from .keys import PublicKey
from .note import Note
from .trust import Trust, witness_line
from .verify import Check, EnrolledKey

_T = TypeVar("_T")


class Extra(NamedTuple):
    """What an `extra` line holds. `entry` is None where it has no room for it."""

    entry: bytes | None
    signer: ProvenEntry
    handovers: tuple[Handover, ...] = ()


def extra_bytes(entry: bytes | None, signer: ProvenEntry, handovers: Sequence[Handover] = ()) -> bytes:
    """What goes into a proof file's `extra` line so that the file stands alone.

    JCS of {"entry", "signer": {"entry", "hashes", "index"}, "handovers"}: the entry; the `key` entry that enrols its
    signer with an inclusion proof to the same checkpoint; how the key that signed the checkpoint took the place of
    earlier ones, absent where none did.
    """
    held = {} if entry is None else {"entry": _base64.encode(entry)}
    return jcs.encode({**held, "signer": signer.to_json(), **handovers_json(handovers)})


def read_extra(extra: bytes) -> Extra:
    """Take `extra_bytes` apart strictly. Raises EntryError or JsonError."""
    value = jcs.parse(extra, max_bytes=tlog_proof.MAX_LINE)
    if not isinstance(value, dict) or not {"signer"} <= value.keys() <= {"entry", "handovers", "signer"}:
        raise EntryError('not {"signer"} with "entry" and "handovers" or without', "extra")
    entry = decoded(value["entry"], "extra.entry") if "entry" in value else None
    return Extra(entry, read_proven(value["signer"], "extra.signer"), read_handovers(value, "extra"))


def verify_proof(text: str | bytes, trust: Trust, entry: bytes | None = None) -> list[Check]:
    """Check a `.tlog-proof` file against pinned keys; `entry` is needed only where the file does not hold it.

    Each check builds on those before it; what can no longer be checked is reported as such.
    """
    verdict = _Verdict()
    opened = verdict.attempt("proof", lambda: _open_proof(text, entry))
    if opened is not None:
        proof, data, held = opened
        handovers = () if held is None else held.handovers
        signer = None if held is None else held.signer
        included = verdict.attempt("inclusion", lambda: _check_inclusion(proof, data, handovers, trust))
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


def _open_proof(text: str | bytes, entry: bytes | None) -> tuple[str, tuple[tlog_proof.Proof, bytes, Extra | None]]:
    proof = tlog_proof.parse(text)
    held = None if proof.extra is None else read_extra(proof.extra)
    if held is not None and held.entry is not None:
        if entry is not None and entry != held.entry:
            raise EntryError("it holds another entry than the one given", "proof")
        entry = held.entry
    if entry is None:
        raise EntryMissing()
    return f"of entry {proof.index}, with {len(proof.hashes)} hashes", (proof, entry, held)


def _check_inclusion(
    proof: tlog_proof.Proof, data: bytes, handovers: Sequence[Handover], trust: Trust
) -> tuple[str, tuple[Checkpoint, Note]]:
    line = log_line(trust, handovers)
    checkpoint, note = line.open(proof.checkpoint_note, trust.cosigners)
    merkle.verify_inclusion(proof.index, checkpoint.size, merkle.leaf_hash(data), proof.hashes, checkpoint.root)
    said = f"entry {proof.index} is in the log {checkpoint.origin} of {checkpoint.size} entries"
    if note.by(trust.log) is None:
        by = next(item for item in reversed(line.verifiers) if note.by(item) is not None)
        said += f", signed by the log key {by.key.keyid[:16]}…, which took the pinned one's place"
    return said, (checkpoint, note)


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


def enrolment_key(data: bytes, root: PublicKey) -> EnrolledKey:
    """The key that a `key` entry enrols, the entry being signed by `root` itself.

    Raises EntryError and others, EnrolledByAnother where another key signed it.
    """
    envelope, kind = entries.read(data)
    predicate = envelope.statement["predicate"]
    if kind.name != "key" or predicate["action"] not in ("enrol", "rotate"):
        raise EntryError("does not enrol a key", "signer's entry")
    if envelope.keyid != root.keyid:
        raise EnrolledByAnother(envelope.keyid)
    envelope.verify(root)
    key = predicate["key"]
    return EnrolledKey(key["keyid"], key["role"], PublicKey.from_hex(key["public"]), 0)


class EntryMissing(BitwitnessError):
    """A proof file without its entry, and none given."""

    def __init__(self) -> None:
        super().__init__("the file does not hold its entry; give it with --entry FILE")


class EnrolmentMissing(BitwitnessError):
    """A proof file that does not say who enrolled the signer."""

    def __init__(self) -> None:
        super().__init__("the file does not hold the enrolment of its signer; verify the whole ledger instead")


class EnrolledByAnother(BitwitnessError):
    """The signer was enrolled by another key than the pinned root, which may have enrolled that one."""

    def __init__(self, keyid: str) -> None:
        super().__init__(
            f"key {keyid[:16]}… enrolled the signer, not the pinned root key; whether the root let it only the whole"
            " ledger says: verify that instead"
        )
