"""OpenSSF model signing: `model.sig`, a Sigstore bundle around a DSSE envelope with the SHA-256 of every file.

Written so that the unmodified `model_signing verify key` accepts it, and read from whoever wrote one
(https://github.com/ossf/model-signing-spec). The signature says who packed the folder; where the weights come from, it
does not say, so the gate counts it beside `provenance.json` and never instead of it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bitwitness.ledger import foreign_json
from bitwitness.ledger.entry.envelope import pae
from bitwitness.ledger.errors import FoundWrong, JsonError, SignatureError

if TYPE_CHECKING:
    from bitwitness.ledger.p256 import P256Key

FILE_NAME = "model.sig"
LIMIT = 16 << 20
PREDICATE = "https://model_signing/signature/v1.0"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PAYLOAD = "application/vnd.in-toto+json"
_MEDIA = "application/vnd.dev.sigstore.bundle.v0.3+json"
# What a verifier leaves out of its count: the signature itself, and what version control keeps in a folder.
IGNORED = (FILE_NAME, ".git", ".gitattributes", ".github", ".gitignore")


class OmsRefused(FoundWrong):
    """A `model.sig` that is malformed, by another key, or about other files; one line says which."""


def sign(files: Mapping[str, str], model: str, key: P256Key) -> bytes:
    """The bytes of model.sig: ``files`` maps the name of every file but itself to its SHA-256 (hex)."""
    resources = [{"algorithm": "sha256", "digest": files[name], "name": name} for name in sorted(files)]
    statement = {
        "_type": _STATEMENT,
        "predicate": {
            "resources": resources,
            "serialization": {
                "allow_symlinks": False,
                "hash_type": "sha256",
                "ignore_paths": list(IGNORED),
                "method": "files",
            },
        },
        "predicateType": PREDICATE,
        "subject": [{"digest": {"sha256": _root(resources)}, "name": model}],
    }
    payload = json.dumps(statement, separators=(",", ":"), sort_keys=True).encode()
    bundle = {
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD,
            "signatures": [{"keyid": "", "sig": base64.b64encode(key.sign(pae(_PAYLOAD, payload))).decode()}],
        },
        "mediaType": _MEDIA,
        "verificationMaterial": {"publicKey": {"hint": _hint(key)}, "tlogEntries": []},
    }
    return (json.dumps(bundle, indent=2, sort_keys=True) + "\n").encode()


def verify(data: bytes, key: P256Key) -> tuple[str, dict[str, str]]:
    """The model's name and the SHA-256 of every file that a model.sig by ``key`` signs. Raises OmsRefused.

    Only the `files` method with SHA-256 and without symbolic links is accepted: one digest for each whole file.
    """
    try:
        bundle = foreign_json.parse(data)
        envelope = bundle["dsseEnvelope"]
        (signature,) = envelope["signatures"]
        payload, signed = _base64(envelope["payload"]), _base64(signature["sig"])
        hint = bundle["verificationMaterial"]["publicKey"].get("hint")
        if bundle["mediaType"] != _MEDIA or envelope["payloadType"] != _PAYLOAD:
            raise OmsRefused(f"{FILE_NAME} is not a Sigstore bundle v0.3 with an in-toto statement")
    except (KeyError, TypeError, ValueError, AttributeError, JsonError) as error:
        raise OmsRefused(f"{FILE_NAME} is not a Sigstore bundle with one signature by a key") from error
    if hint not in (None, "", _hint(key)):
        raise OmsRefused(f"{FILE_NAME} names another key than the policy's")
    try:
        key.verify(signed, pae(_PAYLOAD, payload))
    except SignatureError as error:
        raise OmsRefused(f"{FILE_NAME} is not signed by the policy's key") from error
    try:
        statement = foreign_json.parse(payload)
        predicate = statement["predicate"]
        (subject,) = statement["subject"]
        resources = predicate["resources"]
        how = predicate["serialization"]
        files = {str(item["name"]): str(item["digest"]) for item in resources}
        if (statement["_type"], statement["predicateType"]) != (_STATEMENT, PREDICATE):
            raise OmsRefused(f"{FILE_NAME} signs something else than a model ({PREDICATE})")
        if len(files) != len(resources) or any(item["algorithm"] != "sha256" for item in resources):
            raise OmsRefused(f"{FILE_NAME} names a file twice, or a digest that is not SHA-256")
        if (how["method"], how["hash_type"], how["allow_symlinks"]) != ("files", "sha256", False):
            raise OmsRefused(f"{FILE_NAME} does not hash whole files with SHA-256 without symbolic links")
        if subject["digest"]["sha256"] != _root(resources):
            raise OmsRefused(f"{FILE_NAME}: its files do not add up to its subject")
        return str(subject["name"])[:200], files
    except (KeyError, TypeError, ValueError, AttributeError, JsonError) as error:
        raise OmsRefused(f"{FILE_NAME} does not hold a statement on a model's files") from error


def compare(signed: Mapping[str, str], found: Mapping[str, str]) -> str:
    """One line if the signed files are exactly those that were found; raises OmsRefused that names one that is not."""
    for name in sorted(signed.keys() | (found.keys() - set(IGNORED))):
        if name not in found:
            raise OmsRefused(f"{FILE_NAME} signs {name[:100]!a}, which is not in the folder")
        if name not in signed:
            raise OmsRefused(f"{name[:100]!a} is not signed in {FILE_NAME}")
        if signed[name] != found[name]:
            raise OmsRefused(f"{name[:100]!a} has another SHA-256 than {FILE_NAME} signs")
    return f"{len(signed)} files, each with the SHA-256 that {FILE_NAME} signs, and no others"


def _root(resources: list[dict[str, Any]]) -> str:
    """SHA-256 over the digests, in the order in which they are listed."""
    return hashlib.sha256(b"".join(bytes.fromhex(item["digest"]) for item in resources)).hexdigest()


def _hint(key: P256Key) -> str:
    return hashlib.sha256(key.pem).hexdigest()


def _base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
