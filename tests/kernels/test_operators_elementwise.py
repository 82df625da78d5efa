"""fill, add, swiglu, adamw, sum_squares, embed: native equals reference, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FLAVOURS = ["normal", "wide", "tiny", "huge", "special", "bits"]
flavours = st.sampled_from(FLAVOURS)
seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(1, 70)


@given(lengths, st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_fill(values, same_bits, n, value):
    same_bits("fill", values("bits", n, n), value=value)


@given(flavours, flavours, seeds, lengths)
def test_add(values, same_bits, flavour_a, flavour_b, seed, n):
    a, b = values(flavour_a, seed, n), values(flavour_b, seed + 1, n)
    same_bits("add", a, b, values("bits", seed, n))
    same_bits("add", a, b, a)
    same_bits("add", a, b, b)
    same_bits("add", a, a, values("bits", seed, n))


@settings(max_examples=40)
@given(flavours, seeds, st.integers(1, 5), st.integers(1, 37))
def test_swiglu(values, same_bits, flavour, seed, rows, width):
    ab = values(flavour, seed, rows, 2 * width)
    same_bits("swiglu", ab, values("bits", seed, rows, width))


@settings(max_examples=40)
@given(flavours, flavours, seeds, st.integers(1, 5), st.integers(1, 37), st.booleans())
def test_swiglu_backward(values, same_bits, flavour, flavour_dh, seed, rows, width, in_place):
    ab, dh = values(flavour, seed, rows, 2 * width), values(flavour_dh, seed + 1, rows, width)
    same_bits("swiglu_backward", ab, dh, ab if in_place else values("bits", seed, rows, 2 * width))


def test_sigmoid_over_its_range(values, same_bits):
    """Where exp(−a) overflows, underflows and passes through every binade between."""
    a = np.concatenate([np.linspace(-110, 110, 441), [0.0, -0.0, 87.3, 88.72, -87.34, -88.73]])
    ab = np.concatenate([a, np.ones_like(a)]).astype(np.float32)[None]
    same_bits("swiglu", ab, np.zeros((1, a.size), np.float32))
    same_bits("swiglu_backward", ab, np.ones((1, a.size), np.float32), np.zeros_like(ab))


SCALARS = [0.00123, 0.1, 0.95, 0.05, 0.9999, 3e-4, 1.7, 1e-8]


@settings(max_examples=40)
@given(flavours, flavours, seeds, lengths)
def test_adamw(values, same_bits, flavour, flavour_g, seed, n):
    p, g, m = values(flavour, seed, n), values(flavour_g, seed + 1, n), values(flavour, seed + 2, n)
    v = np.abs(values(flavour, seed + 3, n))
    same_bits("adamw", p, g, m, v, np.array(SCALARS, np.float32))
    same_bits("adamw", p, g, m, values(flavour, seed + 3, n), values(flavour, seed + 4, 8))


@pytest.mark.parametrize("n", [1, 15, 17, 4095, 4096, 4097, 16383, 16384, 16385, 21000])
def test_sum_squares(values, same_bits, n):
    same_bits("sum_squares", values("normal", n, n), values("bits", n, -(-n // 16384)))


@settings(max_examples=25)
@given(flavours, seeds, st.integers(1, 300))
def test_sum_squares_of_strange_numbers(values, same_bits, flavour, seed, n):
    same_bits("sum_squares", values(flavour, seed, n), values("bits", n, 1))


@given(flavours, seeds, st.integers(1, 20), st.integers(1, 9), st.integers(1, 40))
def test_embed(values, same_bits, flavour, seed, rows, vocabulary, width):
    ids = np.random.default_rng(seed).integers(0, vocabulary, rows, dtype=np.int32)
    table, y = values(flavour, seed, vocabulary, width), values("bits", seed, rows, width)
    same_bits("embed", ids, table, y)
    same_bits("embed_backward", ids, values(flavour, seed + 1, rows, width), table)


def test_embed_backward_over_wide_rows(values, same_bits):
    """More columns than one worker's share, one token many times: the order of rows shows."""
    ids = np.array([0, 2, 0, 0, 1, 2, 0], np.int32)
    same_bits("embed_backward", ids, values("wide", 1, 7, 200), values("wide", 2, 3, 200))
