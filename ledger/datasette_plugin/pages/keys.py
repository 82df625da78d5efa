"""Keys: who may sign what, since when and until when."""

from __future__ import annotations

from ..answers import Asked, NotHere, Page
from ..evidence import evidence

_KEYS = """
    SELECT keys.*, (SELECT min(from_index) FROM key_revocations WHERE key = keys.entry) AS revoked,
        (SELECT keyid FROM keys AS old WHERE old.entry = keys.replaces) AS replaces_keyid,
        (SELECT keyid FROM keys AS new WHERE new.replaces = keys.entry) AS replaced_by
    FROM keys
"""

# What each role signs, in the words of the design.
ROLES = {
    "root": "enrols, rotates and revokes all keys; kept offline",
    "log": "signs checkpoints and status records",
    "trainer": "signs datasets and everything that a run records",
    "auditor": "signs announcements and results of audits",
    "publisher": "signs releases of models",
    "witness": "cosigns checkpoints that extend those it saw before",
}


def index(asked: Asked) -> Page:
    keys = asked.rows(_KEYS + " ORDER BY entry LIMIT 1000")
    return Page("keys.html", "Keys", "keys", {"keys": keys, "roles": ROLES})


def key(asked: Asked) -> Page:
    keyid = asked.parts["hash"]
    row = asked.row(_KEYS + " WHERE keyid = ?", keyid)
    if row is None:
        raise NotHere(f"No key {keyid[:16]}… is enrolled in this ledger.")
    revocations = asked.rows("SELECT * FROM key_revocations WHERE key = ? ORDER BY entry", row["entry"])
    context = {"key": row, "roles": ROLES, "revocations": revocations, "found": evidence(asked, row["entry"])}
    return Page("key.html", f"{row['role']} key", "keys", context)
