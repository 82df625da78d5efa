"""What links the entries of a ledger, followed in order: references, the runs' chains, and what runs say.

Part of the independent verifier. Everything here goes by the facts that verify_rows took from signed bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from . import merkle
from .entry.beacon import BeaconWrong, check_seed
from .entry.derivation_rules import FIELDS, check_derivation
from .entry.run_rules import RunRuleBroken, RunRules, check_parent
from .errors import FoundWrong
from .verify import KeyRing
from .verify_rows import Facts


class Report(Protocol):
    def fault(self, check: str, table: str, index: int | None, detail: str) -> None: ...


@dataclass
class _Run:
    signer: str
    prev: str
    tree: merkle.Frontier
    rules: RunRules


@dataclass
class _Intent:
    index: int
    auditor: str
    said: Mapping[str, Any]
    answered: bool = False


class Links:
    """Follows the entries in order and checks what each says of those before it."""

    def __init__(self, report: Report, keys: KeyRing, origin: str | None, roots: Mapping[int, bytes]) -> None:
        self._report = report
        self._keys = keys
        self._origin = origin
        self._roots = roots
        self._runs: dict[str, _Run] = {}
        self._names: set[str] = set()
        self._kinds: dict[str, str] = {}
        self._payloads: dict[bytes, int] = {}
        self._datasets: dict[str, Any] = {}
        self._intents: dict[str, _Intent] = {}
        self._audits: dict[str, tuple[str, str]] = {}
        self._releases: dict[str, Mapping[str, Any]] = {}
        self._stored: dict[str, tuple[str, int, str]] = {}

    def follow(self, index: int, leaf_hash: bytes, facts: Facts) -> None:
        own = leaf_hash.hex()
        known = True
        for kind, named in facts.refers:
            if self._kinds.get(named) != kind:
                self._report.fault("links", "entries", index, f"names the {kind} {named}, which is not before it")
                known = False
        if facts.payload is not None:
            first = self._payloads.setdefault(facts.payload, index)
            if first != index:
                self._report.fault("links", "entries", index, f"signs what entry {first} says a second time")
        if known:
            for detail in self._content(index, own, facts):
                self._report.fault("links", "entries", index, detail)
        if facts.kind != "step":  # nothing refers to a step by its hash, and there are many
            self._kinds[own] = facts.kind
        if facts.kind == "run":
            self._begin(index, leaf_hash, facts)
        elif facts.run is not None:
            self._continue(index, leaf_hash, facts)

    # What entries say of those that they name --------------------------------------------------------------

    def _content(self, index: int, own: str, facts: Facts) -> Iterator[str]:
        said = facts.said
        if facts.kind == "dataset":
            self._datasets[own] = said["dataset"]
        elif facts.kind == "run":
            if self._origin is not None and said["origin"] != self._origin:
                yield f"was made for the log {said['origin']}, not for this one"
            yield from self._used(said["datasets"])
            if said["init"]["kind"] == "parent":
                try:
                    check_parent(said, self._stored.get(said["init"]["entry"]))
                except FoundWrong as error:
                    yield str(error)
        elif facts.kind == "eval":
            yield from self._used([said["dataset"]])
        elif facts.kind == "release":
            self._releases[own] = {name: said[name] for name in FIELDS}
            if "derivation" in said:
                yield from check_derivation(said, self._releases.get)
            elif not self._runs[said["run"]].rules.made(said["step"], said["state"], said["weights"]):
                yield f"releases a state and weights that its run did not make at step {said['step']}"
        elif facts.kind == "audit-intent":
            self._intents[own] = _Intent(index, facts.keyid, said)
            if said["size"] > index:
                yield f"says that its auditor saw {said['size']} entries, {index} are before it"
            elif self._roots.get(said["size"], b"").hex() != said["root"]:
                yield f"was made over {said['size']} other entries than those of this ledger: the log was forked"
            last = self._runs[said["run"]].rules.last_step
            if said["last"] > last:
                yield f"announces an audit up to step {said['last']}, the run has {last}"
        elif facts.kind == "audit":
            self._audits[own] = (said["run"], facts.keyid)
            yield from self._audited(index, said, facts.keyid)
        elif facts.kind == "recheck":
            run, auditor = self._audits[said["audit"]]
            if said["run"] != run:
                yield "is of another run than the audit that it computed again"
            if self._keys.may_continue(facts.keyid, auditor):
                yield "is of its own auditor's audit; only another auditor's is worth anything"

    def _used(self, uses: list[Mapping[str, Any]]) -> Iterator[str]:
        for use in uses:
            if self._datasets[use["entry"]] != use["dataset"]:
                yield f"names another tree for dataset {use['name']} than the dataset's own entry"

    def _audited(self, index: int, said: Mapping[str, Any], auditor: str) -> Iterator[str]:
        intent = self._intents[said["intent"]]
        if intent.answered:
            yield "is a second answer to its audit-intent"
        intent.answered = True
        if intent.auditor != auditor:
            yield "answers an audit-intent that another auditor made"
        if intent.said["run"] != said["run"]:
            yield "is of another run than its audit-intent announced"
        if self._origin is None:  # which is a fault of its own
            return
        leaf = bytes.fromhex(said["intent"])
        try:
            check_seed(said, intent.said, leaf=leaf, index=intent.index, answer=index, origin=self._origin)
        except BeaconWrong as wrong:
            yield f"cannot count: {wrong}"

    # Runs -------------------------------------------------------------------------------------------------

    def _begin(self, index: int, leaf_hash: bytes, facts: Facts) -> None:
        if facts.name in self._names:
            self._report.fault("runs", "entries", index, f"a second run named {facts.name}")
        self._names.add(str(facts.name))
        tree = merkle.Frontier()
        tree.append(leaf_hash)
        self._runs[leaf_hash.hex()] = _Run(facts.keyid, leaf_hash.hex(), tree, RunRules(facts.said))

    def _continue(self, index: int, leaf_hash: bytes, facts: Facts) -> None:
        def wrong(detail: str) -> None:
            self._report.fault("runs", "entries", index, detail)

        run = self._runs.get(str(facts.run))
        if run is None:
            wrong(f"belongs to the run {facts.run}, which is not before it")
            return
        if facts.seq != run.tree.size:
            forked = facts.seq is not None and facts.seq < run.tree.size
            wrong(
                f"a second entry {facts.seq} of run {str(facts.run)[:16]}…: the run was forked"
                if forked
                else f"entry {facts.seq} of run {str(facts.run)[:16]}… follows entry {run.tree.size - 1}"
            )
            return
        if facts.prev != run.prev:
            wrong("prev is not the run's entry before it")
        if facts.history != run.tree.root().hex():
            wrong("history is not the tree over the run's entries before it")
        if not self._keys.may_continue(facts.keyid, run.signer):
            wrong("another key than the run's trainer signed it")
        try:
            run.rules.follow(index, facts.kind, facts.said)
            if facts.kind == "state":  # of a branch or one that its run contradicts, no other run goes on
                self._stored[leaf_hash.hex()] = (str(facts.run), facts.said["step"], facts.said["state"])
        except RunRuleBroken as broken:
            wrong(broken.reason)
        run.prev = leaf_hash.hex()
        run.tree.append(leaf_hash)
