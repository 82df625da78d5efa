"""The orders of addition: block boundaries, lanes, and a second opinion in numpy float32."""

import numpy as np
import pytest

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import sums


def spans(blocks):
    return [(b.start, b.stop) for b in blocks]


def test_blocks():
    assert spans(sums.blocks(0)) == []
    assert spans(sums.blocks(256)) == [(0, 256)]
    assert spans(sums.blocks(600)) == [(0, 256), (256, 512), (512, 600)]
    assert spans(sums.blocks(600, segment=300)) == [(0, 256), (256, 300), (300, 556), (556, 600)]
    assert spans(sums.blocks(5, segment=2)) == [(0, 2), (2, 4), (4, 5)]
    assert spans(sums.blocks(600, segment=1000)) == spans(sums.blocks(600))
    assert spans(sums.blocks(600, offset=250)) == [(250, 256), (256, 512), (512, 600)]
    assert spans(sums.blocks(600, segment=300, offset=290)) == [(290, 300), (300, 556), (556, 600)]


def numpy_rowsum(x):
    """The row sum in numpy's float32: `+` on arrays of float32 rounds each element once, to nearest even."""
    total = np.float32(0)
    for chunk in (x[i : i + 4096] for i in range(0, len(x), 4096)):
        padded = np.concatenate([chunk, np.zeros(-len(chunk) % 16, np.float32)])
        lanes = np.zeros(16, np.float32)
        for part in padded.reshape(-1, 16):
            lanes = lanes + part
        m = lanes[:8] + lanes[8:]
        total = total + (((m[0] + m[4]) + (m[2] + m[6])) + ((m[1] + m[5]) + (m[3] + m[7])))
    return int(total.view(np.uint32))


@pytest.mark.parametrize("n", [1, 7, 16, 17, 100, 4095, 4096, 4097, 8195])
def test_rowsum_against_numpy(values, n):
    for flavour in ("normal", "wide", "tiny"):
        x = values(flavour, n, n)
        assert sums.rowsum(x.view(np.uint32).tolist()) == numpy_rowsum(x)


@pytest.mark.parametrize("offset", [1, 15, 16, 100, 4090, 4096, 5000])
def test_an_offset_is_a_row_of_zeros_before(values, offset):
    """Padding with +0 or leaving the part out: the same bits."""
    x = values("wide", offset, 40).view(np.uint32).tolist()
    y = values("wide", offset + 1, 40).view(np.uint32).tolist()
    zeros = [f32.ZERO] * offset
    assert sums.rowsum(x, offset) == sums.rowsum(zeros + x)
    assert sums.blocksum(x, y, offset=offset) == sums.blocksum(zeros + x, zeros + y)


def test_the_order_shows(values):
    """These sums do depend on their order, so the tests of order are tests."""
    x = values("wide", 1, 600).view(np.uint32).tolist()
    ones = [f32.ONE] * 600
    in_blocks, in_segments = sums.blocksum(x, ones), sums.blocksum(x, ones, segment=100)
    assert len({in_blocks, in_segments, sums.rowsum(x), sums.chain(zip(x, ones, strict=True))}) > 2


def test_negative_zero_never_leaves_a_sum():
    zeros = [f32.NEGATIVE_ZERO] * 20
    assert sums.rowsum(zeros) == f32.ZERO
    assert sums.blocksum(zeros, [f32.ONE] * 20) == f32.ZERO
    assert sums.blocksum(zeros, [f32.ONE] * 20, start=f32.NEGATIVE_ZERO) == f32.ZERO
    assert sums.blocksum([], []) == f32.ZERO
