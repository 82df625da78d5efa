"""Which log key may sign a bundle's checkpoint: the one that the policy pins, or one that took its place.

The root lets another key take a log key's place with a `key` entry, and the first checkpoint beyond that entry is
signed by both. So whoever pins the old key follows: the root's entry says who, and the checkpoint with two signatures,
the bundle's own or an older one that leads to it, says that the old key's holder saw the same log. An entry of the root
alone moves no log, nor does a signature of the old key alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry.entries import check
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.handover import line_of, open_handover
from bitwitness.ledger.note import Note, Verifier
from bitwitness.ledger.verify import EnrolledKey, KeyRing, verify_entry

from . import bundle
from .extension import check_extended

if TYPE_CHECKING:
    from bitwitness.ledger.store import Ledger


def heirs(logged: Sequence[bundle.LoggedEntry], ring: KeyRing, pinned: Verifier) -> list[Verifier]:
    """The log keys that by the bundle's `key` entries took the pinned one's place, one after the other.

    Takes the entries into `ring`. Their places in the log are not proven yet: who relies on a key that is found here
    proves them later, under the checkpoint that it signed.
    """
    for item in logged:
        raw = item.raw()
        try:
            statement = open_envelope(raw).statement
            if check(statement).name == "key":
                verify_entry(raw, ring, item.index)
                ring.add(item.index, statement["predicate"])
        except FoundWrong:
            continue  # reported by the check that believes it
    return [Verifier(pinned.name, key.public) for key in line_of(ring, pinned.key)[1:]]


def signing_key(
    head: Checkpoint, signed: Note, ring: KeyRing, pinned: Verifier, anchors: Sequence[bundle.Anchor]
) -> EnrolledKey:
    """The log key that counts at `head`, followed from the pinned one. Raises FoundWrong, saying why none does."""
    shown = [bundle.Anchor(checkpoint=signed.format(), proof=[]), *anchors]
    line = line_of(ring, pinned.key)
    if not line:
        raise FoundWrong("the pinned log key is not enrolled as a log key by the pinned root")
    why = f"the log key is revoked from entry {line[0].until} on, the checkpoint covers {head.size}"
    for number, key in enumerate(line):
        if signed.by(Verifier(pinned.name, key.public)) is None or (key.until is not None and head.size > key.until):
            continue
        broken = [step for step in pairwise(line[: number + 1]) if not _handed(*step, head, pinned, shown)]
        if not broken:
            return key
        old, new = broken[0]
        why = (
            f"log key {new.keyid[:16]}… took the place of {old.keyid[:16]}… at entry {new.since}, but no checkpoint "
            "beyond it that both signed is in the bundle"
        )
    raise FoundWrong(why)


def _handed(
    old: EnrolledKey, new: EnrolledKey, head: Checkpoint, pinned: Verifier, anchors: Sequence[bundle.Anchor]
) -> bool:
    """Whether a checkpoint beyond the change carries both signatures, and `head` extends it."""
    for anchor in anchors:
        try:
            older = open_handover(anchor.checkpoint, pinned.name, old.public, new.public, new.since)
            check_extended(older.size, older.root, head, anchor.proof)
        except BitwitnessError:
            continue
        return True
    return False


def handovers(ledger: Ledger, size: int) -> dict[int, bundle.Anchor]:
    """The first checkpoint beyond each entry that replaced a log key, which both keys signed, unless it is the head.

    By their size, proven to the checkpoint of `size` entries.
    """
    found: dict[int, bundle.Anchor] = {}
    query = (
        "SELECT entry FROM keys WHERE role = 'log' AND entry < ?"
        " AND entry = (SELECT min(from_index) FROM key_revocations WHERE key = keys.replaces)"
    )
    for (entry,) in ledger.connection.execute(query, (size,)).fetchall():
        row = ledger.connection.execute(
            "SELECT size, note FROM checkpoints WHERE size > ? AND size < ? ORDER BY id LIMIT 1", (entry, size)
        ).fetchone()
        if row is not None:
            proof = [node.hex() for node in ledger.consistency_proof(row[0], size)]
            found[row[0]] = bundle.Anchor(checkpoint=row[1], proof=proof)
    return found
