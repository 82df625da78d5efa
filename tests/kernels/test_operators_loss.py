"""cross_entropy and cross_entropy_loss: native equals reference, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FLAVOURS = ["normal", "wide", "tiny", "huge", "special", "bits"]
flavours = st.sampled_from(FLAVOURS)
seeds = st.integers(0, 2**32 - 1)


def both(values, same_bits, x, target, z_loss):
    rows = x.shape[0]
    for name in ("cross_entropy", "cross_entropy_loss"):
        same_bits(name, x, target, values("bits", 1, rows), values("bits", 2, rows), z_loss=z_loss)


@settings(max_examples=40)
@given(flavours, seeds, st.integers(1, 5), st.integers(1, 80), st.sampled_from([0.0, 1e-4, 0.3]))
def test_cross_entropy(values, same_bits, flavour, seed, rows, vocabulary, z_loss):
    target = np.random.default_rng(seed).integers(-1, vocabulary, rows, dtype=np.int32)
    both(values, same_bits, values(flavour, seed, rows, vocabulary), target, z_loss)


@pytest.mark.parametrize("vocabulary", [4095, 4097])
def test_long_rows(values, same_bits, vocabulary):
    x = values("normal", vocabulary, 1, vocabulary) * np.float32(8)
    both(values, same_bits, x, np.array([17], np.int32), 1e-4)


def test_maxima_that_are_zero_or_not_numbers(values, same_bits):
    """Of two zeros either may be the maximum, and no result shows which; a NaN anywhere gives NaN everywhere."""
    rows = [
        [0.0, -0.0, -200.0, -200.0],
        [-0.0, 0.0, -200.0, -200.0],
        [-0.0, -200.0, -200.0, -200.0],
        [np.nan, 1.0, 2.0, 3.0],
        [1.0, 2.0, 3.0, np.nan],
        [np.inf, 1.0, 2.0, 3.0],
        [-np.inf, -np.inf, -np.inf, -np.inf],
        [-np.inf, 0.0, 1.0, -np.inf],
    ]
    x = np.tile(np.array(rows, np.float32), (1, 9))  # long enough for the vector path
    both(values, same_bits, x, np.array([0, 1, 0, 3, 3, 0, 1, 0], np.int32), 1e-4)


def test_ignored_rows_read_nothing(values, same_bits):
    x = np.full((2, 5), np.nan, np.float32)
    x[1] = 1.0
    both(values, same_bits, x, np.array([-1, 4], np.int32), 0.0)
