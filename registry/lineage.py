"""Follows a release back to its origin: step, genesis, datasets, and what was measured and audited on the way.

Works on entries that `evidence.py` has already authenticated; what is checked here is that they belong
together. Entries that do not belong to this release are refused, so that a bundle says nothing beside the point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bitwitness.ledger import merkle
from bitwitness.ledger.beacon import BeaconWrong, check_seed
from bitwitness.ledger.commitments import Commitment, state_digest
from bitwitness.ledger.derivation_rules import check_derivation, sources_of
from bitwitness.ledger.entries import KINDS
from bitwitness.ledger.errors import FoundWrong, ProofError
from bitwitness.ledger.verify import KeyRing

from .bundle import HistoryProof
from .evidence import Entry

# Kinds that say something about a model but are neither part of a run nor of its origin.
_ABOUT_KEYS = frozenset({"key", "status", "endorse"})


class LineageBroken(FoundWrong):
    """Authentic entries that do not add up to the origin of this release; the message names them."""


@dataclass(frozen=True)
class Parent:
    """A run that another one goes on from: its genesis, and the entry of the state that the other begins with."""

    genesis: Entry
    state: Entry

    def __str__(self) -> str:
        name, step = self.genesis.predicate["name"], self.state.predicate["step"]
        return f"step {step} of run {name} ({self.genesis.leaf[:16]}…)"


@dataclass(frozen=True)
class Lineage:
    """A release and what it stands on. ``released`` is the step entry, or the genesis for step 0.

    ``chain`` holds the run's entries of the bundle but the genesis, in the order of their `seq`.
    """

    release: Entry
    genesis: Entry
    released: Entry
    chain: Sequence[Entry]
    datasets: Sequence[Entry]
    intents: Sequence[Entry]
    audits: Sequence[Entry]
    sources: Sequence[Entry] = ()
    """The releases that this one derives from, directly or not."""
    origins: Mapping[str, Entry] = field(default_factory=dict)
    """For each of them, by leaf hash, the entry of the step that it names."""
    parents: Sequence[Parent] = ()
    """The runs that its run goes back to, the nearest first."""
    rechecks: Sequence[Entry] = ()
    """What other auditors said of the audits, having computed them again."""

    @property
    def step(self) -> int:
        step: int = self.release.predicate["step"]
        return step

    @property
    def evals(self) -> list[Entry]:
        return [entry for entry in self.chain if entry.kind == "eval"]

    @property
    def end(self) -> Entry | None:
        return next((entry for entry in self.chain if entry.kind == "end"), None)


def find(entries: Sequence[Entry]) -> Lineage:
    """Pick out the one release and all that it names; raises LineageBroken if something is absent or foreign."""
    releases = {entry.leaf: entry for entry in entries if entry.kind == "release"}
    used_by = {leaf for entry in releases.values() for leaf in sources_of(entry.predicate)}
    release = _only(entry for leaf, entry in releases.items() if leaf not in used_by)
    sources = _sources(release, releases)
    run = release.predicate["run"]
    genesis = _named(entries, "run", run, f"the run {run[:16]}… of {release}")
    parents = _parents(genesis, entries)
    others = {genesis.index, *(entry.index for parent in parents for entry in (parent.genesis, parent.state))}
    chain = sorted(
        (entry for entry in entries if KINDS[entry.kind].chained and entry.index not in others),
        key=lambda entry: entry.predicate["seq"],
    )
    intents = [entry for entry in entries if entry.kind == "audit-intent"]
    audits = [entry for entry in entries if entry.kind == "audit"]
    rechecks = [entry for entry in entries if entry.kind == "recheck"]
    for entry in (*chain, *intents, *audits, *rechecks):
        if entry.kind == "run" or entry.predicate["run"] != run:
            raise LineageBroken(f"{entry} belongs to another run")
    used = {item["entry"] for item in genesis.predicate["datasets"]}
    used |= {entry.predicate["dataset"]["entry"] for entry in chain if entry.kind == "eval"}
    datasets = [entry for entry in entries if entry.kind == "dataset"]
    for entry in datasets:
        if entry.leaf not in used:
            raise LineageBroken(f"{entry} is a dataset that the run does not use")
    known = others | {entry.index for entry in (release, *sources, *chain, *intents, *audits, *rechecks, *datasets)}
    for entry in entries:
        if entry.index not in known and entry.kind not in _ABOUT_KEYS:
            raise LineageBroken(f"{entry} does not belong to the release")
    released = _made(release, genesis, chain)
    origins = {entry.leaf: _made(entry, genesis, chain) for entry in sources}
    return Lineage(release, genesis, released, chain, datasets, intents, audits, sources, origins, parents, rechecks)


def _parents(genesis: Entry, entries: Sequence[Entry]) -> list[Parent]:
    """The runs that one goes back to, the nearest first, each held to what the genesis after it says."""
    found: list[Parent] = []
    while (init := genesis.predicate["init"])["kind"] == "parent":
        state = _named(entries, "state", init["entry"], f"the state that {genesis} begins with")
        before = _named(entries, "run", init["run"], f"the run {init['run'][:16]}… that {genesis} goes on from")
        if any(state.predicate[name] != init[name] for name in ("run", "step", "state")):
            raise LineageBroken(f"{genesis} begins with another state than {state} stored")
        if not before.index < state.index < genesis.index:
            raise LineageBroken(f"{genesis} stands before {state}, which it begins with")
        found.append(Parent(before, state))
        genesis = before
    return found


def _made(release: Entry, genesis: Entry, chain: Sequence[Entry]) -> Entry:
    """The entry of the step that a release names, or the genesis for its first."""
    step = release.predicate["step"]
    if step == genesis.predicate["control"]["step"]:
        return genesis
    steps = [entry for entry in chain if entry.kind == "step" and entry.computed["step"] == step]
    if len(steps) != 1:
        raise LineageBroken(f"{len(steps)} entries for the released step {step}, not one")
    return steps[0]


def _sources(release: Entry, releases: Mapping[str, Entry]) -> list[Entry]:
    """The releases that one derives from, theirs too, in log order."""
    found: dict[str, Entry] = {}
    due = sources_of(release.predicate)
    while due:
        leaf = due.pop()
        if leaf not in releases:
            raise LineageBroken(f"the release {leaf[:16]}… that {release} derives from is not in the bundle")
        if leaf not in found:
            found[leaf] = releases[leaf]
            due += sources_of(releases[leaf].predicate)
    return sorted(found.values(), key=lambda entry: entry.index)


def check_release(lineage: Lineage, origin: str) -> str:
    """The release names the state and weights of its step, made in the trusted log, and came after it."""
    release, released, genesis = lineage.release, lineage.released, lineage.genesis
    before = {entry.leaf: entry for entry in lineage.sources}
    for entry, made in [(release, released), *((entry, lineage.origins[entry.leaf]) for entry in lineage.sources)]:
        _check_made(entry, made, before)
    if genesis.predicate["origin"] != origin:
        raise LineageBroken(f"{genesis} was made for log {genesis.predicate['origin']}, not for {origin}")
    name, version = release.predicate["model"], release.predicate["version"]
    return (
        f"{name}/{version} is step {lineage.step} of run {genesis.predicate['name']} ({genesis.leaf[:16]}…), "
        + "".join(f"which goes on from {parent}, " for parent in lineage.parents)
        + f"published by {release.envelope.keyid[:16]}…"
    )


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

    So for the step of every release that this one derives from.
    """
    digest = _check_state(lineage, lineage.released)
    for made in lineage.origins.values():
        _check_state(lineage, made)
    return f"state {digest[:16]}… recomputed from control, optimizer and weights"


def _check_state(lineage: Lineage, made: Entry) -> str:
    released = made.computed
    optimizer = released.get("optimizer")
    computed = state_digest(
        released["control"],
        None if optimizer is None else Commitment.from_json(optimizer, type="optimizer/1"),
        Commitment.from_json(released["weights"], type="weights/1"),
    )
    if computed != released["state"]:
        raise LineageBroken(f"{made} names state {released['state'][:16]}…, its parts give {computed[:16]}…")
    for entry in lineage.chain:
        if entry.kind in ("state", "end", "eval") and entry.predicate["step"] == released["control"]["step"]:
            for name in ("state", "weights"):
                if entry.predicate[name] != released[name]:
                    raise LineageBroken(f"{entry} and {made} name different {name} for one step")
    return computed


def check_chain(lineage: Lineage, proofs: Sequence[HistoryProof], ring: KeyRing) -> str:
    """Every entry of the run descends from the genesis, and all lie on one chain.

    Needs, for each, the proof that the genesis is leaf 0 of the history it signed, and that it is leaf `seq` of
    the history that the last of them signed. Positions and sizes are the signed ones.
    """
    by_index = {entry.index: entry for entry in (lineage.genesis, *lineage.chain)}
    by_index |= {entry.index: entry for parent in lineage.parents for entry in (parent.genesis, parent.state)}
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
    previous = lineage.genesis
    for entry in lineage.chain:
        if entry.index <= previous.index:
            raise LineageBroken(f"{entry} stands before {previous} in the log but after it in the run")
        if entry.predicate["seq"] == previous.predicate["seq"]:
            raise LineageBroken(f"{previous} and {entry} are both entry {entry.predicate['seq']} of the run: a fork")
        if entry.predicate["seq"] == previous.predicate["seq"] + 1 and entry.predicate["prev"] != previous.leaf:
            raise LineageBroken(f"{entry} follows {previous} but names another entry before it")
        if not ring.may_continue(entry.envelope.keyid, lineage.genesis.envelope.keyid):
            raise LineageBroken(f"{entry} is not signed by the key that began the run, or one that replaced it")
        previous = entry
    needed = [(parent.genesis.index, parent.state.index) for parent in lineage.parents]
    for parent in lineage.parents:
        if not ring.may_continue(parent.state.envelope.keyid, parent.genesis.envelope.keyid):
            raise LineageBroken(f"{parent.state} is not signed by the key that began its run, or one that replaced it")
    if lineage.chain:
        last = lineage.chain[-1]
        needed += [(lineage.genesis.index, entry.index) for entry in lineage.chain]
        needed += [(entry.index, last.index) for entry in lineage.chain[:-1]]
    for inner_index, outer_index in needed:
        if (inner_index, outer_index) not in proven:
            raise LineageBroken(f"no proof that {by_index[inner_index]} is in the history of {by_index[outer_index]}")
    return f"genesis {lineage.genesis.leaf[:16]}… is entry 0 of the history of {len(lineage.chain)} entries of the run"


def check_datasets(lineage: Lineage) -> str:
    """Every dataset that the run or an eval names is in the bundle, logged before the run that used it."""
    logged = {entry.leaf: entry for entry in lineage.datasets}
    uses = [(lineage.genesis, item) for item in lineage.genesis.predicate["datasets"]]
    uses += [(entry, entry.predicate["dataset"]) for entry in lineage.evals]
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
        for item in lineage.genesis.predicate["datasets"]
    )


def check_audits(lineage: Lineage) -> str:
    """Every audit answers an intent of the same auditor about this run, made before it; none answers twice.

    Every recheck is another auditor's, of an audit before it.
    """
    intents = {entry.leaf: entry for entry in lineage.intents}
    answered: set[str] = set()
    for audit in lineage.audits:
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
                origin=lineage.genesis.predicate["origin"],
            )
        except BeaconWrong as error:
            raise LineageBroken(f"{audit}: {error}") from error
        answered.add(intent.leaf)
    audits = {audit.leaf: audit for audit in lineage.audits}
    for recheck in lineage.rechecks:
        rechecked = audits.get(recheck.predicate["audit"])
        if rechecked is None or not rechecked.index < recheck.index:
            raise LineageBroken(f"{recheck} is of an audit that the bundle does not hold before it")
        if rechecked.envelope.keyid == recheck.envelope.keyid:
            raise LineageBroken(f"{recheck} is of its auditor's own audit")
    open_intents = len(intents) - len(answered)
    note = f", intents without a result, which count as failed: {open_intents}" if open_intents else ""
    return f"audits of the run: {len(lineage.audits)}{note}"


def _only(entries: Iterable[Entry]) -> Entry:
    found = list(entries)
    if len(found) != 1:
        raise LineageBroken(f"the bundle holds {len(found)} releases, not one")
    return found[0]


def _named(entries: Sequence[Entry], kind: str, leaf: str, what: str) -> Entry:
    for entry in entries:
        if entry.kind == kind and entry.leaf == leaf:
            return entry
    raise LineageBroken(f"{what} is not in the bundle")
