"""rmsnorm, add_rmsnorm, rmsnorm_backward, layernorm, layernorm_backward, rope: native equals reference, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwitness.kernels import host
from bitwitness.kernels.program import call

FLAVOURS = ["normal", "wide", "tiny", "huge", "special", "bits"]
flavours = st.sampled_from(FLAVOURS)
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=40)
@given(flavours, flavours, seeds, st.integers(1, 6), st.integers(1, 70), st.sampled_from([1e-5, 0.0, 1e-30]))
def test_rmsnorm(values, same_bits, flavour, flavour_g, seed, rows, width, epsilon):
    x, g = values(flavour, seed, rows, width), values(flavour_g, seed + 1, width)
    y, r = values("bits", seed, rows, width), values("bits", seed, rows)
    same_bits("rmsnorm", x, g, y, r, epsilon=epsilon)
    z, h = values(flavour, seed + 2, rows, width), values("bits", seed + 3, rows, width)
    same_bits("add_rmsnorm", x, z, g, h, y, r, epsilon=epsilon)
    same_bits("add_rmsnorm", x, z, g, x, y, r, epsilon=epsilon)


@pytest.mark.parametrize("width", [4095, 4096, 4097, 8200])
def test_rmsnorm_of_long_rows(values, same_bits, width):
    """Rows longer than a chunk of 4,096."""
    x, g = values("normal", width, 1, width), values("normal", 1, width)
    same_bits("rmsnorm", x, g, np.zeros_like(x), np.zeros(1, np.float32), epsilon=1e-6)


@settings(max_examples=40)
@given(
    flavours, flavours, seeds, st.integers(1, 20), st.integers(1, 40), st.integers(0, 22), st.booleans()
)  # fmt: skip
def test_rmsnorm_backward(values, same_bits, flavour, flavour_dy, seed, rows, width, segment, in_place):
    x, g = values(flavour, seed, rows, width), values("normal", seed + 1, width)
    r, dy = np.abs(values(flavour, seed + 2, rows)), values(flavour_dy, seed + 3, rows, width)
    dz, dg = values(flavour_dy, seed + 4, rows, width), values(flavour_dy, seed + 5, width)
    dx = dz if in_place else values("bits", seed, rows, width)
    same_bits("rmsnorm_backward", x, g, r, dy, dz, dx, dg, segment=segment)


@pytest.mark.parametrize(("rows", "segment"), [(255, 0), (257, 0), (513, 0), (520, 130), (520, 260), (520, 511)])
def test_rmsnorm_backward_of_many_rows(values, same_bits, rows, segment):
    width = 3
    x, g = values("normal", rows, rows, width), values("normal", 1, width)
    r, dy = np.abs(values("normal", 2, rows)), values("wide", 3, rows, width)
    dz, dx = values("normal", 4, rows, width), values("bits", 5, rows, width)
    same_bits("rmsnorm_backward", x, g, r, dy, dz, dx, values("normal", 6, width), segment=segment)


def test_no_residual_is_minus_zero(values, same_bits):
    """-0 + v is v for every v, so a norm's gradient with residual -0, added later, is the fused one's bits."""
    x, g, dy = values("normal", 1, 9, 40), values("normal", 2, 40), values("special", 3, 9, 40)
    dz, r = values("tiny", 4, 9, 40), np.abs(values("normal", 5, 9))
    dy[:4], dz[:6] = 0.0, -0.0
    fused, apart, dg = np.zeros_like(x), np.zeros_like(x), np.zeros(40, np.float32)
    call("rmsnorm_backward", x, g, r, dy, dz, fused, dg.copy(), segment=0)
    call("rmsnorm_backward", x, g, r, dy, np.full_like(x, -0.0), apart, dg.copy(), segment=0)
    total = apart.ravel()
    call("add", dz.ravel(), total, total)
    finite = ~np.isnan(fused)
    assert np.array_equal(fused.view(np.uint32)[finite], apart.view(np.uint32)[finite])
    assert (fused.view(np.uint32) == 0x80000000).any()


@settings(max_examples=40)
@given(flavours, flavours, seeds, st.integers(1, 6), st.integers(1, 70), st.sampled_from([1e-5, 0.0, 1e-30]))
def test_layernorm(values, same_bits, flavour, flavour_g, seed, rows, width, epsilon):
    x, g = values(flavour, seed, rows, width), values(flavour_g, seed + 1, width)
    y, m, r = values("bits", seed, rows, width), values("bits", seed, rows), values("bits", seed, rows)
    same_bits("layernorm", x, g, y, m, r, epsilon=epsilon)


@pytest.mark.parametrize("width", [4095, 4097])
def test_layernorm_of_long_rows(values, same_bits, width):
    x, g = values("normal", width, 1, width), values("normal", 1, width)
    y, m, r = np.zeros_like(x), np.zeros(1, np.float32), np.zeros(1, np.float32)
    same_bits("layernorm", x, g, y, m, r, epsilon=1e-6)
    dx, dg = np.zeros_like(x), values("normal", 4, width)
    same_bits("layernorm_backward", x, g, m, r, values("normal", 2, 1, width), x.copy(), dx, dg, segment=0)


@settings(max_examples=40)
@given(
    flavours, flavours, seeds, st.integers(1, 20), st.integers(1, 40), st.integers(0, 22), st.booleans()
)  # fmt: skip
def test_layernorm_backward(values, same_bits, flavour, flavour_dy, seed, rows, width, segment, in_place):
    x, g = values(flavour, seed, rows, width), values("normal", seed + 1, width)
    m, r = values(flavour, seed + 6, rows), np.abs(values(flavour, seed + 2, rows))
    dy, dz = values(flavour_dy, seed + 3, rows, width), values(flavour_dy, seed + 4, rows, width)
    dg = values(flavour_dy, seed + 5, width)
    dx = dz if in_place else values("bits", seed, rows, width)
    same_bits("layernorm_backward", x, g, m, r, dy, dz, dx, dg, segment=segment)


@pytest.mark.parametrize(("rows", "segment"), [(257, 0), (520, 130), (520, 260)])
def test_layernorm_backward_of_many_rows(values, same_bits, rows, segment):
    width = 3
    x, g, m = values("normal", rows, rows, width), values("normal", 1, width), values("normal", 7, rows)
    r, dy = np.abs(values("normal", 2, rows)), values("wide", 3, rows, width)
    dz, dx = values("normal", 4, rows, width), values("bits", 5, rows, width)
    same_bits("layernorm_backward", x, g, m, r, dy, dz, dx, values("normal", 6, width), segment=segment)


@settings(max_examples=40)
@given(flavours, seeds, st.integers(1, 9), st.integers(1, 4), st.integers(1, 13), st.integers(0, 9), st.booleans())
def test_rope(values, same_bits, flavour, seed, rows, heads, half, beside, forward):
    """Heads need not fill a row: what lies beside them stays."""
    q = values(flavour, seed, rows, heads * 2 * half + beside)
    pos = np.random.default_rng(seed).integers(0, 12, rows, dtype=np.int32)
    cos, sin = (np.asarray(t) for t in host.rope_tables(range(12), 2 * half, 10000.0))
    same_bits("rope", q, pos, cos, sin, heads=heads, head_width=2 * half, sign=1 if forward else -1)
