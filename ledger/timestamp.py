"""RFC 3161 timestamps of checkpoints: an authority's word that a signed note existed by then.

The message is the note's bytes, hashed with SHA-256; the answer is kept as it came, so `openssl ts -verify` reads it,
too. Package `rfc3161-client` (extra `timestamps`) checks an answer and its certificates; nothing else here needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from cryptography import x509

from .errors import BitwitnessError, FoundWrong
from .follow.remote import Remote
from .follow.transport import shown

# An answer with the authority's certificates is a few kilobytes.
LIMIT = 1 << 20
_QUERY, _REPLY = "application/timestamp-query", "application/timestamp-reply"


class TimestampUnavailable(BitwitnessError):
    """The authority gave no timestamp, or the package that reads one is missing (exit 2)."""


class NotGranted(TimestampUnavailable):
    """The authority's answer is that it gives none."""


class TimestampRefused(FoundWrong):
    """A timestamp that is not of this note, or not by a trusted authority (exit 1)."""


def ask(url: str, note: bytes) -> bytes:
    """Have the authority at ``url`` stamp a note; returns its answer. Raises RemoteError, TimestampUnavailable, ….

    The answer is of this note and this question; whose it is, `check` says.
    """
    client = _package()
    request = client.TimestampRequestBuilder().data(note).hash_algorithm(client.HashAlgorithm.SHA256).build()
    with Remote(url) as remote:
        status, kind, answer = remote.send("", request.as_bytes(), _QUERY, LIMIT)
    if status != 200 or kind.split(";")[0].strip().lower() != _REPLY:
        raise TimestampUnavailable(f"{shown(url)} answered {status} and no timestamp")
    parsed = _parse(answer)
    if parsed.tst_info.nonce != request.nonce:
        raise TimestampRefused(f"{shown(url)} answered another question (the nonce differs)")
    _check_message(parsed, note)
    return answer


def check(answer: bytes, note: bytes, roots: Sequence[x509.Certificate]) -> datetime:
    """The time (UTC) by which a note existed, as an authority under ``roots`` says.

    Raises TimestampRefused, TimestampUnavailable.
    """
    client = _package()
    parsed = _parse(answer)
    _check_message(parsed, note)
    verifier = client.VerifierBuilder(roots=list(roots)).build()
    try:
        verifier.verify_message(parsed, note)
    except client.VerificationError as error:
        raise TimestampRefused(f"the timestamp is not by an authority under these roots: {error}") from None
    time: datetime = parsed.tst_info.gen_time
    return time


def load_roots(pem: bytes) -> list[x509.Certificate]:
    """Certificates from PEM. Raises TimestampUnavailable."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise TimestampUnavailable(f"no PEM certificates to trust: {error}") from None


def _parse(answer: bytes) -> Any:
    client = _package()
    if len(answer) > LIMIT:
        raise TimestampRefused(f"a timestamp of more than {LIMIT} bytes")
    try:
        parsed = client.decode_timestamp_response(answer)
        if client.PKIStatus(parsed.status) != client.PKIStatus.GRANTED:
            raise NotGranted(f"the authority did not grant a timestamp (status {parsed.status})")
        parsed.tst_info  # noqa: B018  decoded when it is asked for
    except ValueError as error:
        raise TimestampRefused(f"not a timestamp response of RFC 3161: {error}") from None
    return parsed


def _check_message(parsed: Any, note: bytes) -> None:
    if parsed.tst_info.message_imprint.message != hashlib.sha256(note).digest():
        raise TimestampRefused("the timestamp is of other bytes than this note, or not over SHA-256")


def _package() -> Any:
    try:
        import rfc3161_client
    except ImportError:
        raise TimestampUnavailable(
            "timestamps need the package rfc3161-client; pip install 'bitwitness[timestamps]'"
        ) from None
    return rfc3161_client
