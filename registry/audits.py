"""Which audits in a bundle count for its release, and how much of the run they replayed.

An audit is one auditor's word, so what it says of itself must hold together before it counts: made after the released
step was logged, over steps that the run has, with the units that every audit must have (docs/formats/audit.md) and just
those that its seed draws from the states that the log lists, under the run's own operator table. What does not count is
reported with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger.audit_rules import (
    AuditedRun,
    Unchecked,
    contradiction,
    covered_spans,
    length,
    mismatch_stands,
    omission,
    refutation,
    untrusted,
)
from bitwitness.trainer.sample import misdrawn

from .checks import Check, together
from .completeness import Told
from .evidence import Entry
from .lineage import Lineage, RunLine
from .policy import Policy, Rules

Json = Mapping[str, Any]


@dataclass(frozen=True)
class _Judged:
    """The audits that count, and one reason for each that does not."""

    counted: Sequence[Entry]
    refused: Sequence[str]
    reasons: Sequence[str]
    """Those of `refused` without the auditor, as they were given."""


def audit_checks(lineage: Lineage, policy: Policy, told: Told | None) -> list[Check]:
    """The POLICY check `audit`, which is always made, and one for each rule on how much must have been audited.

    Each must hold for every run that the release stands on. ``told`` is the status that lists what the samples were
    drawn from; without it none can be drawn again.
    """
    of_runs = [[(str(line), check) for check in _of_run(line, policy, told)] for line in lineage.runs]
    return [together(same) for same in zip(*of_runs, strict=True)]


def _of_run(line: RunLine, policy: Policy, told: Told | None) -> list[Check]:
    rules, judged = policy.rules, _judge(line, policy, told)
    checks = [_required(line, policy, judged)]
    first, last = line.genesis.predicate["control"]["step"] + 1, line.step
    replayed = [span for audit in judged.counted for span in covered_spans(audit.predicate)]
    covered = length((max(first, low), min(last, high)) for low, high in replayed)
    total = last - first + 1
    said = f"audits that count replayed {covered} of the {total} steps up to the released one"
    if line.parents:
        said += f" since {line.parents[0]}"
    if rules.min_audited_steps is not None:
        # A release of fewer steps than the rule asks for cannot show more than all of them.
        enough = bool(judged.counted) and covered >= min(rules.min_audited_steps, total)
        checks.append(Check("audited-steps", enough, f"{said}, {rules.min_audited_steps} are required", "POLICY"))
    if rules.min_audited_fraction is not None:
        enough = bool(judged.counted) and covered >= rules.min_audited_fraction * total
        asked = f"{rules.min_audited_fraction:g} of them is required"
        checks.append(Check("audited-fraction", enough, f"{said}, {asked}", "POLICY"))
    if rules.min_auditors is not None:
        auditors = {audit.envelope.keyid for audit in judged.counted}
        said = f"audits that count are by {len(auditors)} auditors, {rules.min_auditors} are required"
        checks.append(Check("auditors", len(auditors) >= rules.min_auditors, said, "POLICY"))
    return checks


def open_intents(line: RunLine) -> list[Entry]:
    """The announced audits that have no result in the bundle; each counts as a failed one."""
    answered = {audit.predicate["intent"] for audit in line.audits}
    return [intent for intent in line.intents if intent.leaf not in answered]


def _required(line: RunLine, policy: Policy, judged: _Judged) -> Check:
    rules = policy.rules
    for audit in line.audits:
        if audit.predicate["result"] == "mismatch" and mismatch_stands(
            audit.leaf, audit.envelope.keyid, _rechecks(line), _trusted(rules)
        ):
            found = next(unit["found"] for unit in audit.predicate["units"] if unit["outcome"] == "mismatch")
            detail = f"{who(audit)} found that step {found['step']} does not replay ({audit})"
            return Check("audit", False, detail, "POLICY")
    counted = [f"{who(audit)} replayed {_extent(line, audit)}: match" for audit in judged.counted]
    said = "; ".join([*counted, *judged.refused]) or "no audit in the bundle"
    if not rules.require_audit:
        return Check("audit", True, f"not required by the policy ({said})", "POLICY")
    unanswered = open_intents(line)
    if len(unanswered) > rules.max_open_intents:
        detail = (
            f"{len(unanswered)} audits were announced without a result, the first in {unanswered[0]}, and each counts "
            f"as failed; the policy allows {rules.max_open_intents} ({said})"
        )
        return Check("audit", False, detail, "POLICY")
    if counted:
        return Check("audit", True, said, "POLICY")
    unchecked = any(isinstance(reason, Unchecked) for reason in judged.reasons)
    return Check("audit", None if unchecked else False, f"an audit is required: {said}", "POLICY")


def _judge(line: RunLine, policy: Policy, told: Told | None) -> _Judged:
    intents = {entry.leaf: entry for entry in line.intents}
    counted, refused, reasons = [], [], []
    for audit in line.audits:
        intent = intents.get(audit.predicate["intent"])
        if intent is None:
            reason: str | None = "its intent is not in the bundle"
        else:
            reason = _why_not(line, audit, intent, policy) or _misdrawn(line, audit, intent, told)
        if reason is None:
            counted.append(audit)
        else:
            refused.append(f"{who(audit)}: {reason}")
            reasons.append(reason)
    return _Judged(counted, refused, reasons)


def _why_not(line: RunLine, audit: Entry, intent: Entry, policy: Policy) -> str | None:
    """Why this audit does not count for this release; None if it does."""
    predicate, units = audit.predicate, audit.predicate["units"]
    reason = refuted(line, audit, policy)
    if reason is not None:
        return reason
    if predicate["result"] != "match":
        return str(predicate["result"])
    if all(unit["cause"] == "chosen" for unit in units):
        return "its steps were chosen by hand, so it says nothing of the others; only drawn audits count"
    if intent.predicate["size"] <= line.released.index:
        return (
            f"it was announced over {intent.predicate['size']} entries, before the released step was logged as "
            f"{line.released}"
        )
    reason = inconsistency(line, audit) or omission(predicate, intent.predicate, _audited(line))
    if reason is not None:
        return reason
    if not any(first <= line.step <= last for first, last in covered_spans(predicate)):
        return f"the released step {line.step} is not among what it replayed"
    return untrusted_by(audit, intent, policy)


def refuted(line: RunLine, audit: Entry, policy: Policy) -> str | None:
    """The reason that an audit counts for nothing if an auditor whom the policy names found it wrong."""
    entry = refutation(audit.leaf, audit.envelope.keyid, _rechecks(line), _trusted(policy.rules))
    return None if entry is None else f"a recheck by an auditor of the policy refutes it (entry {entry})"


def inconsistency(line: RunLine, audit: Entry) -> str | None:
    """What an audit says of the run that cannot be so."""
    return contradiction(audit.predicate, _audited(line))


def untrusted_by(audit: Entry, intent: Entry, policy: Policy) -> str | None:
    """Why a policy does not take an auditor's word on the basis of this audit."""
    if policy.rules.auditors is not None and audit.envelope.keyid not in policy.rules.auditors:
        return "its auditor is not among the policy's auditors"
    by_name, witnesses = policy.rules.self_chosen_auditors, policy.witness_keys
    return untrusted(audit.predicate, intent.predicate, audit.envelope.keyid, by_name, witnesses)


def _misdrawn(line: RunLine, audit: Entry, intent: Entry, told: Told | None) -> str | None:
    """How its units differ from what its seed draws; whoever handed the bundle over could not choose from what."""
    if told is None or told.entry.index < intent.predicate["size"]:
        return Unchecked("no status of the log lists the states that its sample was drawn from")
    return misdrawn(audit.predicate, intent.predicate, line.genesis.predicate, told.marks[line.genesis.leaf])


def _audited(line: RunLine) -> AuditedRun:
    return AuditedRun.of(line.genesis.predicate, _last_step(line))


def _rechecks(line: RunLine) -> list[tuple[int, Json]]:
    return [(entry.index, entry.predicate) for entry in line.rechecks]


def _trusted(rules: Rules) -> set[str]:
    """Whose rechecks count: those whom the policy names, since a recheck has no beacon."""
    return {*rules.self_chosen_auditors, *(rules.auditors or ())}


def _last_step(line: RunLine) -> int:
    """No step of the run is beyond this one."""
    planned: int = line.genesis.predicate["steps"]
    return planned if line.end is None else min(planned, line.end.predicate["step"])


def _extent(line: RunLine, audit: Entry) -> str:
    """How much of the run up to the released step an audit replayed, and who drew what."""
    first = line.genesis.predicate["control"]["step"] + 1
    spans = ((max(first, low), min(line.step, high)) for low, high in covered_spans(audit.predicate))
    replayed, total = length(spans), line.step - first + 1
    said = f"{replayed} of {total} steps"
    if replayed == total:
        return said
    if all(unit["cause"] != "sample" for unit in audit.predicate["units"]):
        return f"{said}, no sample drawn"
    if audit.predicate["basis"] == "self-chosen":
        return f"{said}, sample self-chosen"
    wanted = _intent_of(line, audit)["beacon"]
    beacon = f"{wanted['source']} round {wanted['round']}" if wanted["kind"] == "round" else "a witness's cosignature"
    return f"{said}, sample drawn by beacon, {beacon}"


def _intent_of(line: RunLine, audit: Entry) -> Json:
    """What the auditor announced."""
    return next(intent.predicate for intent in line.intents if intent.leaf == audit.predicate["intent"])


def who(audit: Entry) -> str:
    """An auditor, in words."""
    return f"auditor {audit.envelope.keyid[:16]}…"
