"""Keys: who may sign what, since when and until when."""

from __future__ import annotations

from typing import Any

from .. import signed_rows
from ..answers import Asked, NotHere, Page
from ..evidence import evidence

# What each role signs, in the words of the design.
ROLES = {
    "root": "enrols, rotates and revokes all keys; kept offline",
    "log": "signs checkpoints and status records",
    "trainer": "signs datasets and everything that a run records",
    "auditor": "signs announcements and results of audits",
    "publisher": "signs releases of models",
    "witness": "cosigns checkpoints that extend those it saw before",
}


def enrolled(asked: Asked, limit: int) -> list[dict[str, Any]]:
    """The first keys of the ledger, each with what ended it."""
    return [_ended(asked, row) for row in asked.records("keys", "SELECT * FROM keys ORDER BY entry LIMIT ?", limit)]


def _ended(asked: Asked, row: dict[str, Any]) -> dict[str, Any]:
    """A key with its revocations, the entry from which on it does not count, and the keys before and after it."""
    ends = asked.records(
        "key_revocations", "SELECT * FROM key_revocations WHERE key = ? ORDER BY entry", row["entry"], key=row["entry"]
    )
    after = asked.record("keys", "SELECT * FROM keys WHERE replaces = ?", row["entry"], replaces=row["entry"])
    before = (
        None if row["replaces"] is None else asked.record("keys", "SELECT * FROM keys WHERE entry = ?", row["replaces"])
    )
    return {
        **row,
        "revocations": ends,
        "revoked": min((end["from_index"] for end in ends), default=None),
        "replaces_keyid": None if before is None else before["keyid"],
        "replaced_by": None if after is None else after["keyid"],
    }


def index(asked: Asked) -> Page:
    return Page("keys.html", "Keys", "keys", {"keys": enrolled(asked, 1000), "roles": ROLES})


def key(asked: Asked) -> Page:
    keyid = asked.parts["hash"]
    row = asked.record("keys", "SELECT * FROM keys WHERE keyid = ?", keyid, keyid=keyid)
    if row is None:
        raise NotHere(f"No key {keyid[:16]}… is enrolled in this ledger.")
    row = _ended(asked, row)
    found = signed_rows.judged(asked, evidence(asked, row["entry"]))
    context = {"key": row, "roles": ROLES, "revocations": row["revocations"], "found": found}
    return Page("key.html", f"{row['role']} key", "keys", context)
