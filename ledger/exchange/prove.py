"""Making proof files: an entry, its place in the tree, a signed checkpoint, and who enrolled its signer."""

from __future__ import annotations

import base64
import json
from typing import Any

from .. import merkle, tlog_proof
from ..checkpoint import parse_checkpoint
from ..entry.envelope import open_envelope
from ..errors import BitwitnessError
from ..handover import MAX_HANDOVERS, Handover, ProvenEntry
from ..keys import Signer
from ..note import Note, parse_note
from ..proof_file import extra_bytes
from ..store import Ledger
from .merkletools_format import to_merkletools

FORMATS = ("tlog-proof", "merkletools", "json")


class NoCheckpoint(BitwitnessError):
    """No signed checkpoint covers the entry yet. `index` is the entry's."""

    def __init__(self, index: int) -> None:
        super().__init__(f"no checkpoint covers entry {index} yet; `ledger checkpoint` signs one")
        self.index = index


def covering_checkpoint(ledger: Ledger, index: int) -> str:
    """The newest stored checkpoint note, which must cover entry `index`. Raises NoSuchEntry, NoCheckpoint."""
    ledger.leaf_hash(index)
    note = ledger.latest_checkpoint(at_least=index + 1)
    if note is None:
        raise NoCheckpoint(index)
    return note


def prove(ledger: Ledger, index: int, note: str | None = None) -> tlog_proof.Proof:
    """A C2SP tlog-proof that stands alone, under `note` or the newest checkpoint. Its `format()` is the file.

    The entry is left out where the format has no room for it. Raises NoSuchEntry, NoCheckpoint.
    """
    if note is None:
        note = covering_checkpoint(ledger, index)
    size = _size(note)
    entry = ledger.entry(index)
    signer = _enrolment(ledger, open_envelope(entry).keyid)
    enrolled = ProvenEntry(ledger.entry(signer), signer, tuple(ledger.inclusion_proof(signer, size)))
    before = handovers(ledger, size)
    fitting = (extra_bytes(held, enrolled, before) for held in (entry, None))
    extra = next((item for item in fitting if len(item) <= tlog_proof.MAX_LINE // 2), None)
    return tlog_proof.Proof(index, tuple(ledger.inclusion_proof(index, size)), note, extra)


def handovers(ledger: Ledger, size: int) -> list[Handover]:
    """How log keys took each other's place below a tree of `size`: what leads whoever pins an old one to the newest.

    For each `key` entry that replaced a log key, the first checkpoint beyond it; of its signatures those of the log.
    """
    found = []
    query = (
        "SELECT entry FROM keys WHERE role = 'log' AND entry < ?"
        " AND entry = (SELECT min(from_index) FROM key_revocations WHERE key = keys.replaces) ORDER BY entry"
    )
    for (index,) in ledger.connection.execute(query, (size,)).fetchall():
        beyond = ledger.checkpoints_over(index)[:1]
        for text in beyond:
            note = parse_note(text)
            covered = _size(text)
            own = Note(note.text, tuple(line for line in note.lines if line.name == ledger.origin))
            entry = ProvenEntry(ledger.entry(index), index, tuple(ledger.inclusion_proof(index, covered)))
            found.append(Handover(own.format(), entry))
    return found[-MAX_HANDOVERS:]


def tlog_proof_text(ledger: Ledger, index: int, note: str | None = None) -> str:
    """The text of the file that `prove` makes."""
    return prove(ledger, index, note).format()


def merkletools_text(ledger: Ledger, index: int, note: str) -> str:
    """The proof as the `merkletools` package takes it: a JSON list of {"left" or "right": sibling}."""
    size = _size(note)
    return json.dumps(to_merkletools(ledger.inclusion_proof(index, size), index, size), indent=2) + "\n"


def json_proof(ledger: Ledger, index: int, note: str) -> dict[str, Any]:
    """The proof as plain JSON, hashes in hex, for other programs."""
    size = _size(note)
    entry = ledger.entry(index)
    return {
        "index": index,
        "size": size,
        "root": ledger.root(size).hex(),
        "leaf_hash": merkle.leaf_hash(entry).hex(),
        "hashes": [item.hex() for item in ledger.inclusion_proof(index, size)],
        "checkpoint": note,
        "entry": base64.b64encode(entry).decode("ascii"),
    }


def sign_if_needed(ledger: Ledger, index: int, log: Signer) -> str:
    """The newest checkpoint if it covers entry `index`, else a new one. `ledger` is open for writing."""
    try:
        return covering_checkpoint(ledger, index)
    except NoCheckpoint:
        return ledger.sign_checkpoint(log)


def _size(note: str) -> int:
    return parse_checkpoint(parse_note(note).text).size


def _enrolment(ledger: Ledger, keyid: str) -> int:
    row = ledger.connection.execute("SELECT entry FROM keys WHERE keyid = ?", (keyid,)).fetchone()
    if row is None:
        raise BitwitnessError(f"key {keyid[:16]}… is not enrolled in this ledger; run `ledger fsck`")
    return int(row[0])
