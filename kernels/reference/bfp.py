"""Block fixed point: exponents, the two ways to quantise, and the product (docs/arithmetic.md, "Block fixed point").

Integers stay integers: only the last addition of a product, and the equilibrating factor, are binary32 operations.
"""

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference.elementwise import Matrix, Vector

BLOCK = 128
LIMIT = 4095
LOWEST = -50  # least exponent of a block
SHIFT = 40  # largest exponent that is moved between the operands
POISON = (127 + 60) << 23  # the bits of 2^60
_MAGNITUDE = 0x7FFFFFFF


def bfp_exponents(x: Matrix, e: Vector) -> None:
    """Exponent of the greatest magnitude of each column."""
    for j, column in enumerate(zip(*x, strict=True)):
        e[j] = _exponent(_greatest(column))


def bfp_balance(g: Vector, x: Vector, a: Vector) -> None:
    """Half of what the exponents of g exceed those of x by, rounded down."""
    for k in range(len(a)):
        a[k] = (g[k] - x[k]) // 2


def bfp_rows(x: Matrix, a: Vector, q: Matrix, s: Matrix, e: Vector, *, sign: int) -> None:
    """Quantise x[R,K], equilibrated by 2^(sign a_k), along its rows; e = exponent of each row of x itself."""
    for r, row in enumerate(x):
        e[r] = _exponent(_greatest(row))
        q[r][:], s[r][:] = _quantised(row, a, sign, len(row))


def bfp_columns(x: Matrix, a: Vector, q: Matrix, s: Matrix, *, sign: int, segment: int) -> None:
    """Quantise x[K,R], equilibrated by 2^(sign a_k), along its columns; blocks restart at each multiple of segment."""
    for r, column in enumerate(zip(*x, strict=True)):
        q[r][:], s[r][:] = _quantised(column, a, sign, segment)


def matmul_bfp(p: Matrix, p_scales: Matrix, q: Matrix, q_scales: Matrix, c: Matrix, *, accumulate: int) -> None:
    """C[M,N] = P Q^T, or C + that: exact integer sums of blocks, scaled and added ascending."""
    for i, row in enumerate(p):
        for j, column in enumerate(q):
            acc = c[i][j] if accumulate else f32.ZERO
            for block, (s, t) in enumerate(zip(p_scales[i], q_scales[j], strict=True)):
                begin = block * BLOCK
                exact = sum(row[k] * column[k] for k in range(begin, begin + BLOCK))
                acc = f32.add(acc, f32.mul(f32.from_int(exact), f32.mul(s, t)))
            c[i][j] = acc


def _greatest(values: Vector | tuple[int, ...]) -> int:
    return max(value & _MAGNITUDE for value in values)


def _exponent(magnitude: int) -> int:
    """e with 2^(e-1) <= m < 2^e; -126 for zero and subnormals, 129 for infinities and NaNs."""
    return (magnitude >> 23) - 126


def _clamped(value: int, limit: int) -> int:
    return max(-limit, min(limit, value))


def _power_of_two(n: int) -> int:
    return (127 + n) << 23


def _quantised(row: Vector | tuple[int, ...], a: Vector, sign: int, segment: int) -> tuple[Vector, Vector]:
    """The integers and scales of one row of an operand, each block filled up with zeros."""
    scaled = [f32.mul(x, _power_of_two(sign * _clamped(n, SHIFT))) for x, n in zip(row, a, strict=True)]
    integers, scales = [], []
    for origin in range(0, len(row), segment):
        for begin in range(origin, origin + segment, BLOCK):
            values = scaled[begin : min(begin + BLOCK, origin + segment)]
            greatest = _greatest(values)
            if greatest >= POISON:
                scales.append(f32.NAN)
                values = []
            else:
                e = max(LOWEST, _exponent(greatest))
                scales.append(_power_of_two(e - 12))
                integers += [_nearest(x, 12 - e) for x in values]
            integers += [0] * (BLOCK - len(values))
    return integers, scales


def _nearest(x: int, exponent: int) -> int:
    """x 2^exponent to the nearest integer, ties to even, within +-4095."""
    count, drop = f32.units(x), 149 - exponent
    kept, rest, half = count >> drop, count & ((1 << drop) - 1), 1 << (drop - 1)
    if rest > half or (rest == half and kept & 1):
        kept += 1
    return _clamped(kept, LIMIT)
