"""Computing another auditor's audit again: confirmed, refuted, or inconclusive with the reason.

An audit commits to numbers that only a replay has, under a key that only that audit has (transcript.py). Whoever
replays the same units, each from the state that the audit started from, must get the same transcript and outcomes.
Nothing is refuted unless all was computed here, by a machine that passes its tests before and after.

One that was stopped goes on where it was, from what this auditor signed for this recheck alone (replay_work.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger.code import code_commitment
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.entry import entries
from bitwitness.ledger.entry.envelope import open_envelope, seal
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.which_entry import find_entry

from .. import records
from ..history import Entry, RunHistory, open_verified_run
from ..machine import machine_fault
from ..models.arithmetic import this_builds
from ..record_check import check_record, require_steps
from ..run import check_threads
from ..sample import Unit
from .audit import still_verified, with_faults
from .examiner import Examiner
from .outcome import UnitResult
from .replay_work import ReplayWork, Wanted
from .transcript import Transcript
from .venue import LocalVenue, Venue

Json = dict[str, Any]

_SHOWN = {"match", "mismatch"}
_DOMAIN = b"bitwitness/recheck-work/v1\x00"


@dataclass(frozen=True)
class RecheckReport:
    """What came of computing an audit again. `entry` is the log's index of the signed recheck, if it is in the log."""

    run: str
    name: str
    audit: int
    auditor: str
    result: str
    reason: str | None
    units: tuple[UnitResult, ...]
    steps: int
    transcript: Commitment
    entry: int | None
    resumed: bool = False
    """Whether a recheck that was stopped before was gone on with."""


@dataclass(frozen=True)
class _Verdict:
    result: str
    reason: str | None = None


def recheck(
    where: Project | Venue,
    entry: str,
    *,
    threads: int,
    windows_at_once: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> RecheckReport:
    """Compute the audit at log index (or with leaf hash) `entry` again and append the signed `recheck`.

    Raises BitwitnessError where the entry is no audit or this auditor's own, and what audit() raises before its intent.
    """
    check_threads(threads)
    venue: Venue = LocalVenue(where) if isinstance(where, Project) else where
    with venue.open() as ledger:
        index = find_entry(ledger, entry)
        said = _audit_at(ledger, index)
        history = open_verified_run(venue.project, ledger, said["run"])
        audited = next(e for e in history.about if e.index == index)
        if audited.predicate["signer"] == venue.auditor.keyid:
            raise BitwitnessError(
                f"entry {index} is this auditor's own audit; another auditor's recheck says something"
            )
        require_steps(history)
        work = _kept(venue, audited.leaf_hash)
        again = _Again(venue, history, audited, ledger.origin, threads, windows_at_once, work)
        resumed = not work.begins
        broken = machine_fault(threads)
        if broken is None:
            again.replay(report)
        broken = broken or machine_fault(threads)
        verdict = again.verdict() if broken is None else _Verdict("inconclusive", broken)
        transcript = again.transcript.commit()
        steps = len(again.compared)
        predicate: Json = {
            "arithmetic": this_builds(history.genesis["arithmetic"]),
            "audit": audited.leaf_hash.hex(),
            "code": code_commitment().to_json(),
            "observed": records.observed(records.new_host_id(), threads),
            "result": verdict.result,
            "run": history.run,
            "signer": venue.auditor.keyid,
            "steps": steps,
            "transcript": transcript.to_json(),
        }
        if verdict.reason is not None:
            predicate["reason"] = verdict.reason.encode("ascii", "replace").decode("ascii")[:200]
        data = seal(entries.statement("recheck", None, predicate), venue.auditor)
        venue.refresh(ledger)
        made = venue.conclude(ledger, data, still_verified(venue.project, ledger, history, audited), work.finish)
    return RecheckReport(
        run=history.run,
        name=history.name,
        audit=index,
        auditor=audited.predicate["signer"],
        result=verdict.result,
        reason=verdict.reason,
        units=tuple(again.results),
        steps=steps,
        transcript=transcript,
        entry=made,
        resumed=resumed,
    )


def _kept(venue: Venue, audit: bytes) -> ReplayWork:
    """What this auditor kept of a recheck of the audit with this leaf hash."""
    subject = hashlib.sha256(_DOMAIN + audit).digest()
    own = hashlib.sha256(subject + bytes.fromhex(venue.auditor.keyid)).hexdigest()[:32]
    return ReplayWork.open(venue.work / f"recheck-{own}", subject, venue.auditor)


def _audit_at(ledger: Ledger, index: int) -> Json:
    statement = open_envelope(ledger.entry(index)).statement
    kind = statement["predicateType"].rsplit("/", 2)[1]
    if kind != "audit":
        raise BitwitnessError(f"entry {index} is of the kind {kind}, not audit; `ledger log --kind audit` lists those")
    predicate: Json = statement["predicate"]
    return predicate


class _Again:
    """One audit being computed again."""

    def __init__(
        self,
        venue: Venue,
        history: RunHistory,
        audited: Entry,
        origin: str,
        threads: int,
        windows_at_once: int,
        work: ReplayWork,
    ) -> None:
        self.said = said = audited.predicate
        intent = next(entry for entry in history.about if entry.leaf_hash.hex() == said["intent"])
        # Its units are cut, and its record was checked, as the run stood when it was announced.
        self.history = history = history.as_of(intent.predicate["size"])
        self.transcript = Transcript(bytes.fromhex(said["seed"]), said["signer"])
        starts = {(unit["first"], unit["last"]): unit["start"] for unit in said["units"] if self._replayed(unit)}
        faults = check_record(history, origin)
        self.examiner = Examiner(
            venue.material, history, threads, windows_at_once, self.transcript, faults, work, starts
        )
        self.results: list[UnitResult] = []

    def _replayed(self, unit: Json) -> bool:
        return "start" in unit and unit["last"] > self.history.first and unit["outcome"] in _SHOWN

    def _is_fault(self, unit: Json) -> bool:
        """Whether the record of these steps is wrong, so that they are a mismatch without any replay."""
        steps = range(unit["first"], unit["last"] + 1)
        return unit["outcome"] == "mismatch" and any(fault.step in steps for fault in self.examiner.faults)

    @property
    def compared(self) -> set[int]:
        return {step for item in self.results for step in item.compared if step > self.history.first}

    def replay(self, report: Callable[[int, int], None]) -> None:
        """Replay what the audit says that it replayed, in its order."""
        if any(unit.get("found", {}).get("field") == "screen" for unit in self.said["units"]):
            self.examiner.screen()
        wanted: list[Wanted] = []
        for unit in self.said["units"]:
            if unit["outcome"] in _SHOWN and ({"part", "start"} & unit.keys() or not self._is_fault(unit)):
                wanted.append((Unit(unit["first"], unit["last"], unit["cause"]), unit.get("part")))
        results = self.examiner.examine_each(wanted, report)
        parts = any("part" in unit for unit in self.said["units"])
        self.results = results if parts else with_faults(self.history, results, self.examiner.faults)

    def verdict(self) -> _Verdict:
        """Confirmed only if outcomes and transcript are the same; refuted only by what was computed to the end."""
        if self.said["arithmetic"] != this_builds(self.said["arithmetic"]):
            return _Verdict("inconclusive", "it computed with operators that this program has not")
        if (wrong := self._impossible_start()) is not None:
            return _Verdict("refuted", wrong)
        by_unit = {(item.unit.first, item.unit.last, item.part): item for item in self.results}
        doubt = refuted = None
        for unit in self.said["units"]:
            ours = by_unit.pop((unit["first"], unit["last"], unit.get("part")), None)
            where = f"steps {unit['first']} to {unit['last']}"
            if unit["outcome"] not in _SHOWN:
                doubt = doubt or f"it did not finish {where}, so its transcript need not be what a replay gives"
            elif ours is None:
                doubt = doubt or f"{where} could not be computed again"
            elif ours.outcome not in _SHOWN:
                doubt = doubt or f"{where} could not be computed again: {ours.reason}"
            elif (difference := _difference(unit, ours)) is not None and self._is_local(unit, ours):
                doubt = doubt or f"{where}: {difference}, which depends on what is at hand"
            elif difference is not None:
                refuted = refuted or f"{where}: {difference}"
            elif not {"start", "part"} & unit.keys() and not self._is_fault(unit):
                doubt = doubt or f"it does not say from where it replayed {where}"
        left = next((item for item in by_unit.values() if item.outcome == "mismatch"), None)
        if left is not None and not self._is_local({}, left):
            refuted = refuted or f"it leaves out that steps {left.unit.first} to {left.unit.last} are a mismatch"
        if refuted is not None:
            return _Verdict("refuted", refuted)
        if self.transcript.commit() == Commitment.from_json(self.said["transcript"], type="transcript/1"):
            return _Verdict("confirmed")
        if doubt is not None:
            return _Verdict("inconclusive", doubt)
        return _Verdict("refuted", "its transcript is not what the replay gives")

    def _impossible_start(self) -> str | None:
        """A state that no honest replay starts from: the run had stored none there, or it is not before the unit."""
        first = self.history.first
        for unit in self.said["units"]:
            start = unit.get("start", first)
            initial = unit["last"] == first
            if start != first and (initial or start >= unit["first"] or start not in self.history.states):
                return f"steps {unit['first']} to {unit['last']}: no replay of them starts from step {start}"
        return None

    def _is_local(self, unit: Json, ours: UnitResult) -> bool:
        """Whether two honest auditors may differ on this: held-out data, stored states or imported files at hand."""
        fields = {str((found or {}).get("field", "")) for found in (unit.get("found"), ours.found)}
        if any(field == "screen" or field.startswith("eval.") for field in fields):
            return True
        return self.history.genesis["init"]["kind"] == "import" and ours.unit.last == self.history.first


def _difference(unit: Json, ours: UnitResult) -> str | None:
    """In what an audit's unit is another than the replay's; None where it is the same."""
    if unit["outcome"] != ours.outcome:
        at = "" if ours.found is None else f" at step {ours.found['step']}"
        return f"it says {unit['outcome']}, the replay {ours.outcome}{at}"
    if ours.found is not None:
        for name in ("step", "computed", "expected"):
            if unit["found"][name] != ours.found[name]:
                return f"it found another {name} than the replay, which differs at step {ours.found['step']}"
    return None


__all__ = ["RecheckReport", "recheck"]
