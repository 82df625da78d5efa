"""Which log keys must sign the next checkpoint; verify_checkpoints has the verifier's side of the rule."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from ..errors import BitwitnessError, FoundWrong

_LOG_KEYS = """
    SELECT keys.keyid, (SELECT min(from_index) FROM key_revocations WHERE key = keys.entry),
           heir.keyid, heir.entry
    FROM keys LEFT JOIN (SELECT min(entry) AS entry, keyid, replaces FROM keys GROUP BY replaces) AS heir
    ON heir.replaces = keys.entry WHERE keys.role = 'log'
"""


class WrongLogKey(BitwitnessError):
    """Another log key, or two, must sign this checkpoint."""


def check_signers(connection: sqlite3.Connection, before: int, size: int, signers: Iterable[str]) -> None:
    """Whether these keyids may sign a checkpoint of `size`, the newest one being of size `before`. Raises WrongLogKey.

    A key does not count beyond the entry that ended it; the first checkpoint beyond the entry that replaced one is
    signed by the old key and by the new one, unless the root revoked the old one from before then on: then the new one
    counts like any that is enrolled. A key that is not enrolled signs nothing but the empty tree.
    """
    signing = set(signers)
    rows = {keyid: rest for keyid, *rest in connection.execute(_LOG_KEYS)}
    for keyid in signing - rows.keys():
        if size:
            raise WrongLogKey(f"the log key {keyid[:16]}… is not enrolled in this ledger")
    for keyid, (until, heir, replaced) in rows.items():
        if heir is not None and (until is None or until > replaced):
            raise FoundWrong(f"the derived tables state no end of the log key {keyid[:16]}…; run `ledger rebuild`")
        if heir is not None and until == replaced and before <= until < size and not {keyid, heir} <= signing:
            raise WrongLogKey(
                f"the log key {keyid[:16]}… was replaced by {heir[:16]}… at entry {until}: both sign the next "
                "checkpoint; put the new one in the project's keys and add --also OLD.pem"
            )
    if all(_ended(rows[keyid][0] if keyid in rows else None, size) for keyid in signing):
        raise WrongLogKey(f"the log key {min(signing)[:16]}… has ended; the ledger enrols another")


def _ended(until: int | None, size: int) -> bool:
    return until is not None and size > until
