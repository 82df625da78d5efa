"""What an audit entry must say to be worth anything, and which steps it covers: one rule for every reader.

The gate decides with it on a release, `ledger coverage` counts with it. All functions read the predicates of entries
that are already authenticated (docs/formats/audit.md, What counts).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .beacon import BeaconWrong, Cosignature
from .drand import CannotVerify, find_source, round_time, verify_round

Json = Mapping[str, Any]
# The part of a step that an audit of its eval computes again.
EVAL_PART = "eval"


@dataclass(frozen=True)
class AuditedRun:
    """What a run fixes for its audits: its operator table, the step that it began from, and its last step."""

    arithmetic: Json
    start: int
    last: int

    @classmethod
    def of(cls, genesis: Json, last: int) -> AuditedRun:
        """From the predicate of a genesis, and the highest step that the run has."""
        return cls(genesis["arithmetic"], genesis["control"]["step"], last)


def contradiction(audit: Json, run: AuditedRun) -> str | None:
    """What an audit says that cannot be so; None if it holds together."""
    found = _spans(audit["units"])
    first, last = found[0][0], found[-1][1]
    if audit["arithmetic"] != run.arithmetic:
        return "it computed with another operator table than the run"
    if audit["transcript"]["size"] == 0:
        return "its transcript is empty, so it replayed nothing"
    if any(right[0] <= left[1] for left, right in pairwise(found)):
        return "its units overlap"
    if first < run.start or last > run.last:
        return f"it names steps {first} to {last}, of which the run has not all"
    covered = length(covered_spans(audit), run.start)
    # A replay that starts at an earlier stored state compares the steps before its unit, too.
    if not covered <= audit["steps"] <= last - run.start:
        return f"it claims {audit['steps']} compared steps, its units have {covered}"
    return None


def omission(audit: Json, intent: Json, run: AuditedRun) -> str | None:
    """What a drawn audit of the steps that `intent` announced would not leave out; None if nothing is missing."""
    units, found = audit["units"], _spans(audit["units"])
    if found[0][0] < intent["first"] or found[-1][1] > intent["last"]:
        return f"it names steps {found[0][0]} to {found[-1][1]}, of which the run and its intent have not all"
    if not any((unit["first"], unit["last"], unit["cause"]) == (run.start, run.start, "init") for unit in units):
        return "it did not compare the initial state, as every audit does"
    if found[-1][1] != intent["last"]:
        return f"it did not replay step {intent['last']}, the last that it announced, as every audit does"
    covered = length(covered_spans(audit), run.start)
    drawn = sum(unit["cause"] == "sample" for unit in units)
    if drawn > intent["samples"] or (drawn < intent["samples"] and covered < intent["last"] - run.start):
        return f"it announced a sample of {intent['samples']} units and replayed {drawn}"
    return None


class Unchecked(str):
    """A reason why something does not count that says nothing against it: it cannot be checked here."""


def untrusted(
    audit: Json, intent: Json, auditor: str, self_chosen_auditors: Collection[str], witnesses: Collection[str]
) -> str | None:
    """Why the word of `auditor` does not count on the basis of this audit; None if it does. All are keyids.

    A beacon counts if `witnesses` holds who cosigned it; of a round, that was before the round, and its network signed
    it. The rest of a beacon is checked with the entries (beacon.check_seed).
    """
    if audit["basis"] == "self-chosen":
        if auditor in self_chosen_auditors:
            return None
        return "it chose its own sample, which counts only for auditors in self_chosen_auditors"
    cosignature, wanted = Cosignature.from_json(audit["beacon"]["cosignature"]), intent["beacon"]
    if cosignature.key.keyid not in witnesses:
        return f"its beacon was cosigned by {cosignature.key.keyid[:16]}…, which is no witness of the policy"
    if wanted["kind"] == "cosignature":
        return None
    try:
        due = round_time(find_source(wanted["source"]), wanted["round"])
        if cosignature.time >= due:
            return f"nobody saw its intent before round {wanted['round']}, from which it drew"
        verify_round(wanted["source"], wanted["round"], bytes.fromhex(audit["beacon"]["round"]["signature"]))
    except CannotVerify as error:
        return Unchecked(f"its beacon cannot be checked: {error}")
    except BeaconWrong as error:
        return str(error)
    return None


def refutation(audit: str, auditor: str, rechecks: Iterable[tuple[int, Json]], trusted: Collection[str]) -> int | None:
    """The entry of a recheck that refutes an audit, if a trusted auditor made it; None if none stands.

    `audit` is the leaf hash, `rechecks` are (log index, predicate) in log order, `trusted` and `auditor` keyids. Of one
    rechecker the last word counts that was not inconclusive.
    """
    return next((index for index, result in _words(audit, auditor, rechecks, trusted) if result == "refuted"), None)


def mismatch_stands(audit: str, auditor: str, rechecks: Iterable[tuple[int, Json]], trusted: Collection[str]) -> bool:
    """Whether an audit that found a mismatch accuses.

    Not if a trusted auditor refuted it, unless a trusted auditor made or confirmed it.
    """
    if auditor in trusted:
        return True
    results = {result for _index, result in _words(audit, auditor, rechecks, trusted)}
    return "refuted" not in results or "confirmed" in results


def _words(
    audit: str, auditor: str, rechecks: Iterable[tuple[int, Json]], trusted: Collection[str]
) -> list[tuple[int, str]]:
    """(entry, result) of the last conclusive recheck of an audit by each trusted auditor but its own."""
    last: dict[str, tuple[int, str]] = {}
    for index, said in rechecks:
        signer, result = said["signer"], said["result"]
        if said["audit"] == audit and signer in trusted and signer != auditor and result != "inconclusive":
            last[signer] = (index, result)
    return sorted(last.values())


def covered_spans(audit: Json) -> list[tuple[int, int]]:
    """(first, last) of every unit that covers its steps, ascending. One part of a step covers no step by itself."""
    return _spans(unit for unit in audit["units"] if unit["outcome"] == "match" and "part" not in unit)


def covered_parts(audit: Json) -> list[tuple[int, str]]:
    """(step, part) of every unit that covers one part of its step."""
    return [(unit["first"], unit["part"]) for unit in audit["units"] if unit["outcome"] == "match" and "part" in unit]


def _spans(units: Iterable[Json]) -> list[tuple[int, int]]:
    return sorted((unit["first"], unit["last"]) for unit in units)


def length(covered: Iterable[tuple[int, int]], start: int = 0) -> int:
    """How many steps after `start` lie in at least one span; the numbers are as large as a signer likes."""
    total, reached = 0, start
    for low, high in sorted(covered):
        low = max(low, reached + 1)
        if low <= high:
            total += high - low + 1
            reached = high
    return total


def met(drawn: int, total: int, marked: int) -> float:
    """The probability that `drawn` of `total` hold at least one of `marked`, drawn without replacement.

    1 − C(T − k, m) / C(T, m), the hypergeometric distribution's; certainty where nothing is left to draw.
    """
    if drawn + min(marked, total) > total or drawn == total:
        return 1.0
    few, many = sorted((drawn, marked))
    missed = 1.0
    for number in range(few):
        missed *= (total - many - number) / (total - number)
    return 1.0 - missed


def tampered_steps(fraction: float, steps: int) -> int:
    """How many of the steps a fraction of them is: at least one."""
    return max(1, math.ceil(round(fraction * steps, 6)))
