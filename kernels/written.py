"""Which elements of a buffer have been written: a set of integers as sorted, disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Ranges:
    """Half-open ranges of integers; neighbours that touch are merged."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Include begin … end − 1."""
        low, high = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if low < high:
            begin, end = min(begin, self._begins[low]), max(end, self._ends[high - 1])
        self._begins[low:high] = [begin]
        self._ends[low:high] = [end]

    def cover(self, begin: int, end: int) -> bool:
        """Whether all of begin … end − 1 is included."""
        at = bisect_right(self._begins, begin) - 1
        return at >= 0 and end <= self._ends[at]
