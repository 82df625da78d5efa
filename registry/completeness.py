"""Whether a bundle holds all that the log says of its run: its lists compared with a `status` entry of the log.

A `status` signs, per run, the commitment over the exact list of audit-intents, audits, rechecks, evals and words on
its releases up to it, and every key that was ended by then. A bundle that leaves one of them out, or shows one that the
log does not list, is refused. What came after the status is beyond it; the rule `max_status_age` says how old it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bitwitness.ledger import merkle
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.commitments import Commitment, run_records_leaf, tree
from bitwitness.ledger.errors import ProofError
from bitwitness.ledger.verify import KeyRing

from .bundle import StatusProof
from .evidence import Entry
from .lineage import Lineage, LineageBroken
from .status import is_record
from .status_file import News


def newest_status(entries: Sequence[Entry]) -> Entry | None:
    """The status entry that counts; raises LineageBroken if their numbers do not ascend as they stand in the log."""
    statuses = [entry for entry in entries if entry.kind == "status"]
    for earlier, later in pairwise(statuses):
        if earlier.predicate["sequence"] >= later.predicate["sequence"]:
            raise LineageBroken(f"{later} has no higher number than {earlier}, which stands before it")
    return statuses[-1] if statuses else None


def check_status(
    lineage: Lineage, entries: Sequence[Entry], proof: StatusProof | None, ring: KeyRing, head: Checkpoint
) -> tuple[str, Entry]:
    """The newest status is one of this log, and the bundle holds exactly what it lists for the run."""
    status = newest_status(entries)
    if status is None:
        raise LineageBroken("the bundle proves what a status entry says, but the entry is not in it")
    if proof is None:
        raise LineageBroken(f"no proof of what {status} lists for the run")
    _check_ledger(status, proof, head)
    records = [entry for entry in entries if is_record(entry.kind, entry.predicate) and entry.index < status.index]
    listed = tree("records/1", [entry.raw for entry in records])
    runs = Commitment.from_json(status.predicate["runs"], type="runs/1")
    leaf = merkle.leaf_hash(run_records_leaf(lineage.genesis.leaf, listed))
    try:
        nodes = [bytes.fromhex(node) for node in proof.proof]
        merkle.verify_inclusion(proof.position, runs.size, leaf, nodes, runs.root_bytes)
    except ProofError as error:
        raise LineageBroken(
            f"the {len(records)} audits, evals and words in the bundle are not those that {status} lists for the run: "
            "something was left out or added"
        ) from error
    for revoked in status.predicate["revoked_keys"]:
        key = ring.get(revoked["keyid"])
        if key is None or key.until is None or key.until > revoked["from"]:
            raise LineageBroken(
                f"{status} lists key {revoked['keyid'][:16]}… as ended from entry {revoked['from']} on, "
                "but the bundle leaves out the entry that ended it"
            )
    return f"{status} of {status.predicate['time']} lists the {len(records)} audits and evals that are here", status


def check_same_log(head: Checkpoint, news: News) -> str:
    """A status from elsewhere contradicts the bundle's checkpoint in nothing that can be seen."""
    if news.head.size == head.size and news.head.root != head.root:
        raise LineageBroken(f"its checkpoint has another root at size {head.size} than the bundle's: two logs")
    return f"{news.entry} of {news.entry.predicate['time']}, below a checkpoint of {news.head.size} entries"


def check_news(lineage: Lineage, entries: Sequence[Entry], news: News) -> str:
    """A status from elsewhere lists for the run exactly what the bundle holds up to it."""
    records = [entry for entry in entries if is_record(entry.kind, entry.predicate) and entry.index < news.entry.index]
    listed = news.runs.get(lineage.genesis.leaf)
    if listed is None:
        if news.entry.index > lineage.genesis.index:
            raise LineageBroken(f"{news.entry} lists no run {lineage.genesis.leaf[:16]}…, which began before it")
        return f"{news.entry} is older than the run"
    if tree("records/1", [entry.raw for entry in records]) != listed:
        raise LineageBroken(
            f"{news.entry} lists {listed.size} audits, evals and words for the run, and the bundle does not hold just "
            f"these (it has {len(records)}): ask for a refreshed bundle"
        )
    return f"the bundle holds the {len(records)} audits, evals and words that {news.entry} lists"


def _check_ledger(status: Entry, proof: StatusProof, head: Checkpoint) -> None:
    seen = Commitment.from_json(status.predicate["ledger"], type="ledger/1")
    if seen.size != status.index:
        raise LineageBroken(f"{status} speaks of {seen.size} entries, but {status.index} stand before it")
    try:
        nodes = [bytes.fromhex(node) for node in proof.consistency]
        merkle.verify_consistency(seen.size, head.size, seen.root_bytes, head.root, nodes)
    except ProofError as error:
        raise LineageBroken(f"{status} speaks of another log than the checkpoint: {error}") from error
