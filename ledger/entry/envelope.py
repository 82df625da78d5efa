"""The signed envelope of an entry: DSSE v1 with one Ed25519 signature, as canonical JSON
(docs/formats/entries.md).

{"payload": base64(JCS(statement)), "payloadType": "application/vnd.in-toto+json",
 "signatures": [{"keyid": hex SHA-256 of the raw public key, "sig": base64}]}
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from .. import _base64, jcs
from ..errors import EntryError, JsonError
from ..keys import PublicKey, Signer

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_ENTRY = 65_535

# The bytes of every envelope, since canonical JSON leaves no choice; open_envelope checks the base64 in it.
_SHAPE = re.compile(
    rb'\{"payload":"([A-Za-z0-9+/=]+)","payloadType":"application/vnd\.in-toto\+json",'
    rb'"signatures":\[\{"keyid":"([0-9a-f]{64})","sig":"([A-Za-z0-9+/]{86}==)"\}\]\}'
)


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, the bytes that are signed: "DSSEv1 LEN TYPE LEN PAYLOAD"."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True, slots=True)
class Envelope:
    """An opened entry. Its signature has NOT been checked: that needs the enrolled key (verify)."""

    statement: dict[str, Any]
    keyid: str
    payload: bytes
    signature: bytes

    def verify(self, key: PublicKey) -> None:
        """Check the signature. Raises EntryError if `key` is another key, SignatureError if it does not
        verify.
        """
        if key.keyid != self.keyid:
            raise EntryError(f"signed by key {self.keyid}, not by {key.keyid}")
        key.verify(self.signature, pae(PAYLOAD_TYPE, self.payload))


def seal(statement: Mapping[str, Any], signer: Signer) -> bytes:
    """Sign a statement: the entry's bytes. `predicate.signer` must name the signer.

    Does not look at the kind: entries.check does. Raises EntryError, JsonError.
    """
    if _stated_signer(statement) != signer.keyid:
        raise EntryError("predicate.signer is not the key that signs")
    payload = jcs.encode(statement)
    signature = signer.sign(pae(PAYLOAD_TYPE, payload))
    data = assemble(payload, signer.keyid, signature)
    if len(data) > MAX_ENTRY:
        raise EntryError(f"{len(data)} bytes are more than the {MAX_ENTRY} of an entry")
    return data


def _parse(payload: bytes) -> Any:
    return jcs.parse(payload, max_bytes=MAX_ENTRY)


def open_envelope(data: bytes, parse: Callable[[bytes], Any] = _parse) -> Envelope:
    """Read an entry's bytes strictly: they are exactly what `seal` would write for that payload and
    signature. `parse` takes canonical JSON and nothing else.

    Raises EntryError or JsonError. The signature is not checked here.
    """
    if len(data) > MAX_ENTRY:
        raise EntryError(f"{len(data)} bytes are more than the {MAX_ENTRY} of an entry")
    parts = _SHAPE.fullmatch(data)
    if parts is None:
        _explain(data)
    payload_text, keyid, signature_text = (part.decode("ascii") for part in parts.groups())
    payload = _from_base64(payload_text, "payload")
    signature = _from_base64(signature_text, "sig")
    try:
        statement = parse(payload)
    except JsonError as error:
        raise EntryError(error.reason, "payload") from None
    if not isinstance(statement, dict):
        raise EntryError("not a JSON object", "payload")
    if _stated_signer(statement) != keyid:
        raise EntryError("predicate.signer is not the envelope's keyid")
    return Envelope(statement, keyid, payload, signature)


def assemble(payload: bytes, keyid: str, signature: bytes) -> bytes:
    """An entry's bytes from its parts: JCS, written out, as its keys are few and its values need no escapes.

    Checks nothing; open_envelope reads the result strictly.
    """
    return (
        b'{"payload":"'
        + b2a_base64(payload, newline=False)
        + b'","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":"'
        + keyid.encode("ascii")
        + b'","sig":"'
        + b2a_base64(signature, newline=False)
        + b'"}]}'
    )


def _explain(data: bytes) -> NoReturn:
    """Say what is wrong with bytes that are not an envelope's."""
    outer = jcs.parse(data, max_bytes=MAX_ENTRY)
    if not isinstance(outer, dict) or outer.keys() != {"payload", "payloadType", "signatures"}:
        raise EntryError('an envelope is {"payload","payloadType","signatures"} and nothing else')
    if outer["payloadType"] != PAYLOAD_TYPE:
        raise EntryError(f"payloadType is not {PAYLOAD_TYPE}")
    signatures = outer["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise EntryError("an entry has exactly one signature")
    if not isinstance(signatures[0], dict) or signatures[0].keys() != {"keyid", "sig"}:
        raise EntryError('a signature is {"keyid","sig"} and nothing else')
    _from_base64(outer["payload"], "payload")
    if len(_from_base64(signatures[0]["sig"], "sig")) != 64:
        raise EntryError("an Ed25519 signature has 64 bytes", "sig")
    raise EntryError("the keyid is not 64 lower-case hex digits")


def _stated_signer(statement: Mapping[str, Any]) -> object:
    predicate = statement.get("predicate")
    return predicate.get("signer") if isinstance(predicate, dict) else None


def _from_base64(text: object, where: str) -> bytes:
    data = _base64.decode(text) if isinstance(text, str) else None
    if data is None:
        raise EntryError("not standard padded base64", where)
    return data
