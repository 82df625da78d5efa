"""How much of a run was audited, by how many, and what to audit next.

A step is covered by an auditor when an audit of theirs that counts has it in a unit with the outcome `match`. Which
audits count is decided as the gate does it (ledger/entry/audit_rules.py): the audit must hold together, and its auditor
must be trusted for its basis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bitwitness.kernels.errors import KernelError
from bitwitness.ledger.entry.audit_rules import (
    AuditedRun,
    contradiction,
    covered_parts,
    covered_spans,
    met,
    mismatch_stands,
    refutation,
    tampered_steps,
    untrusted,
)
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.keys import PublicKey
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.verify import KeyRing

from ..history import Entry, RunHistory, open_verified_run, verified_keys, verified_leaves
from ..material import LocalMaterial, Material
from ..sample import misdrawn
from .part_audit import part_names
from .share import ranking

FRACTIONS = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class Segment:
    """Steps first … last, covered by exactly these auditors (keyids, ascending)."""

    first: int
    last: int
    auditors: tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """An interval that an auditor could audit next.

    `covered` auditors have covered its least covered step; `rank` auditors come before this one, 0 for its own.
    """

    first: int
    last: int
    covered: int
    rank: int


@dataclass(frozen=True)
class Coverage:
    """Who covered what of one run. `segments` cut its own steps, up to `last_step`, where the auditors change."""

    run: str
    name: str
    last_step: int
    segments: tuple[Segment, ...]
    intervals: tuple[tuple[int, int], ...]
    """The run's units: what lies between stored states."""
    auditors: tuple[str, ...]
    """All enrolled auditors that were not ended, by keyid: those who share the run."""
    counted: tuple[int, ...]
    """The entries of the audits that count."""
    refused: tuple[tuple[int, str], ...]
    """The entries of those that do not, each with the reason."""
    mismatches: tuple[int, ...]
    """The entries of audits that found a mismatch, whoever made them, unless a trusted auditor refuted them."""
    first: int = 0
    """The step that the run begins after."""
    parent: str | None = None
    """The run that the steps before belong to."""
    unknown: str | None = None
    """Why audits of parts cover no step here, where there are some and the run's parts cannot be told."""

    @property
    def steps(self) -> int:
        """The number of the run's own steps."""
        return self.last_step - self.first

    def histogram(self) -> dict[int, int]:
        """How many steps are covered by 0, 1, 2, … distinct auditors; every number up to the highest has a key."""
        found: Counter[int] = Counter()
        for segment in self.segments:
            found[len(segment.auditors)] += segment.last - segment.first + 1
        return {number: found[number] for number in range(max(found, default=0) + 1)}

    @property
    def covered(self) -> int:
        """The number of steps that at least one auditor covered."""
        return self.steps - self.histogram().get(0, 0)

    def caught(self, tampered: float) -> float:
        """The probability that a tampered fraction of the steps would have been met, had they lain scattered."""
        return met(self.covered, self.steps, tampered_steps(tampered, self.steps))

    def caught_together(self, tampered: float) -> float:
        """The same for the tamperer's best case: tampered steps that fill as few intervals as can hold them.

        1 − C(U − u, m) / C(U, m) for u of U intervals wholly covered and m of them tampered with.
        """
        lengths = sorted((last - first + 1 for first, last in self.intervals), reverse=True)
        wanted, filled, number = tampered_steps(tampered, self.steps), 0, 0
        while filled < wanted and number < len(lengths):
            filled, number = filled + lengths[number], number + 1
        whole = sum(self.least(first, last) > 0 for first, last in self.intervals)
        return met(whole, len(lengths), number)

    def least(self, first: int, last: int) -> int:
        """By how many auditors the least covered step of first … last is covered."""
        return min(len(s.auditors) for s in self.segments if s.first <= last and s.last >= first)

    def next_turns(self, auditor: str, count: int = 1) -> list[Turn]:
        """The next `count` intervals for `auditor`: the least covered first, of these its own before others'.

        Those that it has covered wholly are left out.
        """
        pool = {*self.auditors, auditor}
        turns = []
        for first, last in self.intervals:
            inside = [s for s in self.segments if s.first <= last and s.last >= first]
            if not all(auditor in segment.auditors for segment in inside):
                rank = ranking(self.run, first, last, pool).index(auditor)
                turns.append(Turn(first, last, self.least(first, last), rank))
        return sorted(turns, key=lambda turn: (turn.covered, turn.rank, turn.first))[:count]

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "name": self.name,
            "steps": self.steps,
            **({} if self.parent is None else {"parent": {"run": self.parent, "step": self.first}}),
            "covered": {str(number): steps for number, steps in self.histogram().items()},
            "segments": [{"first": s.first, "last": s.last, "auditors": list(s.auditors)} for s in self.segments],
            "auditors": list(self.auditors),
            "audits": {
                "counted": list(self.counted),
                "mismatch": list(self.mismatches),
                "refused": [{"entry": entry, "reason": reason} for entry, reason in self.refused],
            },
            **({} if self.unknown is None else {"parts": self.unknown}),
            "caught": {str(f): {"scattered": self.caught(f), "together": self.caught_together(f)} for f in FRACTIONS},
        }


def open_coverage(project: Project, ledger: Ledger, name: str, material: Material | None = None) -> Coverage:
    """The coverage of run `name` in a ledger that is verified first.

    Trusted by name are the `self_chosen_auditors` of trust.toml; without the file, every enrolled auditor. `material`
    is where the run's captured model lies, if it has one and not in the project's folders. Raises NoSuchRun,
    LedgerNotVerified, TrustError.
    """
    history = open_verified_run(project, ledger, name)
    leaves = verified_leaves(project, ledger)
    trust = project.trust()
    keys = verified_keys(ledger.path, leaves)
    ring = KeyRing(trust.root if trust is not None else PublicKey.from_hex(keys[0].predicate["key"]["public"]))
    for entry in keys:
        ring.add(entry.index, entry.predicate)
    enrolled = {key.keyid for key in ring if key.role == "auditor"}
    by_name, witnesses = (enrolled, frozenset[str]()) if trust is None else (trust.auditors, trust.witness_keys)
    return measure(history, ring, by_name, witnesses, material or LocalMaterial(project))


def next_interval(
    project: Project, ledger: Ledger, name: str, auditor: str, material: Material | None = None
) -> tuple[int, int]:
    """The steps that are this auditor's next, by how many cover them and whose share they are.

    Raises what open_coverage() raises, and BitwitnessError where it has covered every step.
    """
    turns = open_coverage(project, ledger, name, material).next_turns(auditor)
    if not turns:
        raise BitwitnessError(f"this auditor has covered every step of run {name} already; `ledger coverage {name}`")
    return turns[0].first, turns[0].last


def measure(
    history: RunHistory,
    ring: KeyRing,
    trusted: Collection[str],
    witnesses: Collection[str] = frozenset(),
    material: Material | None = None,
) -> Coverage:
    """Count the audits of a verified run.

    `trusted` are the auditors whose self-chosen audits count, `witnesses` those whose beacons do; all keyids. The parts
    of a step of a captured model are told from `material`.
    """
    run = AuditedRun.of(history.genesis, history.last_step)
    counted: list[Entry] = []
    refused: list[tuple[int, str]] = []
    marks = history.marks()
    audits = [entry for entry in history.about if entry.kind == "audit"]
    intents = {entry.leaf_hash.hex(): entry for entry in history.about if entry.kind == "audit-intent"}
    rechecks = [(entry.index, entry.predicate) for entry in history.about if entry.kind == "recheck"]
    accusing = []
    for audit in audits:
        auditor = audit.predicate["signer"]
        key = ring.get(auditor)
        intent = intents[audit.predicate["intent"]].predicate
        reason = (
            contradiction(audit.predicate, run)
            or untrusted(audit.predicate, intent, auditor, trusted, witnesses)
            or misdrawn(audit.predicate, intent, history.genesis, marks)
        )
        leaf = audit.leaf_hash.hex()
        if (refuted := refutation(leaf, auditor, rechecks, trusted)) is not None:
            reason = f"entry {refuted}, another auditor's recheck, refutes it"
        if key is None or (key.until is not None and audit.index >= key.until):
            reason = "its auditor's key was revoked or replaced"
        if audit.predicate["result"] == "mismatch" and mismatch_stands(leaf, auditor, rechecks, trusted):
            accusing.append(audit.index)
        if reason is None:
            counted.append(audit)
        else:
            refused.append((audit.index, reason))
    by_parts, unknown = _by_parts(counted, history, material)
    return Coverage(
        run=history.run,
        name=history.name,
        last_step=history.last_step,
        segments=tuple(_segments(counted, history, by_parts)),
        intervals=tuple(history.units()),
        auditors=tuple(sorted(key.keyid for key in ring if key.role == "auditor" and key.until is None)),
        counted=tuple(audit.index for audit in counted),
        refused=tuple(refused),
        mismatches=tuple(accusing),
        first=history.first,
        parent=None if history.parent is None else history.parent.name,
        unknown=unknown,
    )


Span = tuple[int, int, str]
"""First step, last step, auditor."""


def _by_parts(audits: Sequence[Entry], history: RunHistory, material: Material | None) -> tuple[list[Span], str | None]:
    """The steps of which one auditor covered every part, each as a span of its own; why, where that cannot be told."""
    done: dict[tuple[int, str], set[str]] = {}
    for audit in audits:
        for step, part in covered_parts(audit.predicate):
            done.setdefault((step, audit.predicate["signer"]), set()).add(part)
    if not done or material is None:
        return [], None
    try:
        every = set(part_names(history, material))
    except (BitwitnessError, KernelError) as error:
        return [], str(error)
    return [(step, step, who) for (step, who), parts in sorted(done.items()) if parts >= every], None


def _segments(audits: Sequence[Entry], history: RunHistory, by_parts: Sequence[Span]) -> list[Segment]:
    """Cut the steps at every end of a covered span, and join neighbours with the same auditors."""
    begin, last_step = history.first + 1, history.last_step
    spans = [
        (max(first, begin), last, audit.predicate["signer"])
        for audit in audits
        for first, last in covered_spans(audit.predicate)
        if last >= begin
    ]
    spans += by_parts
    cuts = sorted({begin, *(first for first, _, _ in spans), *(last + 1 for _, last, _ in spans), last_step + 1})
    found: list[Segment] = []
    for first, end in pairwise(cuts):
        auditors = tuple(sorted({who for low, high, who in spans if low <= first and end - 1 <= high}))
        if found and found[-1].auditors == auditors:
            found[-1] = Segment(found[-1].first, end - 1, auditors)
        else:
            found.append(Segment(first, end - 1, auditors))
    return found
