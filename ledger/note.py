"""Signed notes, C2SP signed-note v1: text, an empty line, and signature lines (docs/formats/note.md).

Two signature types are understood: Ed25519 (0x01), by which the log signs, and timestamped Ed25519
cosignatures (0x04, C2SP tlog-cosignature), by which witnesses sign. Lines of other types are signatures of
unknown keys.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from . import _base64
from .errors import BadKey, MalformedSignature, NoKnownSigner, NoteError, SignatureError
from .keys import PublicKey, Signer

ED25519 = 0x01
COSIGNATURE = 0x04
MAX_NOTE = 1_000_000
MAX_SIGNATURES = 100  # the specification asks for at least 16
MAX_TIMESTAMP = 2**63 - 1

_KEY_BYTES = 32
_PREFIX = "\N{EM DASH} "
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f]")
_KEY_ID = re.compile("[0-9a-f]{8}")


@dataclass(frozen=True)
class Verifier:
    """A trusted key under the name by which it signs; `type` is ED25519 or COSIGNATURE."""

    name: str
    key: PublicKey
    type: int = ED25519

    def __post_init__(self) -> None:
        check_name(self.name, "verifier key")
        if self.type not in (ED25519, COSIGNATURE):
            raise NoteError("verifier key", f"the signature type 0x{self.type:02x} is not supported")

    @property
    def key_id(self) -> bytes:
        """The first 4 bytes of SHA-256(name ‖ 0A ‖ type ‖ public key)."""
        return _key_id(self.name, self.type, self.key.raw)

    @property
    def vkey(self) -> str:
        """`NAME+KEYID+base64(type ‖ public key)`."""
        return f"{self.name}+{self.key_id.hex()}+{_base64.encode(bytes([self.type]) + self.key.raw)}"

    @classmethod
    def parse(cls, vkey: str) -> Verifier:
        """Read a `vkey` line strictly. Raises NoteError, for unsupported signature types too."""
        if not isinstance(vkey, str) or len(vkey) > 1000:
            raise NoteError("verifier key", "not a line of at most 1000 characters")
        name, _, rest = vkey.partition("+")
        digits, _, encoded = rest.partition("+")
        check_name(name, "verifier key")
        data = _base64.decode(encoded)
        if not _KEY_ID.fullmatch(digits) or not data:
            raise NoteError("verifier key", "not NAME+KEYID+KEY (8 hex digits, padded base64)")
        if data[0] not in (ED25519, COSIGNATURE):
            raise NoteError("verifier key", f"the signature type 0x{data[0]:02x} is not supported")
        try:
            verifier = cls(name, PublicKey(data[1:]), data[0])
        except BadKey as error:
            raise NoteError("verifier key", str(error)) from None
        if verifier.key_id.hex() != digits:
            raise NoteError("verifier key", f"the key id is {verifier.key_id.hex()}, not {digits}")
        return verifier


@dataclass(frozen=True)
class SignatureLine:
    """One signature line as it stands: nothing is verified yet."""

    name: str
    key_id: bytes
    signature: bytes

    def format(self) -> str:
        return f"{_PREFIX}{self.name} {_base64.encode(self.key_id + self.signature)}\n"


@dataclass(frozen=True)
class Verified:
    """A signature that was verified. `timestamp` is seconds since 1970 for cosignatures, else None."""

    verifier: Verifier
    line: SignatureLine
    timestamp: int | None


@dataclass(frozen=True)
class Note:
    """A note's `text` (with its final newline) and all signature lines; `verified` only from open_note."""

    text: str
    lines: tuple[SignatureLine, ...]
    verified: tuple[Verified, ...] = ()

    def format(self) -> str:
        """The note as it was read, to the byte."""
        return self.text + "\n" + "".join(line.format() for line in self.lines)

    def by(self, verifier: Verifier) -> Verified | None:
        """The verified signature of `verifier`, if it signed."""
        return next((item for item in self.verified if item.verifier == verifier), None)


def parse_note(note: str | bytes) -> Note:
    """Take a note apart strictly, verifying no signature: its text MUST NOT be used yet.

    Raises NoteError for anything but a well-formed note of at most 1,000,000 bytes and 100 signatures.
    """
    text = _decode(note)
    split = text.rfind("\n\n")
    if split < 0:
        raise NoteError("note", "no empty line before the signatures")
    body, tail = text[: split + 1], text[split + 2 :]
    if not tail or not tail.endswith("\n"):
        raise NoteError("note", "no signature lines that end with a newline")
    rows = tail[:-1].split("\n", MAX_SIGNATURES)
    if len(rows) > MAX_SIGNATURES:
        raise NoteError("note", f"more than {MAX_SIGNATURES} signatures")
    return Note(body, tuple(_parse_line(row) for row in rows))


def open_note(text: str | bytes, verifiers: Iterable[Verifier]) -> Note:
    """Verify a note: every signature of a known name and key id must verify, and there must be one.

    Unknown signatures are ignored. Raises NoteError if malformed, SignatureError if a known key's signature
    is wrong, NoKnownSigner if no known key signed.
    """
    note = parse_note(text)
    known: dict[tuple[str, bytes], Verifier] = {}
    for verifier in verifiers:
        if known.setdefault((verifier.name, verifier.key_id), verifier) != verifier:
            raise NoteError("verifier key", f"two keys named {verifier.name} share a key id")
    verified: list[Verified] = []
    for line in dict.fromkeys(note.lines):
        match = known.get((line.name, line.key_id))
        if match is not None:
            verified.append(_verify_line(note.text, line, match))
    if not verified:
        names = ", ".join(dict.fromkeys(line.name for line in note.lines[:5]))
        raise NoKnownSigner("note", f"no known key signed it; it is signed by {names}")
    return Note(note.text, note.lines, tuple(verified))


def sign_note(body: str, name: str, signer: Signer) -> str:
    """A note of `body`, which ends with a newline, signed once with Ed25519 under the key name `name`."""
    return Note(_check_body(body), (signature_line(body, name, signer),)).format()


def signature_line(body: str, name: str, signer: Signer) -> SignatureLine:
    """The Ed25519 signature line (type 0x01) of `signer` on `body`."""
    verifier = Verifier(name, signer.public)
    return SignatureLine(name, verifier.key_id, signer.sign(_check_body(body).encode("utf-8")))


def cosignature_line(body: str, name: str, signer: Signer, timestamp: int) -> SignatureLine:
    """The timestamped cosignature line (type 0x04) of `signer` on a checkpoint's `body`."""
    if not 0 <= timestamp <= MAX_TIMESTAMP:
        raise NoteError("cosignature", f"the timestamp {timestamp} is not between 0 and 2^63-1")
    verifier = Verifier(name, signer.public, COSIGNATURE)
    signature = signer.sign(_cosigned(_check_body(body), timestamp))
    return SignatureLine(name, verifier.key_id, struct.pack(">Q", timestamp) + signature)


def add_signatures(note: str | bytes, lines: Iterable[SignatureLine]) -> str:
    """The note with more signature lines at its end; those it already has are not repeated."""
    parsed = parse_note(note)
    return Note(parsed.text, tuple(dict.fromkeys((*parsed.lines, *lines)))).format()


def check_name(name: str, where: str) -> None:
    """Refuse key names that are empty, not UTF-8, or hold spaces, control characters or a plus sign."""
    if not name or "+" in name or any(c.isspace() or c < " " or "\ud800" <= c <= "\udfff" for c in name):
        raise NoteError(where, f"the key name {name[:60]!r} is empty or holds a space or a plus sign")


def _parse_line(row: str) -> SignatureLine:
    name, _, encoded = row.removeprefix(_PREFIX).partition(" ")
    if not row.startswith(_PREFIX):
        raise NoteError("note", f"{row[:100]!r} is not a signature line")
    check_name(name, "note")
    data = _base64.decode(encoded)
    if data is None or len(data) < 5:
        raise MalformedSignature("note", f"the signature of {name[:100]} is not padded base64 of at least 5 bytes")
    return SignatureLine(name, data[:4], data[4:])


def _verify_line(text: str, line: SignatureLine, verifier: Verifier) -> Verified:
    if verifier.type != COSIGNATURE:
        try:
            verifier.key.verify(line.signature, text.encode("utf-8"))
        except SignatureError:
            raise SignatureError(f"the signature of {line.name} on the note is wrong", verifier.key.keyid) from None
        return Verified(verifier, line, None)
    if len(line.signature) != 72:
        raise SignatureError(f"the cosignature of {line.name} has not 72 bytes", verifier.key.keyid)
    (timestamp,) = struct.unpack(">Q", line.signature[:8])
    try:
        verify_cosignature(text, verifier.key, timestamp, line.signature[8:])
    except SignatureError as error:
        raise SignatureError(f"{line.name}: {error}", verifier.key.keyid) from None
    return Verified(verifier, line, timestamp)


def verify_cosignature(body: str, key: PublicKey, timestamp: int, signature: bytes) -> None:
    """Check the 64 bytes of a cosignature on a checkpoint's `body` at `timestamp`, seconds. Raises SignatureError."""
    if not 0 <= timestamp <= MAX_TIMESTAMP:
        raise SignatureError("the cosignature has no valid time", key.keyid)
    try:
        key.verify(signature, _cosigned(body, timestamp))
    except SignatureError:
        raise SignatureError("the cosignature on the note is wrong", key.keyid) from None


def _cosigned(body: str, timestamp: int) -> bytes:
    return f"cosignature/v1\ntime {timestamp}\n{body}".encode()


def _check_body(body: str) -> str:
    if not body.endswith("\n"):
        raise NoteError("note", "the text does not end with a newline")
    _decode(body)
    return body


def _decode(note: str | bytes) -> str:
    try:
        data = note.encode("utf-8") if isinstance(note, str) else note
        text = note if isinstance(note, str) else note.decode("utf-8")
    except (UnicodeError, AttributeError):  # the latter: neither text nor bytes
        raise NoteError("note", "not UTF-8") from None
    if len(data) > MAX_NOTE:
        raise NoteError("note", f"{len(data)} bytes are more than {MAX_NOTE}")
    found = _CONTROL.search(text)
    if found:
        raise NoteError("note", f"control character 0x{ord(found[0]):02x}")
    return text


def _key_id(name: str, type: int, public: bytes) -> bytes:
    return hashlib.sha256(name.encode("utf-8") + b"\n" + bytes([type]) + public).digest()[:4]
