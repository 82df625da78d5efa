"""Element by element, biases, dropout, adamw, sum_squares, embed: native equals reference, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwitness.kernels.program import call

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


@given(flavours, flavours, seeds, lengths)
def test_copy_and_mul(values, same_bits, flavour_a, flavour_b, seed, n):
    a, b = values(flavour_a, seed, n), values(flavour_b, seed + 1, n)
    same_bits("copy", a, b)
    same_bits("mul", a, b, values("bits", seed, n))
    same_bits("mul", a, b, a)
    same_bits("mul", a, b, b)
    same_bits("mul", a, a, values("bits", seed, n))


@settings(max_examples=40)
@given(flavours, flavours, seeds, st.integers(1, 9), st.integers(1, 70), st.booleans())
def test_add_bias(values, same_bits, flavour, flavour_b, seed, rows, width, in_place):
    x, b = values(flavour, seed, rows, width), values(flavour_b, seed + 1, width)
    same_bits("add_bias", x, b, x if in_place else values("bits", seed, rows, width))


@settings(max_examples=30)
@given(flavours, flavours, seeds, st.integers(1, 20), st.integers(1, 70), st.integers(0, 22))
def test_bias_backward(values, same_bits, flavour, flavour_db, seed, rows, width, segment):
    same_bits("bias_backward", values(flavour, seed, rows, width), values(flavour_db, seed + 1, width), segment=segment)


@pytest.mark.parametrize(("rows", "segment"), [(255, 0), (257, 0), (513, 0), (520, 130), (520, 260), (520, 511)])
def test_bias_backward_of_many_rows(values, same_bits, rows, segment):
    same_bits("bias_backward", values("wide", rows, rows, 3), values("normal", 6, 3), segment=segment)


ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]


@pytest.mark.parametrize("name", ACTIVATIONS)
@settings(max_examples=25)
@given(flavours, flavours, seeds, lengths)
def test_activations(values, same_bits, name, flavour, flavour_dy, seed, n):
    x, dy = values(flavour, seed, n), values(flavour_dy, seed + 1, n)
    same_bits(name, x, values("bits", seed, n))
    same_bits(name, x, x)
    same_bits(name + "_backward", x, dy, values("bits", seed, n))
    same_bits(name + "_backward", x, dy, x)
    same_bits(name + "_backward", x, dy, dy)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_over_their_range(same_bits, name):
    x = np.concatenate([np.linspace(-110, 110, 441), np.linspace(-6, 6, 241), [0.0, -0.0]]).astype(np.float32)
    same_bits(name, x, np.zeros_like(x))
    same_bits(name + "_backward", x, np.ones_like(x), np.zeros_like(x))


def test_swiglu_is_silu_and_mul(values):
    """The fused operator and the composition, forward and backward."""
    ab, dh = values("wide", 1, 5, 74), values("normal", 2, 5, 37)
    a, b = (np.ascontiguousarray(part) for part in (ab[:, :37], ab[:, 37:]))
    h, dab = np.zeros_like(dh), np.zeros_like(ab)
    call("swiglu", ab, h)
    call("swiglu_backward", ab, dh, dab)
    t, product, da, db = (np.zeros(dh.size, np.float32) for _ in range(4))
    call("silu", a.ravel(), t)
    call("mul", t, b.ravel(), product)
    call("mul", dh.ravel(), t, db)
    call("mul", dh.ravel(), b.ravel(), da)
    call("silu_backward", a.ravel(), da, da)
    assert product.tobytes() == h.tobytes()
    assert np.hstack([da.reshape(5, 37), db.reshape(5, 37)]).tobytes() == dab.tobytes()


@settings(max_examples=25)
@given(flavours, seeds, st.integers(1, 6), st.integers(1, 23), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.booleans())
def test_dropout(values, same_bits, flavour, seed, rows, width, p, in_place):
    x = values(flavour, seed, rows, width)
    at = np.random.default_rng(seed).integers(-(2**31), 2**31, (rows, 3), dtype=np.int32)
    y = x if in_place else values("bits", seed, rows, width)
    same_bits("dropout", x, at, y, p=p, scale=1.25, key0=seed, key1=2**32 - 1 - seed)


def test_dropout_depends_on_the_place_alone(values):
    """Rows computed apart, and one row at two widths, fall alike; about p of them fall."""
    x, at = np.ones((64, 1000), np.float32), np.array([[5, 0, n] for n in range(64)], np.int32)
    attributes = {"p": 0.25, "scale": 1.0, "key0": 1, "key1": 2}
    whole, part = np.zeros_like(x), np.zeros((3, 10), np.float32)
    call("dropout", x, at, whole, **attributes)
    call("dropout", x[:3, :10].copy(), at[7:10].copy(), part, **attributes)
    assert np.array_equal(whole[7:10, :10], part)
    assert abs(float((whole == 0).mean()) - 0.25) < 0.01


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
