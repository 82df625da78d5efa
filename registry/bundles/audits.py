"""Which audits in a bundle count for its release, and how much of its history they replayed.

The weights come from the steps of the release's run and of every run that this one goes back to, up to where the next
one begins. All of these count: a policy's demands are on the whole, as one history.

An audit is one auditor's word, so what it says of itself must hold together before it counts: made after the released
step was logged, over steps that the run has, with the units that every audit must have (docs/formats/audit.md) and just
those that its seed draws from the states that the log lists, under the run's own operator table. What does not count is
reported with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger.entry.audit_rules import (
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

from ..checks import Check, together
from ..policy import Policy, Rules
from .completeness import Told
from .evidence import Entry
from .lineage import Lineage, RunLine, Stretch

Json = Mapping[str, Any]


@dataclass(frozen=True)
class _Judged:
    """A run up to where it counts, its audits that do, and one reason for each that does not."""

    stretch: Stretch
    counted: Sequence[Entry]
    refused: Sequence[str]
    reasons: Sequence[str]
    """Those of `refused` without the auditor, as they were given."""

    @property
    def total(self) -> int:
        """The number of the run's own steps that count."""
        return self.stretch.until - self.stretch.start

    @property
    def covered(self) -> int:
        """How many of them the audits that count replayed."""
        first, last = self.stretch.start + 1, self.stretch.until
        replayed = [span for audit in self.counted for span in covered_spans(audit.predicate)]
        return length((max(first, low), min(last, high)) for low, high in replayed)

    @property
    def said(self) -> str:
        """What became of its audits, in words."""
        counted = [f"{who(audit)} replayed {_extent(self.stretch, audit)}: match" for audit in self.counted]
        return "; ".join([*counted, *self.refused]) or "no audit in the bundle"


def audit_checks(lineage: Lineage, policy: Policy, told: Told | None) -> list[Check]:
    """The POLICY check `audit`, which is always made, and one for each rule on how much must have been audited.

    Each must hold for every run that the release or one that it derives from is of, with the runs that it goes back to
    as one history. ``told`` is the status that lists what the samples were drawn from; without it none can be drawn
    again.
    """
    of_runs = [[(str(line), check) for check in _of_run(lineage, line, policy, told)] for line in lineage.runs]
    return [together(same) for same in zip(*of_runs, strict=True)]


def _of_run(lineage: Lineage, line: RunLine, policy: Policy, told: Told | None) -> list[Check]:
    rules, history = policy.rules, [_judge(stretch, policy, told) for stretch in lineage.history(line)]
    checks = [_required(history, policy)]
    covered, total = sum(part.covered for part in history), sum(part.total for part in history)
    any_counted = any(part.counted for part in history)
    said = f"audits that count replayed {covered} of the {total} steps up to the released one"
    if len(history) > 1:
        said += " (" + ", ".join(f"{part.stretch.line}: {part.covered} of {part.total}" for part in history) + ")"
    if rules.min_audited_steps is not None:
        # A release of fewer steps than the rule asks for cannot show more than all of them.
        enough = any_counted and covered >= min(rules.min_audited_steps, total)
        checks.append(Check("audited-steps", enough, f"{said}, {rules.min_audited_steps} are required", "POLICY"))
    if rules.min_audited_fraction is not None:
        enough = any_counted and covered >= rules.min_audited_fraction * total
        asked = f"{rules.min_audited_fraction:g} of them is required"
        checks.append(Check("audited-fraction", enough, f"{said}, {asked}", "POLICY"))
    if rules.min_auditors is not None:
        # As many for each run: two auditors of different halves have not seen the same steps.
        fewest = min(history, key=_auditors)
        where = f" of {fewest.stretch.line}" if len(history) > 1 else ""
        said = f"audits{where} that count are by {_auditors(fewest)} auditors, {rules.min_auditors} are required"
        checks.append(Check("auditors", _auditors(fewest) >= rules.min_auditors, said, "POLICY"))
    return checks


def _auditors(part: _Judged) -> int:
    return len({audit.envelope.keyid for audit in part.counted})


def open_intents(stretch: Stretch) -> list[Entry]:
    """The announced audits that have no result in the bundle; each counts as a failed one.

    Of a run that is only gone on from, those of later steps alone concern nobody here.
    """
    answered = {audit.predicate["intent"] for audit in stretch.line.audits}
    unanswered = [intent for intent in stretch.line.intents if intent.leaf not in answered]
    return [intent for intent in unanswered if stretch.released or intent.predicate["first"] <= stretch.until]


def _accusation(stretch: Stretch, audit: Entry) -> Json | None:
    """What an audit found that does not replay; None if nothing, or nothing of the steps that count.

    Of a released run whatever was found counts. Where a run is only gone on from, that is of no use which begins after
    that step; the screen compares states, of which the one before may lie anywhere before.
    """
    for unit in audit.predicate["units"]:
        if unit["outcome"] == "mismatch":
            found: Json = unit["found"]
            before = min(unit["first"], found["step"]) <= stretch.until or found.get("field") == "screen"
            if stretch.released or before:
                return found
    return None


def _required(history: Sequence[_Judged], policy: Policy) -> Check:
    rules = policy.rules
    several = len(history) > 1
    for part in history:
        line = part.stretch.line
        for audit in line.audits:
            found = _accusation(part.stretch, audit)
            if found is not None and mismatch_stands(
                audit.leaf, audit.envelope.keyid, _rechecks(line), _trusted(rules)
            ):
                where = f" of {line}" if several else ""
                detail = f"{who(audit)} found that step {found['step']}{where} does not replay ({audit})"
                return Check("audit", False, detail, "POLICY")
    said = "; ".join(f"{part.stretch.line}: {part.said}" if several else part.said for part in history)
    if not rules.require_audit:
        return Check("audit", True, f"not required by the policy ({said})", "POLICY")
    unanswered = [intent for part in history for intent in open_intents(part.stretch)]
    if len(unanswered) > rules.max_open_intents:
        detail = (
            f"{len(unanswered)} audits were announced without a result, the first in {unanswered[0]}, and each counts "
            f"as failed; the policy allows {rules.max_open_intents} ({said})"
        )
        return Check("audit", False, detail, "POLICY")
    lacking = [part for part in history if not part.counted]
    if not lacking:
        return Check("audit", True, said, "POLICY")
    unchecked = all(any(isinstance(reason, Unchecked) for reason in part.reasons) for part in lacking)
    of_each = ", of each run that the weights come from" if several else ""
    return Check("audit", None if unchecked else False, f"an audit is required{of_each}: {said}", "POLICY")


def _judge(stretch: Stretch, policy: Policy, told: Told | None) -> _Judged:
    line = stretch.line
    intents = {entry.leaf: entry for entry in line.intents}
    counted, refused, reasons = [], [], []
    for audit in line.audits:
        intent = intents.get(audit.predicate["intent"])
        if intent is None:
            reason: str | None = "its intent is not in the bundle"
        else:
            reason = _why_not(stretch, audit, intent, policy) or _misdrawn(line, audit, intent, told)
        if reason is None:
            counted.append(audit)
        else:
            refused.append(f"{who(audit)}: {reason}")
            reasons.append(reason)
    return _Judged(stretch, counted, refused, reasons)


def _why_not(stretch: Stretch, audit: Entry, intent: Entry, policy: Policy) -> str | None:
    """Why this audit does not count for this release; None if it does."""
    line, predicate, units = stretch.line, audit.predicate, audit.predicate["units"]
    reason = refuted(line, audit, policy)
    if reason is not None:
        return reason
    if predicate["result"] != "match":
        return str(predicate["result"])
    if all(unit["cause"] == "chosen" for unit in units):
        return "its steps were chosen by hand, so it says nothing of the others; only drawn audits count"
    if intent.predicate["size"] <= stretch.reached.index:
        return (
            f"it was announced over {intent.predicate['size']} entries, before "
            f"{'the released step' if stretch.released else f'the state after step {stretch.until}'} was logged as "
            f"{stretch.reached}"
        )
    reason = inconsistency(line, audit) or omission(predicate, intent.predicate, _audited(line))
    if reason is not None:
        return reason
    if not any(first <= stretch.until <= last for first, last in covered_spans(predicate)):
        return f"{stretch.what} is not among what it replayed"
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


def _extent(stretch: Stretch, audit: Entry) -> str:
    """How much of the run, up to where it counts, an audit replayed, and who drew what."""
    line, first = stretch.line, stretch.start + 1
    spans = ((max(first, low), min(stretch.until, high)) for low, high in covered_spans(audit.predicate))
    replayed, total = length(spans), stretch.until - stretch.start
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
