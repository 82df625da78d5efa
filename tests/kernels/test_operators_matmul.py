"""matmul_nn, matmul_nt, matmul_tn: native equals reference, bit for bit, at sizes that fill no block."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FLAVOURS = ["normal", "wide", "tiny", "huge", "special", "bits"]
flavours = st.sampled_from(FLAVOURS)
seeds = st.integers(0, 2**32 - 1)


def operands(values, form, flavour_a, flavour_b, seed, m, n, k):
    """A, B and a C of any bits, in the layout of matmul_<form>."""
    a = values(flavour_a, seed, *((k, m) if form == "tn" else (m, k)))
    b = values(flavour_b, seed + 1, *((n, k) if form == "nt" else (k, n)))
    return a, b


def attributes(form, accumulate, segment=0):
    return {"accumulate": accumulate} | ({"segment": segment} if form == "tn" else {})


@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@settings(max_examples=30)
@given(
    flavours, flavours, seeds, st.integers(1, 14), st.integers(1, 19), st.integers(1, 40), st.booleans(),
    st.integers(0, 45),
)  # fmt: skip
def test_small(values, same_bits, form, flavour_a, flavour_b, seed, m, n, k, accumulate, segment):
    a, b = operands(values, form, flavour_a, flavour_b, seed, m, n, k)
    # a C that is not read must not matter, whatever it holds
    c = values(flavour_a, seed + 2, m, n) if accumulate else values("bits", seed + 2, m, n)
    same_bits(f"matmul_{form}", a, b, c, **attributes(form, int(accumulate), segment))


@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize("k", [255, 256, 257, 511, 512, 513])
def test_around_the_blocks_of_k(values, same_bits, form, k):
    a, b = operands(values, form, "normal", "wide", k, 3, 5, k)
    for accumulate in (0, 1):
        same_bits(f"matmul_{form}", a, b, values("normal", 1, 3, 5), **attributes(form, accumulate))


@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (6, 16), (7, 17), (13, 33), (5, 8), (1, 47), (49, 1), (25, 31)])
def test_around_the_tiles(values, same_bits, form, m, n):
    a, b = operands(values, form, "normal", "normal", m * n, m, n, 9)
    same_bits(f"matmul_{form}", a, b, values("bits", 1, m, n), **attributes(form, 0))


@pytest.mark.parametrize("segment", [1, 7, 100, 255, 256, 257, 300, 512, 600])
def test_segments(values, same_bits, segment):
    """Blocks restart at each multiple of the segment length, the last segment may be short."""
    a, b = values("normal", segment, 600, 2), values("wide", 2, 600, 3)
    same_bits("matmul_tn", a, b, values("normal", 3, 2, 3), accumulate=1, segment=segment)


def test_a_sum_split_at_a_segment_is_the_sum_of_the_parts(values):
    """A shard may be computed any number of windows at a time: native code alone, larger sizes."""
    from bitwitness.kernels.program import call

    a, b = values("normal", 1, 4 * 96, 40), values("normal", 2, 4 * 96, 50)
    whole = values("normal", 3, 40, 50)
    parts = whole.copy()
    call("matmul_tn", a, b, whole, accumulate=1, segment=96)
    for first, count in [(0, 1), (1, 2), (3, 1)]:
        rows = slice(first * 96, (first + count) * 96)
        call("matmul_tn", a[rows], b[rows], parts, accumulate=1, segment=96)
    assert whole.tobytes() == parts.tobytes()


def test_negative_zero_never_leaves(values, same_bits):
    zeros = np.zeros((3, 4), np.float32)
    same_bits("matmul_nn", -zeros, zeros.T.copy(), np.full((3, 3), -0.0, np.float32), accumulate=1)


# a * b + c beside a midpoint: an emulation of fma by binary64 that rounds twice is wrong in each.
TIES = [
    ("0x1.000002p-12", "0x1.fffffcp-13", "0x1.000002p0"),
    ("0x1.001p-12", "-0x1.ffe002p-13", "-0x1p0"),
    ("0x1.000002p-75", "0x1.fffffcp-76", "0x0.800002p-126"),
    ("-0x1.001p-75", "0x1.ffe002p-76", "0x0.8p-126"),
]


@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize("tie", TIES, ids=lambda tie: tie[2])
def test_directed_ties(same_bits, form, tie):
    """p = fma(c, 1, 0), then fma(a, b, p), in every element of tiles and of their edges."""
    a, b, c = (np.float32(float.fromhex(text)) for text in tie)
    left = np.tile(np.array([c, a], np.float32), (13, 1))
    right = np.tile(np.array([1, b], np.float32), (19, 1))
    left = left.T.copy() if form == "tn" else left
    right = right if form == "nt" else right.T.copy()
    same_bits(f"matmul_{form}", left, right, np.zeros((13, 19), np.float32), **attributes(form, 0))
