"""Beacons: numbers that nobody knew when an audit was announced, from which its sample is drawn.

An `audit-intent` names its beacon, the `audit` carries it with what proves it, and everyone who reads both computes the
seed again (docs/formats/audit.md, Beacon). Pure functions on authenticated predicates: writer and verifier share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .. import merkle
from ..checkpoint import Checkpoint, parse_checkpoint
from ..errors import BadKey, FoundWrong, ProofError, SignatureError
from ..files import rfc3339
from ..keys import PublicKey
from ..note import COSIGNATURE, Verifier, parse_note, verify_cosignature

Json = Mapping[str, Any]

_DOMAIN = b"bitwitness/sample/v1\x00"
SKEW = 600
"""Seconds by which the clocks of auditor and witness may differ."""
PATIENCE = 86_400
"""Seconds after the intent's time within which its beacon must have been given: who waits longer, chooses."""


class BeaconWrong(FoundWrong):
    """An audit's sample was not drawn from the beacon that its intent names."""


def sample_seed(intent: bytes, beacon: bytes = b"") -> bytes:
    """SHA-256("bitwitness/sample/v1" ‖ 00 ‖ the intent's leaf hash ‖ beacon); no beacon means self-chosen."""
    return hashlib.sha256(_DOMAIN + intent + beacon).digest()


@dataclass(frozen=True)
class Cosignature:
    """A witness's cosignature of a checkpoint, and the proof that the intent is in that checkpoint's tree.

    `time` is in seconds since 1970, `signature` has 64 bytes, `proof` is that of inclusion.
    """

    key: PublicKey
    size: int
    root: bytes
    time: int
    signature: bytes
    proof: Sequence[bytes]

    @property
    def beacon(self) -> bytes:
        """The 72 bytes of a cosignature line behind the key id: time, 8 bytes big-endian, then the signature."""
        return self.time.to_bytes(8, "big") + self.signature

    @classmethod
    def from_json(cls, fields: Json) -> Cosignature:
        return cls(
            PublicKey.from_hex(fields["public"]),
            fields["size"],
            bytes.fromhex(fields["root"]),
            fields["time"],
            bytes.fromhex(fields["signature"]),
            [bytes.fromhex(node) for node in fields["proof"]],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "proof": [node.hex() for node in self.proof],
            "public": self.key.raw.hex(),
            "root": self.root.hex(),
            "signature": self.signature.hex(),
            "size": self.size,
            "time": self.time,
        }

    def verify(self, origin: str, index: int, leaf: bytes) -> None:
        """Check signature and proof for the intent at `index` of the log `origin`. Raises BeaconWrong."""
        if self.size <= index:
            raise BeaconWrong(f"its beacon cosigns {self.size} entries, the intent is number {index}: it is older")
        try:
            merkle.verify_inclusion(index, self.size, leaf, self.proof, self.root)
        except ProofError as error:
            raise BeaconWrong(f"its beacon cosigns a tree that does not hold the intent: {error}") from None
        try:
            verify_cosignature(Checkpoint(origin, self.size, self.root).format(), self.key, self.time, self.signature)
        except SignatureError:
            raise BeaconWrong("its beacon is not a cosignature by the key that it names") from None


def round_randomness(signature: bytes) -> bytes:
    """What a drand round gives: SHA-256 of its signature."""
    return hashlib.sha256(signature).digest()


def check_seed(audit: Json, intent: Json, *, leaf: bytes, index: int, answer: int, origin: str) -> None:
    """Check basis, beacon and seed of an audit, at `answer` of the log `origin`, against its intent, at `index`.

    `leaf` is the intent's leaf hash. Whether the witness or the source can be trusted is for a policy to say; a round's
    own signature is checked apart (drand.py). Raises BeaconWrong.
    """
    wanted = intent["beacon"]
    if wanted["kind"] == "none":
        if audit["basis"] != "self-chosen" or audit["seed"] != sample_seed(leaf).hex():
            raise BeaconWrong("it did not draw its sample by the seed that its intent fixes")
        return
    if audit["basis"] != "beacon":
        raise BeaconWrong(f"its intent names a beacon of the kind {wanted['kind']}, and it has none")
    given = audit["beacon"]
    if given["kind"] != wanted["kind"]:
        raise BeaconWrong(
            f"its beacon is of the kind {given['kind']}, its intent names one of the kind {wanted['kind']}"
        )
    try:
        cosignature = Cosignature.from_json(given["cosignature"])
    except BadKey as error:
        raise BeaconWrong(f"its beacon names no key: {error}") from None
    cosignature.verify(origin, index, leaf)
    if cosignature.size > answer:
        raise BeaconWrong(f"its beacon cosigns {cosignature.size} entries, the audit itself is number {answer}")
    delay = cosignature.time - seconds(intent["time"])
    if delay < -SKEW:
        raise BeaconWrong(f"its beacon is {-delay} seconds older than its intent says to be")
    if delay > PATIENCE:
        raise BeaconWrong(f"its beacon came {delay} seconds after its intent, more than {PATIENCE}")
    if wanted["kind"] == "cosignature":
        if cosignature.key.keyid != wanted["witness"]:
            raise BeaconWrong("its beacon is by another witness than its intent names")
        beacon = cosignature.beacon
    else:
        beacon = bytes.fromhex(given["round"]["randomness"])
        if round_randomness(bytes.fromhex(given["round"]["signature"])) != beacon:
            raise BeaconWrong("the randomness of its round is not the SHA-256 of the round's signature")
    if audit["seed"] != sample_seed(leaf, beacon).hex():
        raise BeaconWrong("it did not draw its sample by the seed that its beacon gives")


def seconds(time: str) -> int:
    """Seconds since 1970 of an entry's time."""
    return int(rfc3339.parse(time).timestamp())


def find_cosignature(
    notes: Iterable[str], origin: str, witness: PublicKey, index: int
) -> tuple[Checkpoint, int, bytes] | None:
    """The first cosignature of `witness`, by its time, among notes whose checkpoint holds the entry at `index`.

    Returns the checkpoint, the time and the signature's 64 bytes. Lines that do not verify are passed over, as are
    notes of another log. Raises NoteError if one is malformed.
    """
    found: list[tuple[int, int, Checkpoint, bytes]] = []
    for text in notes:
        parsed = parse_note(text)
        checkpoint = parse_checkpoint(parsed.text)
        if checkpoint.origin != origin or checkpoint.size <= index or checkpoint.extensions:
            continue
        for line in parsed.lines:
            if line.key_id != Verifier(line.name, witness, COSIGNATURE).key_id or len(line.signature) != 72:
                continue
            time, signature = int.from_bytes(line.signature[:8], "big"), line.signature[8:]
            with suppress(SignatureError):
                verify_cosignature(parsed.text, witness, time, signature)
                found.append((time, checkpoint.size, checkpoint, signature))
    if not found:
        return None
    time, _size, checkpoint, signature = min(found, key=lambda item: item[:2])
    return checkpoint, time, signature
