"""What an entry says of those before it, checked before the ledger takes it: the rules of runs, datasets and audits.

The same rules as the verifier's (verify_links.py), so that nothing gets in that it would refuse ever after.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from .. import merkle
from ..entry.beacon import BeaconWrong, check_seed
from ..entry.derivation_rules import check_derivation
from ..entry.run_rules import RunRuleBroken, RunRules, check_parent, essence
from ..errors import EntryError, FoundWrong
from .derived import UnknownReference

Predicate = Mapping[str, Any]


class Contents:
    """Follows the entries of one open ledger; must see each one that is appended, in order."""

    def __init__(self, connection: sqlite3.Connection, node: merkle.GetNode) -> None:
        self._connection = connection
        self._node = node
        self._rules: dict[str, RunRules] = {}
        self._touched: set[str] = set()

    def keep(self) -> None:
        """What was admitted counts."""
        self._touched.clear()

    def forget(self) -> None:
        """What was admitted since keep() was taken back: the rules of those runs are read again when needed."""
        for run in self._touched:
            self._rules.pop(run, None)
        self._touched.clear()

    def admit(self, index: int, kind: str, predicate: Predicate, leaf_hash: bytes) -> None:
        """Check the entry that is to be number `index`, its chain being checked.

        Raises EntryError, UnknownReference.
        """
        try:
            self._admit(index, kind, predicate, leaf_hash)
        except RunRuleBroken as broken:
            raise EntryError(broken.reason, f"entry {index}") from None

    def _admit(self, index: int, kind: str, predicate: Predicate, leaf_hash: bytes) -> None:
        if kind == "run":
            self._begin(predicate, leaf_hash.hex())
        elif kind == "eval":
            self._check_datasets([predicate["dataset"]])
        elif kind == "release":
            if "derivation" in predicate:
                for problem in check_derivation(predicate, self._release):
                    raise EntryError(problem, "release")
            elif not self._of(predicate["run"]).made(predicate["step"], predicate["state"], predicate["weights"]):
                raise EntryError(f"the run did not make this state and weights at step {predicate['step']}", "release")
        elif kind == "audit-intent":
            self._check_intent(index, predicate)
        elif kind == "audit":
            self._check_audit(index, predicate)
        elif kind == "recheck":
            self._check_recheck(predicate)
        if kind != "run" and "seq" in predicate:
            self._touched.add(predicate["run"])
            self._of(predicate["run"]).follow(index, kind, predicate)

    def _begin(self, predicate: Predicate, run: str) -> None:
        (origin,) = self._connection.execute("SELECT origin FROM ledger").fetchone()
        if predicate["origin"] != origin:
            raise EntryError(f"the run is made for the log {predicate['origin']}, not for {origin}", "predicate.origin")
        self._check_datasets(predicate["datasets"])
        if predicate["init"]["kind"] == "parent":
            try:
                check_parent(predicate, self._stored(predicate["init"]))
            except FoundWrong as error:
                raise EntryError(str(error), "predicate.init") from None
        self._touched.add(run)
        self._rules[run] = RunRules(essence("run", predicate))

    def _stored(self, init: Predicate) -> tuple[str, int, str] | None:
        """(run, step, state) of the `state` entry that the `init` of a run with a parent names."""
        row = self._connection.execute(
            "SELECT runs.hash, step, states.state FROM states JOIN runs ON runs.entry = states.run"
            " JOIN entries ON idx = states.entry WHERE runs.hash = ? AND step = ? AND leaf_hash = ?",
            (init["run"], init["step"], bytes.fromhex(init["entry"])),
        ).fetchone()
        return None if row is None else (str(row[0]), int(row[1]), str(row[2]))

    def _check_datasets(self, uses: Iterable[Predicate]) -> None:
        for use in uses:
            query = "SELECT root, size FROM datasets WHERE hash = ?"
            row = self._connection.execute(query, (use["entry"],)).fetchone()
            if row is None:
                raise UnknownReference("dataset entry", use["entry"])
            if row != (use["dataset"]["root"], use["dataset"]["size"]):
                raise EntryError(f"this is not the tree of dataset {use['name']}'s own entry", "dataset")

    def _check_intent(self, index: int, predicate: Predicate) -> None:
        if predicate["size"] > index:
            raise EntryError(f"{predicate['size']} entries are more than the {index} before it", "predicate.size")
        last = self._of(predicate["run"]).last_step
        if predicate["last"] > last:
            raise EntryError(f"the run has {last} steps", "predicate.last")
        if merkle.root_from_nodes(predicate["size"], self._node).hex() != predicate["root"]:
            detail = f"its auditor saw other {predicate['size']} entries than those of this ledger"
            raise EntryError(detail, "predicate.root")

    def _check_audit(self, index: int, predicate: Predicate) -> None:
        row = self._connection.execute(
            "SELECT runs.hash, keys.keyid, audit_intents.entry, payload, origin FROM audit_intents"
            " JOIN runs ON runs.entry = audit_intents.run JOIN keys ON keys.entry = audit_intents.auditor"
            " JOIN entries ON idx = audit_intents.entry JOIN ledger WHERE audit_intents.hash = ?",
            (predicate["intent"],),
        ).fetchone()
        if row is None:
            raise UnknownReference("audit-intent", predicate["intent"])
        run, auditor, entry, payload, origin = row
        if predicate["run"] != run:
            raise EntryError("not the run that its audit-intent announced", "predicate.run")
        if predicate["signer"] != auditor:
            raise EntryError("the audit-intent was made by another auditor", "predicate.signer")
        try:
            intent, leaf = json.loads(payload)["predicate"], bytes.fromhex(predicate["intent"])
            check_seed(predicate, intent, leaf=leaf, index=entry, answer=index, origin=origin)
        except BeaconWrong as wrong:
            raise EntryError(str(wrong), "predicate.seed") from None
        except (ValueError, KeyError, TypeError):
            raise EntryError("the audit-intent was edited in the ledger; run `ledger fsck`", f"entry {entry}") from None

    def _check_recheck(self, predicate: Predicate) -> None:
        row = self._connection.execute(
            "SELECT runs.hash, auditor FROM audits JOIN runs ON runs.entry = audits.run WHERE audits.hash = ?",
            (predicate["audit"],),
        ).fetchone()
        if row is None:
            raise UnknownReference("audit", predicate["audit"])
        if predicate["run"] != row[0]:
            raise EntryError("not the run of the audit that was computed again", "predicate.run")
        own = self._connection.execute(
            "WITH RECURSIVE line (entry) AS (SELECT entry FROM keys WHERE keyid = ?"
            " UNION SELECT replaces FROM keys JOIN line ON keys.entry = line.entry WHERE replaces IS NOT NULL)"
            " SELECT 1 FROM line WHERE entry = ?",
            (predicate["signer"], row[1]),
        )
        if own.fetchone() is not None:
            raise EntryError("an auditor's own audit; only another auditor's recheck is worth anything", "recheck")

    def _release(self, leaf: str) -> Predicate | None:
        row = self._connection.execute(
            "SELECT payload FROM releases JOIN entries ON idx = releases.entry WHERE hash = ?", (leaf,)
        ).fetchone()
        if row is None:
            return None
        found: Predicate = json.loads(row[0])["predicate"]
        return found

    def _of(self, run: str) -> RunRules:
        """The rules of a run as far as the ledger has it; its entries are read the first time."""
        if run not in self._rules:
            row = self._connection.execute("SELECT entry FROM runs WHERE hash = ?", (run,)).fetchone()
            if row is None:
                raise UnknownReference("run", run)
            self._rules[run] = self._read(int(row[0]))
        return self._rules[run]

    def _read(self, genesis: int) -> RunRules:
        rows = self._connection.execute(
            "SELECT idx, kind, payload FROM log JOIN entries ON idx = log.entry"
            " WHERE run = ? AND seq IS NOT NULL ORDER BY seq",
            (genesis,),
        )
        rules = None
        try:
            for index, kind, payload in rows:
                predicate = essence(kind, json.loads(payload)["predicate"])
                if rules is None:
                    rules = RunRules(predicate)
                    continue
                rules.follow(index, kind, predicate)
        except (ValueError, KeyError, TypeError):
            rules = None
        if rules is None:
            raise EntryError("the run's entries were edited in the ledger; run `ledger fsck`", f"entry {genesis}")
        return rules
