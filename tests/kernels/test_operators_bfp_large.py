"""Block fixed point at sizes beyond a strip, a task or a tile, against numpy, whose integers are exact as well."""

import numpy as np
import pytest

from bitwitness.kernels.program import call

from .test_operators_bfp import integers, quantised


def product(p, s, q, t, c):
    """C + P Q^T: float64 holds the integer sums of a block exactly."""
    acc = c.copy()
    for block in range(s.shape[1]):
        k = slice(128 * block, 128 * (block + 1))
        exact = (p[:, k].astype(np.float64) @ q[:, k].T.astype(np.float64)).astype(np.float32)
        acc = acc + exact * (s[:, block, None] * t[None, :, block])
    return acc


SIZES = [
    # M, N, blocks
    (97, 130, 9),  # more than one task of 96 rows, more blocks than a strip
    (13, 3100, 2),  # more columns than a strip
    (200, 65, 17),
    (3, 7, 393),  # K = 50,304
]


@pytest.mark.parametrize(("m", "n", "blocks"), SIZES)
def test_products(values, m, n, blocks):
    share = 0.2 / blocks  # of poisoned blocks: few rows of them
    (p, s), (q, t) = integers(1, m, blocks, share), integers(2, n, blocks, share)
    s, t = np.clip(s, 2.0**-20, 2.0**20), np.clip(t, 2.0**-20, 2.0**20)  # NaN stays
    c = values("normal", 3, m, n)
    for accumulate, start in ((1, c), (0, np.zeros_like(c))):
        expected = product(p, s, q, t, start)
        for threads in (1, 2, 3, 5):
            got = c.copy()
            call("matmul_bfp", p, s, q, t, got, accumulate=accumulate, threads=threads)
            assert np.array_equal(got, expected, equal_nan=True), (accumulate, threads)
            assert not np.isnan(got).all()


def blocks_of(y):
    """Integers and scales of y [R, B, 128], already equilibrated and finite."""
    e = np.maximum(np.frexp(np.abs(y).max(axis=2))[1], -50)
    e[np.abs(y).max(axis=2) == 0] = -50
    q = np.clip(np.rint(np.ldexp(y.astype(np.float64), 12 - e[:, :, None])), -4095, 4095)
    return q.astype(np.int16).reshape(len(y), -1), np.ldexp(np.float32(1), e - 12).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("rows", "k"), [(300, 700), (33, 128), (5, 5000)])
def test_rows(values, rows, k, threads):
    x = values("normal", 1, rows, k)
    a = np.random.default_rng(2).integers(-40, 41, k).astype(np.int32)
    (q, s), e = quantised(rows, k), np.empty(rows, np.int32)
    call("bfp_rows", x, a, q, s, e, sign=-1, threads=threads)
    y = np.zeros((rows, q.shape[1]), np.float32)
    y[:, :k] = np.ldexp(x, -a)
    expected, scales = blocks_of(y.reshape(rows, -1, 128))
    assert np.array_equal(q, expected) and np.array_equal(s, scales)
    assert np.array_equal(e, np.frexp(np.abs(x).max(axis=1))[1])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("k", "rows", "segment"), [(600, 300, 200), (512, 96, 128), (4000, 17, 4000)])
def test_columns(values, k, rows, segment, threads):
    x = values("normal", 1, k, rows)
    a = np.random.default_rng(2).integers(-40, 41, k).astype(np.int32)
    q, s = quantised(rows, k, segment)
    call("bfp_columns", x, a, q, s, sign=1, segment=segment, threads=threads)
    y = np.zeros((rows, k // segment, -(-segment // 128) * 128), np.float32)
    y[:, :, :segment] = np.ldexp(x, a[:, None]).T.reshape(rows, k // segment, segment)
    expected, scales = blocks_of(y.reshape(rows, -1, 128))
    assert np.array_equal(q, expected) and np.array_equal(s, scales)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_exponents(values, threads):
    x = values("wide", 1, 1000, 3000)
    e = np.empty(3000, np.int32)
    call("bfp_exponents", x, e, threads=threads)
    assert np.array_equal(e, np.frexp(np.abs(x).max(axis=0))[1])
