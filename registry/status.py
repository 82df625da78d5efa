"""Makes the log's `status` entry: what was revoked so far, and for every run the exact list of what was said of it.

A bundle alone cannot show that nothing was left out. With a `status` after the release it can: the log signs, per run,
the commitment `records/1` over all its audit-intent, audit, recheck and eval entries and words on its releases, so a
bundle that holds back one of them no longer meets it (`completeness.py` checks that), and the commitment `marks/1` over
what the samples of its audits are drawn from: its stored states, resumes, forks and releases. `ledger model register`
appends one after the release, `ledger model revoke` after the revocation, `ledger status` whenever it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitwitness.ledger import merkle
from bitwitness.ledger.commitments import Commitment, from_leaf_hashes, mark_leaf, run_records_leaf, tree
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import open_envelope, seal
from bitwitness.ledger.files import rfc3339
from bitwitness.trainer.sample import Mark

from .bundles import bundle
from .checks import Check

if TYPE_CHECKING:
    from bitwitness.ledger.keys import Signer
    from bitwitness.ledger.store import Ledger

_RECORDS = ("audit-intent", "audit", "recheck", "eval", "endorse")
_MARKS = (
    "SELECT hash, marks.entry, kind, marks.step FROM ("
    "SELECT entry, run, step, 'state' AS kind FROM states"
    " UNION ALL SELECT entry, run, step, kind FROM run_events WHERE kind = 'resume'"
    " UNION ALL SELECT entry, run, step, 'release' FROM releases"
    " UNION ALL SELECT entry, parent, parent_step, 'fork' FROM runs WHERE parent IS NOT NULL"
    ") AS marks JOIN runs ON runs.entry = marks.run WHERE marks.entry < ? ORDER BY marks.entry"
)


def is_record(kind: str, predicate: Mapping[str, Any]) -> bool:
    """Whether a status lists an entry with its run: all that was said of it, but which alias names which release."""
    return kind in _RECORDS and "alias" not in predicate


def append_status(ledger: Ledger, log: Signer) -> int:
    """Append the status of the ledger as it stands and return its index; if the last entry is one, that stands."""
    previous = newest_status(ledger, ledger.size)
    if previous == ledger.size - 1:
        return previous
    sequence = ledger.connection.execute("SELECT max(sequence) + 1 FROM statuses").fetchone()[0] or 0
    predicate = {
        "signer": log.keyid,
        "sequence": sequence,
        "time": rfc3339.now(),
        **what_is_true(ledger, ledger.size),
    }
    (index,) = ledger.append([seal(statement("status", None, predicate), log)])
    return index


def what_is_true(ledger: Ledger, size: int) -> dict[str, Any]:
    """The fields that a status made after the first ``size`` entries must have."""
    return {
        "ledger": Commitment("ledger/1", size, ledger.root(size).hex()).to_json(),
        "revoked_keys": _ended_keys(ledger, size),
        "revoked_releases": _revoked_releases(ledger, size),
        "runs": tree("runs/1", _leaves(run_records(ledger, size))).to_json(),
    }


def check_statuses(ledger: Ledger) -> list[Check]:
    """Compare every status in the ledger with the entries before it, one check each."""
    checks, last = [], -1
    for (index,) in ledger.connection.execute(
        "SELECT entry FROM log WHERE kind = 'status' AND kind <> 'step' ORDER BY entry"
    ).fetchall():
        said = open_envelope(ledger.entry(index)).statement["predicate"]
        wrong = [name for name, value in what_is_true(ledger, index).items() if said[name] != value]
        if said["sequence"] <= last:
            wrong.append("sequence")
        last = said["sequence"]
        about = f"number {said['sequence']} of {said['time']}"
        detail = f"{about} does not follow from the entries before it: {', '.join(wrong)}" if wrong else about
        checks.append(Check(f"status {index}", not wrong, detail, "CRYPTO"))
    if not checks:
        checks.append(Check("status", None, "the ledger has no status yet; `ledger status` signs one", "CRYPTO"))
    return checks


def newest_status(ledger: Ledger, size: int) -> int | None:
    """The index of the last `status` among the first ``size`` entries."""
    query = "SELECT max(entry) FROM log WHERE kind = 'status' AND kind <> 'step' AND entry < ?"
    found = ledger.connection.execute(query, (size,)).fetchone()[0]
    return None if found is None else int(found)


@dataclass(frozen=True)
class RunSaid:
    """What a status lists of one run: `records` over what was said of it, and the marks that its audits draw from."""

    records: Commitment
    marks: Sequence[Mark]

    def leaf(self, run: str) -> bytes:
        """The run's leaf in the tree that the status signs."""
        return run_records_leaf(run, self.records, marks_commitment(self.marks))


def marks_commitment(marks: Iterable[Mark]) -> Commitment:
    """`marks/1` over marks in ledger order."""
    return tree("marks/1", [mark_leaf(mark.entry, mark.kind, mark.step) for mark in marks])


def run_records(ledger: Ledger, size: int) -> dict[str, RunSaid]:
    """Per run begun in the first ``size`` entries, ascending by id: what they say of it, in ledger order."""
    listed: dict[str, list[bytes]] = {
        str(row[0]): [] for row in ledger.connection.execute("SELECT hash FROM runs WHERE entry < ?", (size,))
    }
    marks: dict[str, list[Mark]] = {run: [] for run in listed}
    kinds = ", ".join("?" * len(_RECORDS))
    query = (
        "SELECT runs.hash, leaf_hash FROM log JOIN runs ON runs.entry = log.run JOIN entries ON idx = log.entry"
        " LEFT JOIN endorsements ON endorsements.entry = log.entry"
        f" WHERE log.kind IN ({kinds}) AND log.kind <> 'step' AND log.entry < ? AND alias IS NULL ORDER BY log.entry"
    )
    for run, leaf in ledger.connection.execute(query, (*_RECORDS, size)):
        listed[run].append(bytes(leaf))
    for run, entry, kind, step in ledger.connection.execute(_MARKS, (size,)):
        marks[run].append(Mark(int(entry), str(kind), int(step)))
    return {run: RunSaid(from_leaf_hashes("records/1", listed[run]), marks[run]) for run in sorted(listed)}


def prove_runs(ledger: Ledger, status: int, runs: Mapping[str, Sequence[int]], size: int) -> bundle.StatusProof:
    """The proofs that the status entry at ``status`` speaks of these runs, and of the log of ``size`` entries.

    ``runs`` holds for each the words on releases of it that nothing else in the bundle says to be of it.
    """
    records = run_records(ledger, status)
    hashes = [merkle.leaf_hash(leaf) for leaf in _leaves(records)]
    opened = []
    for position, (run, said) in enumerate(records.items()):
        if run in runs:
            opened.append(
                bundle.RunProof(
                    marks=[bundle.RunMark.model_validate(vars(mark)) for mark in said.marks],
                    position=position,
                    proof=[node.hex() for node in merkle.inclusion_proof(position, hashes)],
                    run=run,
                    words=list(runs[run]) or None,
                )
            )
    return bundle.StatusProof(
        consistency=[node.hex() for node in ledger.consistency_proof(status, size)],
        runs=opened,
    )


def _leaves(records: Mapping[str, RunSaid]) -> list[bytes]:
    return [said.leaf(run) for run, said in records.items()]


def _ended_keys(ledger: Ledger, size: int) -> list[dict[str, Any]]:
    """Every key that was revoked or replaced, by keyid, and the first entry from which it no longer counts."""
    rows = ledger.connection.execute(
        "SELECT keys.keyid, min(from_index) FROM key_revocations AS ended JOIN keys ON keys.entry = ended.key"
        " WHERE ended.entry < ? GROUP BY keys.keyid ORDER BY keys.keyid",
        (size,),
    )
    return [{"keyid": keyid, "from": first} for keyid, first in rows]


def _revoked_releases(ledger: Ledger, size: int) -> list[str]:
    """The leaf hashes of the releases that a publisher revoked, in the order of their entries."""
    rows = ledger.connection.execute(
        "SELECT DISTINCT releases.hash FROM endorsements AS said JOIN releases ON releases.entry = said.release"
        " WHERE said.statement = 'revoked' AND said.entry < ? ORDER BY releases.entry",
        (size,),
    )
    return [str(row[0]) for row in rows]
