"""Gathers the bundle of a release from a ledger: entries, inclusion proofs to one checkpoint, history proofs.

Which entries: the release; its step, and the `state` and `end` of the same run; the genesis; its datasets; every `key`
entry; every audit of the run with its intent; every word on its releases; the newest `status`, and every eval that it
lists for the run; without one, the last eval on each dataset at or before the released step. Of a cast or merge, the
same of every release that it derives from, and of the run of each. Of every run that one of these goes back to, the
same, with the `state` entry that the next run begins with in place of a released step, and its releases up to there:
to revoke one of them is to revoke what came of it. The same ledger and release give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger import jcs, merkle
from bitwitness.ledger.checkpoint import parse_checkpoint
from bitwitness.ledger.commitments import TensorLeaf
from bitwitness.ledger.entry.derivation_rules import sources_of
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.note import parse_note
from bitwitness.ledger.store import Ledger

from ..status import newest_status, prove_runs
from . import bundle, log_line

# All but aliases: which name a release has now says nothing of what it is.
_WORDS = (
    "SELECT endorsements.entry FROM endorsements JOIN releases ON releases.entry = endorsements.release"
    " WHERE releases.run = ? AND alias IS NULL AND endorsements.entry < ? ORDER BY endorsements.entry"
)


class ReleaseMissing(BitwitnessError):
    """The ledger has no such release, or its checkpoint does not reach it."""


class BundleTooLarge(BitwitnessError):
    """More was said about the run than a bundle may hold."""


def collect(ledger: Ledger, release: int, note: str, leaves: Sequence[TensorLeaf]) -> bundle.Provenance:
    """The bundle of the release at log index ``release``, proven to the checkpoint ``note`` of this ledger.

    ``leaves`` are the tensor leaves under the released weights root, in byte order of the names.
    """
    checkpoint = parse_checkpoint(parse_note(note).text)
    if release >= checkpoint.size:
        raise ReleaseMissing(f"the checkpoint covers {checkpoint.size} entries, the release is number {release}")
    with ledger.snapshot():
        shown = _choose(ledger, release, checkpoint.size)
        entries = [
            bundle.LoggedEntry(
                entry=jcs.parse(ledger.entry(index)),
                index=index,
                proof=[node.hex() for node in ledger.inclusion_proof(index, checkpoint.size)],
            )
            for index in sorted(shown.entries)
            if index < checkpoint.size
        ]
        anchors = _anchors(ledger, shown.entries, checkpoint.size) | log_line.handovers(ledger, checkpoint.size)
    made = bundle.Provenance(
        anchors=[anchors[key] for key in sorted(anchors)] or None,
        before=sorted(index for index in shown.before if index < checkpoint.size) or None,
        checkpoint=note,
        entries=entries,
        format=bundle.FORMAT,
        history=shown.history,
        intents=_intents(ledger, shown.entries, checkpoint.size) or None,
        status=shown.status,
        weights=[
            bundle.TensorLeaf(
                bytes=leaf.nbytes, digest=leaf.digest, dtype=leaf.dtype, name=leaf.name, shape=list(leaf.shape)
            )
            for leaf in leaves
        ],
    )
    if len(made.encode()) > bundle.SIZE_LIMIT:
        raise BundleTooLarge(f"the bundle has {len(entries)} entries and more than {bundle.SIZE_LIMIT} bytes")
    return made


@dataclass(frozen=True)
class _Shown:
    """The log indexes of what a bundle holds, and what proves that it belongs together."""

    entries: set[int]
    history: list[bundle.HistoryProof]
    before: set[int]
    status: bundle.StatusProof | None


def _choose(ledger: Ledger, release: int, size: int) -> _Shown:
    """What the bundle of a release holds of the first ``size`` entries."""
    predicate = open_envelope(ledger.entry(release)).statement["predicate"]
    sources = _sources(ledger, predicate)
    steps: dict[str, set[int]] = {predicate["run"]: set()}
    for said in (predicate, *sources.values()):
        steps.setdefault(said["run"], set()).add(said["step"])
    forks = {fork for run in list(steps) for fork in _forks(ledger, run)}
    for fork in forks:
        steps.setdefault(fork.run, set())
    if len(steps) > bundle.RUNS_LIMIT:
        raise BundleTooLarge(f"the release stands on {len(steps)} runs; a bundle can show {bundle.RUNS_LIMIT}")
    geneses = {run: _genesis(ledger, run) for run in steps}
    status = newest_status(ledger, size)
    if status is not None and status < max(geneses.values()):
        status = None  # it says nothing of a run that began after it
    entries = {release, *sources, *_column(ledger, "SELECT entry FROM log WHERE kind = 'key'")}
    entries |= set() if status is None else {status}
    before = {index for fork in forks for index in _released(ledger, fork)} - {release, *sources}
    entries |= before
    history, words = [], {}
    for run, genesis in geneses.items():
        chain = _chain(ledger, genesis, steps[run], {fork for fork in forks if fork.run == run}, release, status)
        history += _history(ledger, genesis, chain)
        words[run] = _column(ledger, _WORDS, genesis, size)
        entries |= {genesis, *chain, *words[run], *_datasets(ledger, genesis, chain), *_said(ledger, genesis)}
    history.sort(key=lambda proof: (proof.within, proof.entry))
    opened = None
    if status is not None:
        # In a bundle of one run all words are of it.
        held = {release, *sources, *before}
        placed = {run: _elsewhere(ledger, words[run], held) if len(words) > 1 else () for run in words}
        opened = prove_runs(ledger, status, placed, size)
    return _Shown(entries, history, before, opened)


def _column(ledger: Ledger, query: str, *parameters: Any) -> list[int]:
    return [int(row[0]) for row in ledger.connection.execute(query, parameters)]


def _sources(ledger: Ledger, predicate: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The releases that a release derives from, theirs too: log index → predicate."""
    found: dict[int, Mapping[str, Any]] = {}
    for leaf in sources_of(predicate):
        index = ledger.find(bytes.fromhex(leaf))
        if index is None:
            raise ReleaseMissing(f"the release {leaf[:16]}… that it derives from is not in this ledger")
        found[index] = open_envelope(ledger.entry(index)).statement["predicate"]
        found |= _sources(ledger, found[index])
    return found


def _genesis(ledger: Ledger, run: str) -> int:
    index = ledger.find(bytes.fromhex(run))
    if index is None:
        raise ReleaseMissing(f"the run {run[:16]}… that the release comes from is not in this ledger")
    return index


@dataclass(frozen=True)
class _Fork:
    """Where a run is gone on from: its id, the step, and the log index of the `state` entry there."""

    run: str
    step: int
    state: int


def _forks(ledger: Ledger, run: str) -> list[_Fork]:
    """Where the runs that one goes back to are gone on from."""
    found: list[_Fork] = []
    while True:
        init = open_envelope(ledger.entry(_genesis(ledger, run))).statement["predicate"]["init"]
        if init["kind"] != "parent":
            return found
        state, run = ledger.find(bytes.fromhex(init["entry"])), init["run"]
        if state is None:
            raise ReleaseMissing(f"the state {init['entry'][:16]}… that a run begins with is not in this ledger")
        found.append(_Fork(run, init["step"], state))


def _released(ledger: Ledger, fork: _Fork) -> list[int]:
    """The releases of a run at or before the step that it is gone on from."""
    query = "SELECT entry FROM releases WHERE run = ? AND step <= ?"
    return _column(ledger, query, _genesis(ledger, fork.run), fork.step)


def _chain(
    ledger: Ledger, genesis: int, steps: set[int], forks: set[_Fork], release: int, status: int | None
) -> list[int]:
    """Log indexes of the run's entries that the bundle holds, but the genesis, in the order of the run.

    ``steps`` are those of its releases in the bundle, ``forks`` where other runs here go on from it.
    """
    chosen = {fork.state for fork in forks}
    last = max({*steps, *(fork.step for fork in forks)})
    for number in sorted(steps):
        chosen |= set(_column(ledger, "SELECT entry FROM steps WHERE run = ? AND step = ?", genesis, number))
        chosen |= set(_column(ledger, "SELECT entry FROM states WHERE run = ? AND step = ?", genesis, number))
    chosen |= set(_column(ledger, "SELECT entry FROM run_events WHERE run = ? AND kind = 'end'", genesis))
    measured = ledger.connection.execute(
        "SELECT dataset, step, entry FROM evals WHERE run = ? AND step <= ? ORDER BY step, entry", (genesis, last)
    )
    chosen |= {int(entry) for entry in {row[0]: row[2] for row in measured}.values()}
    chosen = {index for index in chosen if index < release}
    if status is not None:  # it lists all evals before it, whatever their step
        chosen |= set(_column(ledger, "SELECT entry FROM evals WHERE run = ? AND entry < ?", genesis, status))
    return sorted(chosen)


def _datasets(ledger: Ledger, genesis: int, chain: Sequence[int]) -> set[int]:
    used = set(_column(ledger, "SELECT dataset FROM run_datasets WHERE run = ?", genesis))
    for index in chain:
        used |= set(_column(ledger, "SELECT dataset FROM evals WHERE entry = ?", index))
    return used


def _said(ledger: Ledger, genesis: int) -> set[int]:
    """All that auditors said about a run."""
    chosen = set(_column(ledger, "SELECT entry FROM audit_intents WHERE run = ?", genesis))
    chosen |= set(_column(ledger, "SELECT entry FROM rechecks WHERE run = ?", genesis))
    return chosen | set(_column(ledger, "SELECT entry FROM audits WHERE run = ?", genesis))


def _elsewhere(ledger: Ledger, words: Iterable[int], shown: set[int]) -> list[int]:
    """Those of these words that are on releases which the bundle does not hold."""
    query = "SELECT release FROM endorsements WHERE entry = ?"
    return [index for index in words if _column(ledger, query, index)[0] not in shown]


def _history(ledger: Ledger, genesis: int, chain: Sequence[int]) -> list[bundle.HistoryProof]:
    """Proofs that the genesis is in the history of each entry of ``chain``, and each in that of the last."""
    if not chain:
        return []
    rows = ledger.connection.execute(
        "SELECT log.entry, seq, leaf_hash FROM log JOIN entries ON idx = log.entry"
        " WHERE run = ? AND seq IS NOT NULL AND log.entry <= ? ORDER BY seq",
        (genesis, chain[-1]),
    ).fetchall()
    position = {int(entry): int(seq) for entry, seq, _ in rows}
    node = merkle.nodes_of([bytes(leaf) for _, _, leaf in rows])
    pairs = {(entry, genesis) for entry in chain} | {(chain[-1], entry) for entry in chain[:-1]}
    return [
        bundle.HistoryProof(
            entry=inner,
            proof=[item.hex() for item in merkle.inclusion_proof_from_nodes(position[inner], position[outer], node)],
            within=outer,
        )
        for outer, inner in sorted(pairs)
    ]


def _intents(ledger: Ledger, chosen: Iterable[int], size: int) -> list[bundle.IntentProof]:
    """What each announced audit in ``chosen`` was of, proven to be the beginning of the first ``size`` entries."""
    announced = set(_column(ledger, "SELECT entry FROM audit_intents")) & {index for index in chosen if index < size}
    found = []
    for index in sorted(announced):
        seen = open_envelope(ledger.entry(index)).statement["predicate"]["size"]
        proof = [node.hex() for node in ledger.consistency_proof(seen, size)]
        found.append(bundle.IntentProof(consistency=proof, entry=index))
    return found


def _anchors(ledger: Ledger, chosen: Iterable[int], size: int) -> dict[int, bundle.Anchor]:
    """Cosigned checkpoints from before each revocation that concerns an entry in ``chosen``, proven to ``size``.

    By their size.
    """
    found: dict[int, bundle.Anchor] = {}
    query = (
        "SELECT log.signer, max(log.entry), min(ended.entry) FROM log JOIN key_revocations AS ended"
        " ON ended.key = log.signer JOIN log AS ending ON ending.entry = ended.entry WHERE log.entry = ?"
        " AND log.kind <> 'key' AND NOT EXISTS (SELECT 1 FROM keys WHERE keys.entry = ended.entry)"
        " GROUP BY log.signer"
    )
    needed: dict[int, tuple[int, int]] = {}
    for index in chosen:
        for signer, _entry, end in ledger.connection.execute(query, (index,)):
            needed[signer] = (max(index, needed.get(signer, (0, 0))[0]), end)
    for newest, end in needed.values():
        rows = ledger.connection.execute(
            "SELECT size, note FROM checkpoints WHERE size > ? AND size <= ? ORDER BY id DESC", (newest, min(end, size))
        )
        # Signature lines beyond the log's own are cosignatures; whose, the consumer's policy decides.
        best = max(rows, key=lambda row: (row[1].count("\n\N{EM DASH} "), row[0]), default=None)
        if best is not None and best[1].count("\n\N{EM DASH} ") > 1:
            proof = [node.hex() for node in ledger.consistency_proof(best[0], size)]
            found[best[0]] = bundle.Anchor(checkpoint=best[1], proof=proof)
    return found
