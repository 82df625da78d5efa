"""Holds the entries of a lineage against one another: release, chain, state, data and audits, run by run.

Works on entries that `evidence.py` authenticated and `lineage.py` sorted out. Each check returns one line, or raises
LineageBroken with the entries at fault; of a release that stands on several runs it says so for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitwitness.ledger import merkle
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.commitments import Commitment, state_digest
from bitwitness.ledger.entry.beacon import BeaconWrong, check_seed
from bitwitness.ledger.entry.derivation_rules import check_derivation
from bitwitness.ledger.errors import ProofError
from bitwitness.ledger.verify import KeyRing

from ..bundles.bundle import HistoryProof, IntentProof
from ..bundles.evidence import Entry
from ..bundles.extension import check_extended
from ..bundles.lineage import Lineage, LineageBroken, RunLine


def check_release(lineage: Lineage, origin: str) -> str:
    """The release names the state and weights of its step, made in the trusted log, and came after it.

    So does every release that it derives from, each of its own run.
    """
    before = {entry.leaf: entry for entry in lineage.sources}
    for entry in lineage.releases:
        _check_made(entry, lineage.of(entry).made[entry.leaf], before)
    for line in lineage.every:
        genesis = line.genesis
        if genesis.predicate["origin"] != origin:
            raise LineageBroken(f"{genesis} was made for log {genesis.predicate['origin']}, not for {origin}")
    said = lineage.release.predicate
    made = "; and from ".join(
        f"step {line.step} of {line}" + "".join(f", which goes on from {parent}" for parent in line.parents)
        for line in lineage.runs
    )
    verb = "is" if len(lineage.runs) == 1 else "derives from"
    return f"{said['model']}/{said['version']} {verb} {made}, published by {lineage.release.envelope.keyid[:16]}…"


def _check_made(release: Entry, made: Entry, before: Mapping[str, Entry]) -> None:
    """A release names what its step made, or what the releases before it derive to."""

    def earlier(leaf: str) -> Mapping[str, Any] | None:
        source = before.get(leaf)
        return source.predicate if source is not None and source.index < release.index else None

    derived = "derivation" in release.predicate
    for name in ("state",) if derived else ("state", "weights"):
        if release.predicate[name] != made.computed[name]:
            raise LineageBroken(f"{release} names other {name} than {made}, the step it says it releases")
    if release.index <= made.index:
        raise LineageBroken(f"{release} stands before {made} in the log")
    if derived:
        for problem in check_derivation(release.predicate, earlier):
            raise LineageBroken(f"{release} {problem}")


def check_state(lineage: Lineage) -> str:
    """The state digest follows from control, optimizer and weights, and every entry on this step agrees.

    So for the step of every release that this one derives from, and of every state that a run goes on from.
    """

    def line_of(line: RunLine) -> str:
        states = lineage.gone_on_from(line)
        for made in (*line.made.values(), *states):
            _check_state(line, made)
        digest = (line.released if line.releases else states[-1]).computed["state"]
        return f"state {digest[:16]}… recomputed from control, optimizer and weights"

    return lineage.each(line_of)


def _check_state(line: RunLine, made: Entry) -> None:
    released = made.computed
    optimizer = released.get("optimizer")
    computed = state_digest(
        released["control"],
        None if optimizer is None else Commitment.from_json(optimizer, type="optimizer/1"),
        Commitment.from_json(released["weights"], type="weights/1"),
    )
    if computed != released["state"]:
        raise LineageBroken(f"{made} names state {released['state'][:16]}…, its parts give {computed[:16]}…")
    for entry in line.chain:
        if entry.kind in ("state", "end", "eval") and entry.predicate["step"] == released["control"]["step"]:
            for name in ("state", "weights"):
                if entry.predicate[name] != released[name]:
                    raise LineageBroken(f"{entry} and {made} name different {name} for one step")


def check_chain(lineage: Lineage, proofs: Sequence[HistoryProof], ring: KeyRing) -> str:
    """Every entry of a run descends from its genesis, and all lie on one chain.

    Needs, for each, the proof that the genesis is leaf 0 of the history it signed, and that it is leaf `seq` of
    the history that the last of them signed. Positions and sizes are the signed ones.
    """
    by_index = {entry.index: entry for line in lineage.every for entry in (line.genesis, *line.chain)}
    proven: set[tuple[int, int]] = set()
    for proof in proofs:
        inner, outer = by_index.get(proof.entry), by_index.get(proof.within)
        if inner is None or outer is None:
            raise LineageBroken(f"a history proof is about entries {proof.entry} and {proof.within}, not of this run")
        history = Commitment.from_json(outer.predicate["history"], type="history/1")
        try:
            merkle.verify_inclusion(
                inner.predicate["seq"],
                history.size,
                bytes.fromhex(inner.leaf),
                [bytes.fromhex(node) for node in proof.proof],
                history.root_bytes,
            )
        except ProofError as error:
            raise LineageBroken(f"{inner} is not in the history of {outer}: {error}") from error
        proven.add((inner.index, outer.index))

    def line_of(line: RunLine) -> str:
        _check_order(line, ring)
        for inner, outer in _needed(line):
            if (inner.index, outer.index) not in proven:
                raise LineageBroken(f"no proof that {inner} is in the history of {outer}")
        return f"genesis {line.genesis.leaf[:16]}… is entry 0 of the history of {len(line.chain)} entries of the run"

    return lineage.each(line_of)


def _check_order(line: RunLine, ring: KeyRing) -> None:
    """The run's entries stand in the log in the order of the run, by one trainer, and no two have one place."""
    previous = line.genesis
    for entry in line.chain:
        if entry.index <= previous.index:
            raise LineageBroken(f"{entry} stands before {previous} in the log but after it in the run")
        if entry.predicate["seq"] == previous.predicate["seq"]:
            raise LineageBroken(f"{previous} and {entry} are both entry {entry.predicate['seq']} of the run: a fork")
        if entry.predicate["seq"] == previous.predicate["seq"] + 1 and entry.predicate["prev"] != previous.leaf:
            raise LineageBroken(f"{entry} follows {previous} but names another entry before it")
        if not ring.may_continue(entry.envelope.keyid, line.genesis.envelope.keyid):
            raise LineageBroken(f"{entry} is not signed by the key that began the run, or one that replaced it")
        previous = entry


def _needed(line: RunLine) -> list[tuple[Entry, Entry]]:
    """(entry, the entry whose history must be shown to hold it)."""
    needed = [(line.genesis, entry) for entry in line.chain]
    return needed + [(entry, line.chain[-1]) for entry in line.chain[:-1]]


def check_datasets(lineage: Lineage) -> str:
    """Every dataset that a run or an eval names is in the bundle, logged before the run that used it."""
    return lineage.each(_check_datasets)


def _check_datasets(line: RunLine) -> str:
    logged = {entry.leaf: entry for entry in line.datasets}
    uses = [(line.genesis, item) for item in line.genesis.predicate["datasets"]]
    uses += [(entry, entry.predicate["dataset"]) for entry in line.evals]
    for user, item in uses:
        entry = logged.get(item["entry"])
        if entry is None:
            raise LineageBroken(f"the dataset {item['name']} of {user} is not in the bundle")
        if entry.predicate["dataset"] != item["dataset"]:
            raise LineageBroken(f"{user} names another tree for dataset {item['name']} than {entry}")
        if entry.index >= user.index:
            raise LineageBroken(f"{entry} stands after {user}, which used it")
    return ", ".join(
        f"{item['role']}: {item['name']} ({logged[item['entry']].predicate['documents']} documents, "
        f"root {item['dataset']['root'][:16]}…)"
        for item in line.genesis.predicate["datasets"]
    )


def check_audits(lineage: Lineage, proofs: Sequence[IntentProof], head: Checkpoint) -> str:
    """Every audit answers an intent of the same auditor about its run, made before it; none answers twice.

    Every intent was made over the entries of this log, and not over others that its owner signed: what an auditor saw
    binds whoever goes by his word. Every recheck is another auditor's, of an audit before it.
    """
    shown = {proof.entry: proof for proof in proofs}
    intents = {intent.index for line in lineage.every for intent in line.intents}
    if shown.keys() != intents:
        raise LineageBroken("not of each announced audit is shown which log it is of: ask for a refreshed bundle")
    for line in lineage.every:
        for intent in line.intents:
            _check_seen(intent, shown[intent.index], head)
    return lineage.each(_check_audits)


def _check_seen(intent: Entry, proof: IntentProof, head: Checkpoint) -> None:
    said = intent.predicate
    try:
        check_extended(said["size"], bytes.fromhex(said["root"]), head, proof.consistency)
    except ProofError as error:
        raise LineageBroken(f"{intent} was made over {said['size']} entries of another log: {error}") from error


def _check_audits(line: RunLine) -> str:
    intents = {entry.leaf: entry for entry in line.intents}
    answered: set[str] = set()
    for audit in line.audits:
        intent = intents.get(audit.predicate["intent"])
        if intent is None:
            raise LineageBroken(f"the intent of {audit} is not in the bundle")
        if intent.leaf in answered:
            raise LineageBroken(f"{audit} is a second answer to {intent}")
        if intent.envelope.keyid != audit.envelope.keyid:
            raise LineageBroken(f"{audit} answers {intent}, which another auditor made")
        if not intent.predicate["size"] <= intent.index < audit.index:
            raise LineageBroken(f"{intent} was not made before {audit}")
        try:
            check_seed(
                audit.predicate,
                intent.predicate,
                leaf=bytes.fromhex(intent.leaf),
                index=intent.index,
                answer=audit.index,
                origin=line.genesis.predicate["origin"],
            )
        except BeaconWrong as error:
            raise LineageBroken(f"{audit}: {error}") from error
        answered.add(intent.leaf)
    audits = {audit.leaf: audit for audit in line.audits}
    for recheck in line.rechecks:
        rechecked = audits.get(recheck.predicate["audit"])
        if rechecked is None or not rechecked.index < recheck.index:
            raise LineageBroken(f"{recheck} is of an audit that the bundle does not hold before it")
        if rechecked.envelope.keyid == recheck.envelope.keyid:
            raise LineageBroken(f"{recheck} is of its auditor's own audit")
    open_intents = len(intents) - len(answered)
    note = f", intents without a result, which count as failed: {open_intents}" if open_intents else ""
    return f"audits of the run: {len(line.audits)}{note}"
