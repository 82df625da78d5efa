"""Which units an audit replays: a sample that nobody picks, and those that always count (docs/formats/audit.md).

A unit is the interval between two stored states; unit (0, 0) is the initial state itself, or (n, n) of a run that
goes on from step n of another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


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


def select(
    all_units: list[tuple[int, int]], always: dict[int, str], seed: bytes, samples: int, start: int = 0
) -> list[Unit]:
    """Return the initial state, the units that hold a step of `always` (step -> cause), and `samples` others."""
    causes: dict[int, str] = {}
    for step, cause in sorted(always.items()):
        for number, (first, last) in enumerate(all_units):
            if first <= step <= last:
                causes.setdefault(number, cause)
    others = [number for number in range(len(all_units)) if number not in causes]
    causes |= {others[index]: "sample" for index in draw(seed, len(others), samples)}
    chosen = [Unit(*all_units[number], cause) for number, cause in sorted(causes.items())]
    return [Unit(start, start, "init"), *chosen]
