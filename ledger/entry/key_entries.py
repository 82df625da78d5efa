"""The signed `key` entries by which the root key, kept offline, says who may sign what, and from where on no longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import keys
from ..errors import BitwitnessError
from ..files import rfc3339
from ..keys import PublicKey, Signer
from . import entries, envelope


def enrolment(root: Signer, key: PublicKey, role: str, *, name: str | None = None, time: str | None = None) -> bytes:
    """Enrol a key in one role, under a label if given. A root key enrols itself as entry 0."""
    return _seal(root, "enrol", key, role, {}, name, time)


def rotation(
    root: Signer, key: PublicKey, role: str, replaces: str, *, name: str | None = None, time: str | None = None
) -> bytes:
    """Enrol a key in place of the key `replaces` (keyid) of the same role, which ends at this entry."""
    return _seal(root, "rotate", key, role, {"replaces": replaces}, name, time)


def revocation(root: Signer, key: PublicKey, role: str, first: int, *, time: str | None = None) -> bytes:
    """End a key: what it signed at ledger index `first` or later does not count."""
    return _seal(root, "revoke", key, role, {"from": first}, None, time)


def _seal(
    root: Signer,
    action: str,
    key: PublicKey,
    role: str,
    fields: Mapping[str, Any],
    name: str | None,
    time: str | None,
) -> bytes:
    if root.role != "root":
        raise BitwitnessError(f"key entries are signed by the root key, not by a {root.role} key")
    record = {"algorithm": keys.ALGORITHM, "keyid": key.keyid, "public": key.raw.hex(), "role": role}
    if name is not None:
        record["name"] = name
    predicate = {
        "signer": root.keyid,
        "action": action,
        "key": record,
        **fields,
        "time": time or rfc3339.now(),
    }
    return envelope.seal(entries.statement("key", None, predicate), root)
