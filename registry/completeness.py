"""Whether a bundle holds all that the log says of its run: its lists compared with a `status` entry of the log.

A `status` signs, per run, the commitment over the exact list of audit-intents, audits, rechecks, evals and words on
its releases up to it, over the states, resumes, forks and releases that samples are drawn from, and every key that was
ended by then. A bundle that leaves one of them out, or shows one that the log does not list, is refused. What came
after the status is beyond it; the rule `max_status_age` says how old it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bitwitness.ledger import merkle
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.commitments import MARKS, Commitment, tree
from bitwitness.ledger.errors import ProofError
from bitwitness.ledger.verify import KeyRing
from bitwitness.trainer.sample import Mark

from .bundle import StatusProof
from .evidence import Entry
from .lineage import Lineage, LineageBroken
from .status import RunSaid, is_record
from .status_file import News


def newest_status(entries: Sequence[Entry]) -> Entry | None:
    """The status entry that counts; raises LineageBroken if their numbers do not ascend as they stand in the log."""
    statuses = [entry for entry in entries if entry.kind == "status"]
    for earlier, later in pairwise(statuses):
        if earlier.predicate["sequence"] >= later.predicate["sequence"]:
            raise LineageBroken(f"{later} has no higher number than {earlier}, which stands before it")
    return statuses[-1] if statuses else None


@dataclass(frozen=True)
class Told:
    """The status that counts, and what it lists for the run: the marks up to it that samples are drawn from."""

    entry: Entry
    marks: Sequence[Mark]


def check_status(
    lineage: Lineage, entries: Sequence[Entry], proof: StatusProof | None, ring: KeyRing, head: Checkpoint
) -> tuple[str, Told]:
    """The newest status is one of this log, and the bundle holds exactly what it lists for the run."""
    status = newest_status(entries)
    if status is None:
        raise LineageBroken("the bundle proves what a status entry says, but the entry is not in it")
    if proof is None:
        raise LineageBroken(f"no proof of what {status} lists for the run")
    _check_ledger(status, proof, head)
    records = [entry for entry in entries if is_record(entry.kind, entry.predicate) and entry.index < status.index]
    marks = _check_run(lineage, status, records, proof)
    for revoked in status.predicate["revoked_keys"]:
        key = ring.get(revoked["keyid"])
        if key is None or key.until is None or key.until > revoked["from"]:
            raise LineageBroken(
                f"{status} lists key {revoked['keyid'][:16]}… as ended from entry {revoked['from']} on, "
                "but the bundle leaves out the entry that ended it"
            )
    said = f"{status} of {status.predicate['time']} lists the {len(records)} audits and evals that are here"
    return said, Told(status, marks)


def _check_run(lineage: Lineage, status: Entry, records: Sequence[Entry], proof: StatusProof) -> list[Mark]:
    """What the status lists for the run is what the bundle holds; the marks that it lists."""
    opened = [item for item in proof.runs if item.run == lineage.genesis.leaf]
    if len(opened) != 1 or len(proof.runs) != 1:
        raise LineageBroken(f"the bundle opens {status} for other runs than {lineage.genesis.leaf[:16]}…")
    marks = [Mark(item.entry, item.kind, item.step) for item in opened[0].marks]
    leaf = RunSaid(tree("records/1", [entry.raw for entry in records]), marks).leaf(lineage.genesis.leaf)
    runs = Commitment.from_json(status.predicate["runs"], type="runs/1")
    try:
        nodes = [bytes.fromhex(node) for node in opened[0].proof]
        merkle.verify_inclusion(opened[0].position, runs.size, merkle.leaf_hash(leaf), nodes, runs.root_bytes)
    except ProofError as error:
        raise LineageBroken(
            f"the {len(records)} audits, evals and words and the {len(marks)} states, resumes, forks and releases in "
            f"the bundle are not those that {status} lists for the run: something was left out or added"
        ) from error
    listed = set(marks)
    for entry in (lineage.release, *lineage.sources, *lineage.chain):
        shown = Mark(entry.index, entry.kind, entry.predicate.get("step", 0))
        if entry.kind in MARKS and entry.index < status.index and shown not in listed:
            raise LineageBroken(
                f"{status} does not list {entry} among the states, resumes, forks and releases of the run"
            )
    return marks


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
