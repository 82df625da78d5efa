"""Which units an audit replays: a sample that nobody picks, and those that always count (docs/formats/audit.md).

A unit is the interval between two stored states; unit (0, 0) is the initial state itself, or (n, n) of a run that
goes on from step n of another one. Who draws, and who checks what was drawn (`ledger coverage`, the gate), go by the
run's genesis and marks, and by the same functions. Needs neither numpy nor torch.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Mark:
    """An entry that the units of a run's audits depend on: its index, its kind, and the step of the run that it names.

    `kind` is state, resume, release, or fork: the genesis of a run that goes on from this one.
    """

    entry: int
    kind: str
    step: int


@dataclass(frozen=True)
class Unit:
    """Steps first … last, all replayed and compared; `cause` says why the audit has it."""

    first: int
    last: int
    cause: str


def units(states: Iterable[int], last_step: int, start: int = 0) -> list[tuple[int, int]]:
    """Cut steps start + 1 … last_step at the stored states: [(first, last), …], ascending."""
    inner = {step for step in states if start < step < last_step}
    ends = sorted(inner | ({last_step} if last_step > start else set()))
    begins = [start + 1] + [end + 1 for end in ends[:-1]]
    return list(zip(begins, ends, strict=False))


def draw(seed: bytes, population: int, count: int) -> list[int]:
    """Draw `count` distinct numbers below `population`, ascending (docs/formats/audit.md, sample).

    Draw i (i = 0, 1, …) is an unbiased number below population − i: the first of the 64-bit big-endian heads of
    SHA-256(seed ‖ i ‖ attempt), both 8 bytes big-endian, below the greatest multiple of it, reduced; it indexes
    what is left, ascending.
    """
    left = list(range(population))
    chosen = []
    for number in range(min(count, population)):
        chosen.append(left.pop(_below(seed, number, len(left))))
    return sorted(chosen)


def _below(seed: bytes, number: int, bound: int) -> int:
    limit = 2**64 - 2**64 % bound
    attempt = 0
    while True:
        text = seed + number.to_bytes(8, "big") + attempt.to_bytes(8, "big")
        value = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
        if value < limit:
            return value % bound
        attempt += 1


def always_audited(genesis: Json, marks: Iterable[Mark], last_step: int) -> dict[int, str]:
    """The steps whose units are in every audit that draws, each with its cause."""
    found = list(marks)
    always = {last_step: "last"}
    if genesis["init"]["kind"] == "parent":
        always |= {min(genesis["control"]["step"] + 1, last_step): "fork"}
    for kind in ("fork", "release"):
        always |= {mark.step: kind for mark in found if mark.kind == kind}
    for mark in found:
        if mark.kind == "resume":
            always |= {mark.step: "resume", min(mark.step + 1, last_step): "resume"}
    return always


def select(genesis: Json, marks: Sequence[Mark], last_step: int, seed: bytes, samples: int) -> list[Unit]:
    """Return the initial state, the units up to `last_step` that are always audited, and `samples` others.

    `genesis` is the predicate of the run's genesis, `marks` what its units depend on.
    """
    start: int = genesis["control"]["step"]
    every = units((mark.step for mark in marks if mark.kind == "state"), last_step, start)
    ends = [last for _, last in every]
    causes: dict[int, str] = {}
    for step, cause in sorted(always_audited(genesis, marks, last_step).items()):
        if start < step <= last_step:
            causes.setdefault(bisect_left(ends, step), cause)
    others = [number for number in range(len(every)) if number not in causes]
    causes |= {others[index]: "sample" for index in draw(seed, len(others), samples)}
    chosen = [Unit(*every[number], cause) for number, cause in sorted(causes.items())]
    return [Unit(start, start, "init"), *chosen]


def misdrawn(audit: Json, intent: Json, genesis: Json, marks: Iterable[Mark]) -> str | None:
    """How the units of an audit differ from what its seed draws of the run as its intent saw it; None if they do not.

    Units picked by hand may stand in an audit, but not cover anything by the word of a beacon. `marks` are all of the
    run's. The predicates are of entries that hold together with each other (beacon.check_seed).
    """
    said = {(unit["first"], unit["last"], unit["cause"]) for unit in audit["units"] if unit["cause"] != "chosen"}
    by_hand = [unit for unit in audit["units"] if unit["cause"] == "chosen" and unit["outcome"] == "match"]
    if audit["basis"] == "beacon" and by_hand:
        return f"steps {by_hand[0]['first']} to {by_hand[0]['last']} were chosen by hand, not drawn from its beacon"
    if not said:
        return None
    seen = [mark for mark in marks if mark.entry < intent["size"]]
    drawn = {
        (unit.first, unit.last, unit.cause)
        for unit in select(genesis, seen, intent["last"], bytes.fromhex(audit["seed"]), intent["samples"])
    }
    for first, last, _cause in sorted(said - drawn):
        return f"steps {first} to {last} are not among what its seed draws"
    for first, last, cause in sorted(drawn - said):
        return f"steps {first} to {last}, which its seed draws ({cause}), are not among what it replayed"
    return None
