"""Where temp buffers lie in one block of memory: two share bytes only if they are never alive together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `size` bytes, alive from call `first` to call `last`, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Plan:
    """Byte offsets of the buffers, each a multiple of 64, in an arena of `size` bytes."""

    offsets: Mapping[str, int]
    size: int


def plan(lifetimes: Mapping[str, Lifetime]) -> Plan:
    """Place the largest buffer first, each in the lowest gap that those alive with it leave free.

    Greedy by size is within a few percent of the least possible arena for the chains that training steps are
    (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
    """
    placed: list[tuple[int, int, Lifetime]] = []  # (begin, end, lifetime)
    offsets: dict[str, int] = {}
    for name, lifetime in sorted(lifetimes.items(), key=lambda item: (-item[1].size, item[1].first, item[0])):
        size = -(-lifetime.size // ALIGNMENT) * ALIGNMENT
        offset = 0
        for begin, end, _ in sorted((p for p in placed if p[2].meets(lifetime)), key=lambda p: p[:2]):
            if offset + size <= begin:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, lifetime))
        offsets[name] = offset
    return Plan(offsets, max((end for _, end, _ in placed), default=0))
