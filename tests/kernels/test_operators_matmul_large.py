"""Products larger than a strip, a task or a tile, against a second reference: numpy, vectorised over the outputs.

Its fma (numpy_exact.py) is held to the integers of the reference here, at the ties too.
"""

import numpy as np
import pytest

from bitwitness.kernels.program import call
from bitwitness.kernels.reference import binary32, sums

from .numpy_exact import fma


def matmul(a, b, c, segment=0):
    """C + A B for A [M,K], B [K,N]: blocks and chains as in the reference, all outputs at once."""
    acc = c.copy()
    for block in sums.blocks(a.shape[1], segment):
        p = np.zeros_like(c)
        for k in block:
            p = fma(a[:, k, None], b[None, k, :], p)
        acc = acc + p
    return acc


def test_this_fma_is_the_reference(values):
    for flavour in ("normal", "wide", "tiny"):
        a, b, c = (values(flavour, seed, 3000) for seed in (1, 2, 3))
        expected = [binary32.fma(*abc) for abc in zip(*(x.view(np.uint32).tolist() for x in (a, b, c)), strict=True)]
        assert fma(a, b, c).view(np.uint32).tolist() == expected
    ties = [
        ("0x1.000002p-12", "0x1.fffffcp-13", "0x1.000002p0"),
        ("0x1.001p-12", "-0x1.ffe002p-13", "-0x1p0"),
        ("0x1.000002p-75", "0x1.fffffcp-76", "0x0.800002p-126"),
    ]
    a, b, c = (np.array([float.fromhex(t[i]) for t in ties], np.float32) for i in range(3))
    expected = [binary32.fma(*abc) for abc in zip(*(x.view(np.uint32).tolist() for x in (a, b, c)), strict=True)]
    assert fma(a, b, c).view(np.uint32).tolist() == expected


SIZES = [
    # M, N, K, segment
    (97, 130, 300, 0),  # more than one task of 96 rows, more than 8 panels of columns
    (200, 17, 513, 0),
    (13, 3100, 40, 0),  # more columns than a strip
    (3, 3089, 530, 0),  # and more K than a strip holds beside them
    (5, 33, 1300, 650),
    (101, 35, 600, 257),
    (6, 16, 2048, 256),
]


@pytest.mark.parametrize(("m", "n", "k", "segment"), SIZES)
def test_large_products(values, m, n, k, segment):
    a, b, c = values("normal", 1, m, k), values("normal", 2, k, n), values("normal", 3, m, n)
    zero = np.zeros_like(c)
    plain = {0: matmul(a, b, zero), 1: matmul(a, b, c)}
    for threads in (1, 2, 3, 5):
        for accumulate in (0, 1):
            for form, left, right in [("nn", a, b), ("nt", a, b.T.copy()), ("tn", a.T.copy(), b)]:
                got = c.copy()
                attributes = {"segment": 0} if form == "tn" else {}
                call(f"matmul_{form}", left, right, got, threads=threads, accumulate=accumulate, **attributes)
                assert got.tobytes() == plain[accumulate].tobytes(), (form, threads, accumulate)
    if segment:
        expected, got = matmul(a, b, c, segment), c.copy()
        call("matmul_tn", a.T.copy(), b, got, threads=3, accumulate=1, segment=segment)
        assert got.tobytes() == expected.tobytes()
