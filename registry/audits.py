"""Which audits in a bundle count for its release, and how much of the run they replayed.

An audit is one auditor's word, so what it says of itself must hold together before it counts: made after the released
step was logged, over steps that the run has, with the units that every audit must have (docs/formats/audit.md), under
the run's own operator table. What does not count is reported with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .checks import Check
from .evidence import Entry
from .lineage import Lineage
from .policy import Rules

Json = Mapping[str, Any]


@dataclass(frozen=True)
class _Judged:
    """The audits that count, and one reason for each that does not."""

    counted: Sequence[Entry]
    refused: Sequence[str]


def audit_checks(lineage: Lineage, rules: Rules) -> list[Check]:
    """The POLICY check `audit`, which is always made, and one for each rule on how much must have been audited."""
    judged = _judge(lineage, rules)
    checks = [_required(lineage, rules, judged)]
    first, last = lineage.genesis.predicate["control"]["step"] + 1, lineage.step
    spans = [span for audit in judged.counted for span in _spans(_matching(audit.predicate))]
    covered = _length((max(first, low), min(last, high)) for low, high in spans)
    total = last - first + 1
    said = f"audits that count replayed {covered} of the {total} steps up to the released one"
    if rules.min_audited_steps is not None:
        # A release of fewer steps than the rule asks for cannot show more than all of them.
        enough = bool(judged.counted) and covered >= min(rules.min_audited_steps, total)
        checks.append(Check("audited-steps", enough, f"{said}, {rules.min_audited_steps} are required", "POLICY"))
    if rules.min_audited_fraction is not None:
        enough = bool(judged.counted) and covered >= rules.min_audited_fraction * total
        asked = f"{rules.min_audited_fraction:g} of them is required"
        checks.append(Check("audited-fraction", enough, f"{said}, {asked}", "POLICY"))
    return checks


def open_intents(lineage: Lineage) -> list[Entry]:
    """The announced audits that have no result in the bundle; each counts as a failed one."""
    answered = {audit.predicate["intent"] for audit in lineage.audits}
    return [intent for intent in lineage.intents if intent.leaf not in answered]


def _required(lineage: Lineage, rules: Rules, judged: _Judged) -> Check:
    for audit in lineage.audits:
        if audit.predicate["result"] == "mismatch":
            found = next(unit["found"] for unit in audit.predicate["units"] if unit["outcome"] == "mismatch")
            detail = f"{_who(audit)} found that step {found['step']} does not replay ({audit})"
            return Check("audit", False, detail, "POLICY")
    counted = [
        f"{_who(audit)} replayed {_length(_spans(_matching(audit.predicate)))} steps: match" for audit in judged.counted
    ]
    said = "; ".join([*counted, *judged.refused]) or "no audit in the bundle"
    if not rules.require_audit:
        return Check("audit", True, f"not required by the policy ({said})", "POLICY")
    unanswered = open_intents(lineage)
    if len(unanswered) > rules.max_open_intents:
        detail = (
            f"{len(unanswered)} audits were announced without a result, the first in {unanswered[0]}, and each counts "
            f"as failed; the policy allows {rules.max_open_intents} ({said})"
        )
        return Check("audit", False, detail, "POLICY")
    if counted:
        return Check("audit", True, said, "POLICY")
    beacon_only = any("beacon" in reason for reason in judged.refused)
    return Check("audit", None if beacon_only else False, f"an audit is required: {said}", "POLICY")


def _judge(lineage: Lineage, rules: Rules) -> _Judged:
    intents = {entry.leaf: entry for entry in lineage.intents}
    counted, refused = [], []
    for audit in lineage.audits:
        intent = intents.get(audit.predicate["intent"])
        if intent is None:
            reason: str | None = "its intent is not in the bundle"
        else:
            reason = _why_not(lineage, audit, intent, rules)
        if reason is None:
            counted.append(audit)
        else:
            refused.append(f"{_who(audit)}: {reason}")
    return _Judged(counted, refused)


def _why_not(lineage: Lineage, audit: Entry, intent: Entry, rules: Rules) -> str | None:
    """Why this audit does not count for this release; None if it does."""
    predicate, units = audit.predicate, audit.predicate["units"]
    if predicate["result"] != "match":
        return str(predicate["result"])
    if all(unit["cause"] == "chosen" for unit in units):
        return "its steps were chosen by hand, so it says nothing of the others; only drawn audits count"
    if intent.predicate["size"] <= lineage.released.index:
        return (
            f"it was announced over {intent.predicate['size']} entries, before the released step was logged as "
            f"{lineage.released}"
        )
    reason = _inconsistency(lineage, predicate, intent.predicate)
    if reason is not None:
        return reason
    if not any(unit["first"] <= lineage.step <= unit["last"] for unit in _matching(predicate)):
        return f"the released step {lineage.step} is not among what it replayed"
    if predicate["basis"] == "self-chosen" and audit.envelope.keyid not in rules.self_chosen_auditors:
        return "it chose its own sample, which counts only for auditors in self_chosen_auditors"
    if predicate["basis"] == "beacon":
        return "its beacon cannot be checked offline"
    return None


def _inconsistency(lineage: Lineage, predicate: Json, intent: Json) -> str | None:
    """What an audit says that cannot be so, or that an audit of these steps would not leave out."""
    units, spans = predicate["units"], _spans(predicate["units"])
    if predicate["arithmetic"] != lineage.genesis.predicate["arithmetic"]:
        return "it computed with another operator table than the run"
    if predicate["transcript"]["size"] == 0:
        return "its transcript is empty, so it replayed nothing"
    if any(right[0] <= left[1] for left, right in pairwise(spans)):
        return "its units overlap"
    last = min(intent["last"], _last_step(lineage))
    if spans[0][0] < intent["first"] or spans[-1][1] > last:
        return f"it names steps {spans[0][0]} to {spans[-1][1]}, of which the run and its intent have not all"
    if not any((unit["first"], unit["last"], unit["cause"]) == (0, 0, "init") for unit in units):
        return "it did not compare the initial state, as every audit does"
    if spans[-1][1] != intent["last"]:
        return f"it did not replay step {intent['last']}, the last that it announced, as every audit does"
    covered = _length(_spans(_matching(predicate)))
    # A replay that starts at an earlier stored state compares the steps before its unit, too.
    if not covered <= predicate["steps"] <= spans[-1][1]:
        return f"it claims {predicate['steps']} compared steps, its units have {covered}"
    drawn, start = sum(unit["cause"] == "sample" for unit in units), lineage.genesis.predicate["control"]["step"]
    if drawn > intent["samples"] or (drawn < intent["samples"] and covered < intent["last"] - start):
        return f"it announced a sample of {intent['samples']} units and replayed {drawn}"
    return None


def _last_step(lineage: Lineage) -> int:
    """No step of the run is beyond this one."""
    genesis = lineage.genesis.predicate
    planned: int = genesis["control"]["step"] + genesis["steps"]
    return planned if lineage.end is None else min(planned, lineage.end.predicate["step"])


def _who(audit: Entry) -> str:
    return f"auditor {audit.envelope.keyid[:16]}…"


def _matching(predicate: Json) -> list[Json]:
    return [unit for unit in predicate["units"] if unit["outcome"] == "match"]


def _spans(units: Iterable[Json]) -> list[tuple[int, int]]:
    return sorted((unit["first"], unit["last"]) for unit in units)


def _length(spans: Iterable[tuple[int, int]]) -> int:
    """How many steps from 1 on lie in at least one span; the numbers are as large as a signer likes."""
    total, reached = 0, 0
    for low, high in sorted(spans):
        low = max(low, reached + 1)
        if low <= high:
            total += high - low + 1
            reached = high
    return total
