"""The rule `require_eval_audit`: the losses that a policy bounds were computed again by an auditor whom it names.

`ledger audit RUN --eval ENTRY` evaluates one step alone; its unit has the part `eval` (docs/formats/audit.md, Evals).
The replay of a step says nothing of its eval, since it may have been made where the held-out data was not at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bitwitness.ledger.entry.audit_rules import EVAL_PART

from ..checks import Check, together
from ..policy import Policy
from .audits import inconsistency, refuted, untrusted_by, who
from .evidence import Entry
from .lineage import Lineage, RunLine

NAME = "eval-audit"


def of_measured(lineage: Lineage, name: str, check: Callable[[RunLine], Check]) -> Check:
    """A rule on what was measured, of the run whose step has the released weights.

    Those of a cast or merge that no step of its sources has were never measured: what is known is of other weights.
    """
    release, lines = lineage.release.predicate, lineage.runs
    if "derivation" in release:
        measured = [line for line in lines if line.released.computed["weights"] == release["weights"]]
        if not measured:
            said = "; ".join(f"{line}: {check(line).detail}" for line in lines)
            detail = f"these weights were not measured, only those that they derive from ({said})"
            return Check(name, None, detail, "POLICY")
        lines = measured
    return together([(str(line), check(line)) for line in lines])


def eval_audit_check(line: RunLine, policy: Policy) -> Check:
    """Whether each eval of the released step that `max_loss` asks for was confirmed."""
    said = []
    for root in sorted(policy.rules.max_loss or {}):
        measured = eval_of(line, root)
        if measured is None:
            return Check(NAME, False, f"the released step was not measured on dataset {root[:16]}…", "POLICY")
        found = _confirmed(line, measured, policy)
        if found.ok is not True:
            return found
        said.append(found.detail)
    return Check(NAME, True, "; ".join(said) or "the policy names no dataset", "POLICY")


def eval_of(line: RunLine, root: str) -> Entry | None:
    """The newest eval of the released step itself on the dataset with this root."""
    measured = [
        entry
        for entry in line.evals
        if entry.predicate["step"] == line.step and entry.predicate["dataset"]["dataset"]["root"] == root
    ]
    return measured[-1] if measured else None


def _confirmed(line: RunLine, measured: Entry, policy: Policy) -> Check:
    """One accusation of an auditor who counts outweighs every match."""
    if not policy.rules.self_chosen_auditors:
        detail = "such audits have no beacon, and the policy names nobody in self_chosen_auditors"
        return Check(NAME, None, detail, "POLICY")
    matches, undone, refused = [], [], []
    for audit, intent, outcome in _audits_of(line, measured):
        reason = refuted(line, audit, policy) or inconsistency(line, audit) or untrusted_by(audit, intent, policy)
        if reason is not None:
            refused.append(f"{who(audit)}: {reason}")
        elif outcome == "mismatch":
            return Check(NAME, False, f"{who(audit)} got another loss than {measured} says ({audit})", "POLICY")
        elif outcome == "match":
            matches.append(f"{who(audit)} computed {measured} again: match ({audit})")
        else:
            undone.append(f"{who(audit)}: {outcome} ({audit})")
    if matches:
        return Check(NAME, True, matches[-1], "POLICY")
    said = "; ".join([*undone, *refused]) or "no audit of it is in the bundle (`ledger audit --eval`)"
    detail = f"an auditor of the policy must have computed {measured} again: {said}"
    return Check(NAME, None if undone else False, detail, "POLICY")


def _audits_of(line: RunLine, measured: Entry) -> Iterator[tuple[Entry, Entry, str]]:
    """Audits announced after an eval was logged that computed its step's again: audit, intent, what came out."""
    intents = {entry.leaf: entry for entry in line.intents}
    for audit in line.audits:
        intent = intents.get(audit.predicate["intent"])
        if intent is None or intent.predicate["size"] <= measured.index:
            continue
        for unit in audit.predicate["units"]:
            if unit.get("part") == EVAL_PART and unit["first"] == line.step:
                yield audit, intent, str(unit["outcome"])
