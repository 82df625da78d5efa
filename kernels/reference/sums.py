"""The two orders in which anything is added up (docs/arithmetic.md, "Sums").

Every sum starts at +0 and adds every part, so -0 never leaves a sum, and a part of +0 may be skipped.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from bitwitness.kernels.reference.binary32 import ZERO, add, fma

BLOCK = 256
LANES = 16
CHUNK = 4096


def blocks(count: int, segment: int = 0, offset: int = 0) -> Iterator[range]:
    """The ranges of at most 256 indices that a contraction runs in, ascending, from `offset` to count - 1.

    Blocks count from index 0; with a segment, they restart at each multiple of the segment length.
    """
    at = offset
    while at < count:
        origin = at // segment * segment if segment else 0
        end = origin + (at - origin) // BLOCK * BLOCK + BLOCK
        if segment:
            end = min(end, origin + segment)
        yield range(at, min(end, count))
        at = end


def chain(pairs: Iterable[tuple[int, int]]) -> int:
    """p = +0, then p = fma(a, b, p) for each pair in order."""
    p = ZERO
    for a, b in pairs:
        p = fma(a, b, p)
    return p


def blocksum(a: Sequence[int], b: Sequence[int], start: int = ZERO, segment: int = 0, offset: int = 0) -> int:
    """The contraction of a and b (equal lengths): block chains added to `start`, ascending.

    With an offset, a[0] and b[0] are element `offset` of the contraction and none comes before them.
    """
    acc = start
    for block in blocks(offset + len(a), segment, offset):
        acc = add(acc, chain((a[k - offset], b[k - offset]) for k in block))
    return acc


def rowsum(values: Sequence[int], offset: int = 0) -> int:
    """The sum along a row. With an offset, values[0] is element `offset` of the row and none comes before it."""
    return _rowsum(offset, offset + len(values), lambda i, lane: add(lane, values[i - offset]))


def rowsum_products(a: Sequence[int], b: Sequence[int]) -> int:
    """The sum along a row of a[i] * b[i], each product fused into its lane."""
    return _rowsum(0, len(a), lambda i, lane: fma(a[i], b[i], lane))


def _rowsum(first: int, last: int, accumulate: Callable[[int, int], int]) -> int:
    """Elements first ... last - 1 of a row: chunks and lanes count from the row's element 0."""
    acc = ZERO
    for chunk in range(first // CHUNK * CHUNK, last, CHUNK):
        lanes = [ZERO] * LANES
        for i in range(max(first, chunk), min(last, chunk + CHUNK)):
            lanes[i % LANES] = accumulate(i, lanes[i % LANES])
        m = [add(lanes[i], lanes[i + 8]) for i in range(8)]
        even = add(add(m[0], m[4]), add(m[2], m[6]))
        odd = add(add(m[1], m[5]), add(m[3], m[7]))
        acc = add(acc, add(even, odd))
    return acc
