"""An entry as the process holds it that has just made it: nothing of it needs to be read again to be appended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import jcs
from ..errors import EntryError
from ..keys import Signer
from ..merkle import leaf_hash
from . import entries
from .entries import KINDS, Kind
from .envelope import MAX_ENTRY, PAYLOAD_TYPE, Envelope, assemble, pae


@dataclass(frozen=True, slots=True)
class Sealed:
    """An entry's bytes beside what they say. `verified`: this process signed it itself, so the signature holds."""

    data: bytes
    leaf_hash: bytes
    kind: Kind
    envelope: Envelope
    verified: bool


def seal(
    kind: str, predicate: Mapping[str, Any], signer: Signer, subject: list[dict[str, Any]] | None = None
) -> Sealed:
    """Check a statement, sign it and keep what is known of it; `predicate` without its signer.

    Its bytes are those of envelope.seal(entries.statement(…)). Raises EntryError, JsonError.
    """
    full = {**predicate, "signer": signer.keyid}
    if subject is None:
        statement, payload = entries.canonical(kind, full)
    else:
        statement = entries.statement(kind, subject, full)
        payload = jcs.write(statement)  # the schema leaves nothing else in it
    signature = signer.sign(pae(PAYLOAD_TYPE, payload))
    data = assemble(payload, signer.keyid, signature)
    if len(data) > MAX_ENTRY:
        raise EntryError(f"{len(data)} bytes are more than the {MAX_ENTRY} of an entry")
    return Sealed(data, leaf_hash(data), KINDS[kind], Envelope(statement, signer.keyid, payload, signature), True)


def read(data: bytes) -> Sealed:
    """Open and check an entry that somebody else made. Raises EntryError, JsonError; the signature is not verified."""
    envelope, kind = entries.read(data)
    return Sealed(data, leaf_hash(data), kind, envelope, False)
