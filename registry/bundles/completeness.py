"""Whether a bundle holds all that the log says of its runs: its lists compared with a `status` entry of the log.

A `status` signs, per run, the commitment over the exact list of audit-intents, audits, rechecks, evals and words on
its releases up to it, over the states, resumes, forks and releases that samples are drawn from, and every key that was
ended by then. A bundle that leaves one of them out, or shows one that the log does not list, is refused. What came
after the status is beyond it; the rule `max_status_age` says how old it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bitwitness.ledger import merkle
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.commitments import MARKS, Commitment, tree
from bitwitness.ledger.errors import ProofError
from bitwitness.ledger.verify import KeyRing
from bitwitness.trainer.sample import Mark

from ..status import RunSaid, is_record
from .bundle import RunProof, StatusProof
from .evidence import Entry
from .extension import check_extended
from .lineage import Lineage, LineageBroken, RunLine
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
    """The status that counts, and for every run, by id, the marks that it lists: what samples are drawn from."""

    entry: Entry
    marks: Mapping[str, Sequence[Mark]]


def check_status(
    lineage: Lineage, entries: Sequence[Entry], proof: StatusProof | None, ring: KeyRing, head: Checkpoint
) -> tuple[str, Told]:
    """The newest status is one of this log, and the bundle holds exactly what it lists for every run."""
    status = newest_status(entries)
    if status is None:
        raise LineageBroken("the bundle proves what a status entry says, but the entry is not in it")
    if proof is None:
        raise LineageBroken(f"no proof of what {status} lists for the run")
    _check_ledger(status, proof, head)
    opened = {item.run: item for item in proof.runs}
    if opened.keys() != {line.genesis.leaf for line in lineage.every}:
        runs = " and ".join(f"{line.genesis.leaf[:16]}…" for line in lineage.every)
        raise LineageBroken(f"the bundle opens {status} for other runs than {runs}")
    records = _records(lineage, entries, proof, status.index)
    marks: dict[str, list[Mark]] = {}

    def line_of(line: RunLine) -> str:
        run = line.genesis.leaf
        marks[run] = _check_run(line, status, records[run], opened[run])
        return f"{len(records[run])} audits and evals"

    said = lineage.each(line_of)
    check_forks(lineage, status, marks)
    check_before(lineage, status, marks)
    for revoked in status.predicate["revoked_keys"]:
        key = ring.get(revoked["keyid"])
        if key is None or key.until is None or key.until > revoked["from"]:
            raise LineageBroken(
                f"{status} lists key {revoked['keyid'][:16]}… as ended from entry {revoked['from']} on, "
                "but the bundle leaves out the entry that ended it"
            )
    if len(lineage.every) == 1:
        return f"{status} of {status.predicate['time']} lists the {said} that are here", Told(status, marks)
    return f"{status} of {status.predicate['time']} lists what is here: {said}", Told(status, marks)


def _records(
    lineage: Lineage, entries: Sequence[Entry], proof: StatusProof | None, below: int
) -> dict[str, list[Entry]]:
    """Per run the entries below a log position that a status lists for it.

    Words name a release, not its run. Of several runs those are told apart by the releases in the bundle, and of other
    releases by what the proof says: a false one gives other records than those that the log signed.
    """
    runs: dict[str, list[Entry]] = {line.genesis.leaf: [] for line in lineage.every}
    releases = {entry.leaf: entry.predicate["run"] for entry in (*lineage.releases, *lineage.before)}
    placed = _placed(entries, proof, releases, several=len(runs) > 1)
    for entry in entries:
        if not is_record(entry.kind, entry.predicate) or entry.index >= below:
            continue
        if len(runs) == 1:
            run: str | None = lineage.genesis.leaf
        elif entry.kind == "endorse":
            run = releases.get(entry.predicate["release"], placed.get(entry.index))
        else:
            run = entry.predicate["run"]
        if run not in runs:
            raise LineageBroken(f"{entry} is on a release that is not here, and the bundle does not say of which run")
        runs[run].append(entry)
    return runs


def _placed(
    entries: Sequence[Entry], proof: StatusProof | None, shown: Collection[str], *, several: bool
) -> dict[int, str]:
    """Where the proof puts words on releases that are not ``shown``, and nothing else: log position → run."""
    opened = () if proof is None else proof.runs
    said = [(index, item.run) for item in opened for index in item.words or ()]
    unplaced = {e.index for e in entries if several and e.kind == "endorse" and e.predicate["release"] not in shown}
    for index, _run in said:
        if index not in unplaced:
            raise LineageBroken(f"the bundle says of which run entry {index} is, which is no word that needs it")
        unplaced.remove(index)
    return dict(said)


def _check_run(line: RunLine, status: Entry, records: Sequence[Entry], opened: RunProof) -> list[Mark]:
    """What the status lists for a run is what the bundle holds; the marks that it lists."""
    marks = [Mark(item.entry, item.kind, item.step) for item in opened.marks]
    leaf = RunSaid(tree("records/1", [entry.raw for entry in records]), marks).leaf(line.genesis.leaf)
    runs = Commitment.from_json(status.predicate["runs"], type="runs/1")
    try:
        nodes = [bytes.fromhex(node) for node in opened.proof]
        merkle.verify_inclusion(opened.position, runs.size, merkle.leaf_hash(leaf), nodes, runs.root_bytes)
    except ProofError as error:
        raise LineageBroken(
            f"the {len(records)} audits, evals and words and the {len(marks)} states, resumes, forks and releases in "
            f"the bundle are not those that {status} lists for the run: something was left out or added"
        ) from error
    listed = set(marks)
    for entry in (*line.releases, *line.chain):
        shown = Mark(entry.index, entry.kind, entry.predicate.get("step", 0))
        if entry.kind in MARKS and entry.index < status.index and shown not in listed:
            raise LineageBroken(
                f"{status} does not list {entry} among the states, resumes, forks and releases of the run"
            )
    return marks


def check_forks(lineage: Lineage, status: Entry, marks: Mapping[str, Sequence[Mark]]) -> None:
    """Of a run that another one here goes on from, the fork is among what the status lists."""
    for genesis in (line.genesis for line in lineage.every):
        init = genesis.predicate["init"]
        if init["kind"] != "parent" or genesis.index > status.index:
            continue
        if Mark(genesis.index, "fork", init["step"]) not in marks[init["run"]]:
            raise LineageBroken(f"{status} does not list {genesis} among the forks of the run that it goes on from")


def check_before(lineage: Lineage, status: Entry, marks: Mapping[str, Sequence[Mark]]) -> None:
    """Of a run that is gone on from, the bundle holds every release up to there: words on it are on what came of it."""
    shown = {entry.index for entry in (*lineage.releases, *lineage.before)}
    for line in lineage.every:
        last = max((state.predicate["step"] for state in lineage.gone_on_from(line)), default=-1)
        for mark in marks[line.genesis.leaf]:
            if mark.kind == "release" and mark.step <= last and mark.entry not in shown:
                raise LineageBroken(
                    f"{status} lists entry {mark.entry}, a release of {line} at step {mark.step}, which is gone on "
                    "from, and the bundle does not hold it: ask for a refreshed bundle"
                )
    for entry in lineage.before:
        listed = Mark(entry.index, "release", entry.predicate["step"])
        if entry.index < status.index and listed not in marks[entry.predicate["run"]]:
            raise LineageBroken(f"{status} does not list {entry} among the releases of the run that is gone on from")


def check_same_log(head: Checkpoint, news: News) -> str:
    """A status from elsewhere contradicts the bundle's checkpoint in nothing that can be seen."""
    if news.head.size == head.size and news.head.root != head.root:
        raise LineageBroken(f"its checkpoint has another root at size {head.size} than the bundle's: two logs")
    return f"{news.entry} of {news.entry.predicate['time']}, below a checkpoint of {news.head.size} entries"


def check_news(lineage: Lineage, entries: Sequence[Entry], proof: StatusProof | None, news: News) -> str:
    """A status from elsewhere lists for every run exactly what the bundle holds up to it."""
    records = _records(lineage, entries, proof, news.entry.index)

    def line_of(line: RunLine) -> str:
        here, listed = records[line.genesis.leaf], news.runs.get(line.genesis.leaf)
        if listed is None:
            if news.entry.index > line.genesis.index:
                raise LineageBroken(f"{news.entry} lists no run {line.genesis.leaf[:16]}…, which began before it")
            return f"{news.entry} is older than the run"
        if tree("records/1", [entry.raw for entry in here]) != listed:
            raise LineageBroken(
                f"{news.entry} lists {listed.size} audits, evals and words for the run, and the bundle does not hold "
                f"just these (it has {len(here)}): ask for a refreshed bundle"
            )
        return f"the bundle holds the {len(here)} audits, evals and words that {news.entry} lists"

    return lineage.each(line_of)


def _check_ledger(status: Entry, proof: StatusProof, head: Checkpoint) -> None:
    seen = Commitment.from_json(status.predicate["ledger"], type="ledger/1")
    if seen.size != status.index:
        raise LineageBroken(f"{status} speaks of {seen.size} entries, but {status.index} stand before it")
    try:
        check_extended(seen.size, seen.root_bytes, head, proof.consistency)
    except ProofError as error:
        raise LineageBroken(f"{status} speaks of another log than the checkpoint: {error}") from error
