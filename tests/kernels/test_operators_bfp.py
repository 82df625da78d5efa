"""Block fixed point: native equals reference, bit for bit, on what training sees and on what breaks quantisers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwitness.kernels.program import call

FLAVOURS = ["normal", "wide", "tiny", "huge", "special", "bits"]
flavours = st.sampled_from(FLAVOURS)
seeds = st.integers(0, 2**32 - 1)
EXPONENTS = [-(2**31), -126, -41, -40, -1, 0, 1, 40, 41, 129, 2**31 - 1]


def padded(k, segment=None):
    segment = segment or k
    return k // segment * -(-segment // 128) * 128


def quantised(rows, k, segment=None):
    """Empty q and s of an operand of `rows` rows."""
    width = padded(k, segment)
    return np.full((rows, width), 77, np.int16), np.full((rows, width // 128), 77, np.float32)


@settings(max_examples=40)
@given(flavours, seeds, st.integers(1, 40), st.integers(1, 70))
def test_exponents(values, same_bits, flavour, seed, rows, width):
    same_bits("bfp_exponents", values(flavour, seed, rows, width), np.zeros(width, np.int32))


def test_balance(same_bits):
    g, x = np.repeat(np.arange(-5, 6, dtype=np.int32), 11), np.tile(np.arange(-5, 6, dtype=np.int32), 11)
    same_bits("bfp_balance", g, x, np.zeros_like(g))
    ends = np.array([-126, 129, 129, -126, -(2**31), 2**31 - 1], np.int32)
    same_bits("bfp_balance", ends, ends[::-1].copy(), np.zeros_like(ends))


@settings(max_examples=60)
@given(flavours, seeds, st.integers(1, 5), st.integers(1, 300), st.sampled_from([-1, 1]))
def test_rows(values, same_bits, flavour, seed, rows, k, sign):
    a = np.random.default_rng(seed).integers(-60, 61, k).astype(np.int32)
    same_bits("bfp_rows", values(flavour, seed, rows, k), a, *quantised(rows, k), np.zeros(rows, np.int32), sign=sign)


@settings(max_examples=60)
@given(flavours, seeds, st.integers(1, 3), st.integers(1, 150), st.integers(1, 37), st.sampled_from([-1, 1]))
def test_columns(values, same_bits, flavour, seed, segments, segment, rows, sign):
    k = segments * segment
    a = np.random.default_rng(seed).integers(-60, 61, k).astype(np.int32)
    x = values(flavour, seed, k, rows)
    same_bits("bfp_columns", x, a, *quantised(rows, k, segment), sign=sign, segment=segment)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_shifts_stop_at_40(values, same_bits, exponent):
    x, a = values("normal", 1, 3, 130), np.full(130, exponent, np.int32)
    for sign in (-1, 1):
        same_bits("bfp_rows", x, a, *quantised(3, 130), np.zeros(3, np.int32), sign=sign)
        same_bits("bfp_columns", x, a[:3].copy(), *quantised(130, 3), sign=sign, segment=3)


def test_ties_go_to_even_and_the_greatest_to_4095(same_bits):
    """1 in the block makes the unit 2^-11; 4096 units would be the next power of two."""
    units = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2047.5, 2046.5, 2048, -2048, 0.25, 0.75]
    x = np.array([units], np.float32) * np.float32(2**-11)
    q, s = quantised(1, x.shape[1])
    call("bfp_rows", x, np.zeros(x.shape[1], np.int32), q, s, np.zeros(1, np.int32), sign=1)
    assert q[0, : x.shape[1]].tolist() == [0, 2, 2, 0, -2, -2, 2048, 2046, 2048, -2048, 0, 1]
    assert s[0, 0] == 2.0**-11
    below_two = np.array([[np.nextafter(np.float32(2), np.float32(0)), -1.9999]], np.float32)
    call("bfp_rows", below_two, np.zeros(2, np.int32), q, s, np.zeros(1, np.int32), sign=1)
    assert q[0, :3].tolist() == [4095, -4095, 0]
    same_bits("bfp_rows", x, np.zeros(x.shape[1], np.int32), q, s, np.zeros(1, np.int32), sign=1)
    same_bits("bfp_rows", below_two, np.zeros(2, np.int32), q, s, np.zeros(1, np.int32), sign=1)


def integers(seed, rows, blocks, share=0.05):
    """A quantised operand of any integers and scales, the greatest among them and a share of poisoned ones."""
    rng = np.random.default_rng(seed)
    q = rng.integers(-4095, 4096, (rows, 128 * blocks)).astype(np.int16)
    q[rng.random(rows) < 0.2] = 4095
    q[rng.random(rows) < 0.2] = -4095
    s = np.ldexp(1.0, rng.integers(-62, 49, (rows, blocks))).astype(np.float32)
    poisoned = rng.random((rows, blocks)) < share
    s[poisoned] = np.nan
    q.reshape(rows, blocks, 128)[poisoned] = 0
    return q, s


@settings(max_examples=25)
@given(seeds, st.integers(1, 14), st.integers(1, 70), st.integers(1, 3), st.booleans())
def test_products(values, same_bits, seed, m, n, blocks, accumulate):
    c = values("wide" if accumulate else "bits", seed, m, n)
    same_bits("matmul_bfp", *integers(seed, m, blocks), *integers(seed + 1, n, blocks), c, accumulate=int(accumulate))


def test_the_greatest_sum_of_a_block_fits(same_bits):
    """4095 in every place, with and against each other."""
    q = np.full((2, 128), 4095, np.int16)
    q[1] = -4095
    s = np.ones((2, 1), np.float32)
    c = np.zeros((2, 2), np.float32)
    same_bits("matmul_bfp", q, s, q.copy(), s.copy(), c, accumulate=0)


def test_negative_zero_never_leaves(same_bits):
    q, s = np.zeros((2, 128), np.int16), np.ones((2, 1), np.float32)
    same_bits("matmul_bfp", q, s, q.copy(), s.copy(), np.full((2, 2), -0.0, np.float32), accumulate=1)
