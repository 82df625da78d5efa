"""The two orders in which anything is added up (docs/arithmetic.md, "Sums").

Every sum starts at +0 and adds every part, so -0 never leaves a sum, and a part of +0 may be skipped.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from bitwitness.kernels.reference.binary32 import ZERO, add, fma

BLOCK = 256
LANES = 16
CHUNK = 4096


def blocks(count: int, segment: int = 0) -> Iterator[range]:
    """The ranges of at most 256 indices that a contraction of `count` runs in, ascending.

    With a segment, a block also ends at each multiple of the segment length.
    """
    for first in range(0, count, segment or count or 1):
        last = min(first + (segment or count), count)
        for start in range(first, last, BLOCK):
            yield range(start, min(start + BLOCK, last))


def chain(pairs: Iterable[tuple[int, int]]) -> int:
    """p = +0, then p = fma(a, b, p) for each pair in order."""
    p = ZERO
    for a, b in pairs:
        p = fma(a, b, p)
    return p


def blocksum(a: Sequence[int], b: Sequence[int], start: int = ZERO, segment: int = 0) -> int:
    """The contraction of a and b (equal lengths): block chains added to `start`, ascending."""
    acc = start
    for block in blocks(len(a), segment):
        acc = add(acc, chain((a[k], b[k]) for k in block))
    return acc


def rowsum(values: Sequence[int]) -> int:
    """The sum along a row."""
    return _rowsum(len(values), lambda i, lane: add(lane, values[i]))


def rowsum_products(a: Sequence[int], b: Sequence[int]) -> int:
    """The sum along a row of a[i] * b[i], each product fused into its lane."""
    return _rowsum(len(a), lambda i, lane: fma(a[i], b[i], lane))


def _rowsum(count: int, accumulate: Callable[[int, int], int]) -> int:
    acc = ZERO
    for first in range(0, count, CHUNK):
        lanes = [ZERO] * LANES
        for i in range(first, min(first + CHUNK, count)):
            lanes[i % LANES] = accumulate(i, lanes[i % LANES])
        m = [add(lanes[i], lanes[i + 8]) for i in range(8)]
        even = add(add(m[0], m[4]), add(m[2], m[6]))
        odd = add(add(m[1], m[5]), add(m[3], m[7]))
        acc = add(acc, add(even, odd))
    return acc
