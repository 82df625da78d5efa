"""What a key signed before it was revoked stands only if witnesses saw it then.

Whoever stole a key could sign an entry that looks older, and a log that helps could place it. A checkpoint that the
policy's witnesses cosigned before the revocation was logged, and that holds the entry, rules that out. A policy
without witnesses has nothing to rule it out with; it takes the log's order as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.checkpoint import open_checkpoint as open_signed
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.verify import KeyRing

from ..policy import Policy
from . import bundle
from .evidence import Entry, EvidenceRefused, log_verifiers
from .extension import check_extended


def check_anchors(
    entries: Iterable[Entry],
    ring: KeyRing,
    head: Checkpoint,
    anchors: Sequence[bundle.Anchor],
    policy: Policy,
) -> str:
    """Check that what revoked keys signed was witnessed before; says so in one line. Raises EvidenceRefused."""
    sizes = [_open(anchor, ring, head, policy) for anchor in anchors]
    if policy.quorum is None:
        return ""
    anchored = 0
    for entry in entries:
        end = ring.revocation(entry.envelope.keyid)
        if end is None or entry.kind == "key":
            continue
        if not any(entry.index < size <= end for size in sizes):
            raise EvidenceRefused(
                f"{entry}: key {entry.envelope.keyid[:16]}… was revoked by entry {end}, and no checkpoint before it "
                "that the policy's witnesses cosigned holds this entry"
            )
        anchored += 1
    return f"; {anchored} by keys since revoked were witnessed before" if anchored else ""


def _open(anchor: bundle.Anchor, ring: KeyRing, head: Checkpoint, policy: Policy) -> int:
    """The size of an older checkpoint of the same log, if the quorum cosigned it; 0 if not."""
    quorum = policy.quorum
    cosigners = () if quorum is None else quorum.verifiers
    try:
        older, note = open_signed(anchor.checkpoint, log_verifiers(policy, ring), policy.log.origin, cosigners)
        check_extended(older.size, older.root, head, anchor.proof)
    except BitwitnessError as error:
        raise EvidenceRefused(f"an older checkpoint in the bundle is not one of this log: {error}") from error
    return older.size if quorum is not None and quorum.met_by(note) else 0
