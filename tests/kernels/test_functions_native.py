"""The native functions and fma: the bits of the reference, in vector and scalar form; ULP over millions of points."""

import numpy as np
import pytest
import torch

from bitwitness.kernels import _native
from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import functions, philox

REFERENCE = {
    "exp": functions.exp,
    "log": functions.log,
    "sin2pi": functions.sin2pi,
    "cos2pi": functions.cos2pi,
    "sigmoid": functions.sigmoid,
    "erf": functions.erf,
}
EDGES = [0, 1, 2, 0x007FFFFF, 0x00800000, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000]
EDGES += [functions.SQRT_HALF, functions.SQRT_HALF - 1, 0x7FC00000, 0x7F800001, 0x42B17217, 0x42B17218, 0x42B17219]
EDGES += [functions.EXP_LEAST & 0x7FFFFFFF, functions.EXP_LEAST + 1 & 0x7FFFFFFF]


def apply(name, x, *, scalar=False):
    y = np.empty_like(x)
    _native.apply(name, x, y, scalar)
    return y


def bits(x):
    """Bits with every NaN written as 7FC00000."""
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


def arguments(name, count, seed):
    """Half over the range in which the function changes, half any bits; sin2pi and cos2pi stay in [0, 1)."""
    rng = np.random.default_rng(seed)
    if name in ("sin2pi", "cos2pi"):
        grid = (rng.integers(0, 1 << 24, count // 2) * 2.0**-24).astype(np.float32)
        below = rng.integers(0, 0x3F800000, count - count // 2).astype(np.uint32).view(np.float32)
        return np.concatenate([grid, below])
    span = 5 if name == "erf" else 110
    busy = rng.uniform(-span, span, count // 2) if name != "log" else np.exp(rng.uniform(-80, 80, count // 2))
    any_bits = rng.integers(0, 2**32, count - count // 2, dtype=np.uint32).view(np.float32)
    edges = np.array(EDGES + [e | 1 << 31 for e in EDGES], np.uint32).view(np.float32)
    return np.concatenate([busy.astype(np.float32), any_bits, edges])


@pytest.mark.parametrize("name", REFERENCE)
def test_native_equals_reference(name):
    x = arguments(name, 12000, 1)
    expected = [REFERENCE[name](a) for a in x.view(np.uint32).tolist()]
    for scalar in (False, True):
        got = bits(apply(name, x, scalar=scalar)).tolist()
        wrong = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
        assert not wrong, f"{name}({float(x[wrong[0]]).hex()}): {got[wrong[0]]:08x}, {expected[wrong[0]]:08x}"


@pytest.mark.parametrize("name", REFERENCE)
def test_vector_and_scalar_form_agree(name):
    x = arguments(name, 4_000_001, 2)
    assert np.array_equal(bits(apply(name, x)), bits(apply(name, x, scalar=True)))


def true_values(name, x):
    """In binary64, whose error of a few 2^-53 is nothing beside a unit of binary32."""
    wide = x.astype(np.float64)
    if name in ("exp", "log"):
        return getattr(np, name)(wide)
    if name == "erf":
        return torch.erf(torch.from_numpy(wide)).numpy()
    # The nearest quarter turn is taken out first: exact, where 2 pi u is not.
    quarter = np.rint(4 * wide)
    angle = (4 * wide - quarter) * (np.pi / 2)
    s, c = np.sin(angle), np.cos(angle)
    quadrant = quarter.astype(np.int64) % 4
    if name == "sin2pi":
        return np.choose(quadrant, [s, c, -s, -c])
    return np.choose(quadrant, [c, -s, -c, s])


@pytest.mark.parametrize("name", ["exp", "log", "sin2pi", "cos2pi", "erf"])
def test_at_most_one_ulp_over_millions(name):
    """sin2pi and cos2pi at all 2^24 arguments that a random word gives; exp, log and erf at every 101st number."""
    if name in ("sin2pi", "cos2pi"):
        x = np.arange(1 << 24, dtype=np.float32) * np.float32(2.0**-24)
    elif name == "erf":
        x = np.arange(0, 0x40900000, 101, dtype=np.uint32).view(np.float32)
    elif name == "log":
        x = np.arange(1, 0x7F800000, 101, dtype=np.uint32).view(np.float32)
    else:
        positive = np.arange(0x2F000000, 0x42B17218, 101, dtype=np.uint32)
        negative = np.arange(0xAF000000, 0xC2AEAC50, 101, dtype=np.uint32)
        x = np.concatenate([positive, negative]).view(np.float32)
    worst = 0.0
    for part in np.array_split(x, 16):
        true = true_values(name, part)
        # the unit in the last place of a binary32 number as large as the true value
        _, exponent = np.frexp(true)
        unit = np.ldexp(1.0, np.maximum(exponent - 24, -149))
        worst = max(worst, float(np.max(np.abs(apply(name, part).astype(np.float64) - true) / unit)))
    # 1e-6: the binary64 truth's own error, in units of binary32
    assert worst <= 1.0 - 1e-6, f"{name}: {worst} ULP"


def native_fma(a, b, c):
    arrays = [np.array(x, np.uint32).view(np.float32) for x in (a, b, c)]
    y = np.empty_like(arrays[0])
    _native.fma(*arrays, y)
    return bits(y).tolist()


def test_fma_of_any_bits():
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(0, 2**32, 30000, dtype=np.uint32) for _ in range(3))
    c[::3] = (a[::3].astype(np.uint64) + b[::3] - 0x3F800000).astype(np.uint32)  # as large as the product
    expected = [f32.fma(*abc) for abc in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert native_fma(a, b, c) == expected


def near_ties(count, seed):
    """Triples whose exact result lies at a midpoint, or 2^-36 to 2^-46 of half a unit beside it.

    The product is half a unit in the last place of c, times (1 + e)(1 - e) or a like pair. Every exponent of c
    that leaves room is met, subnormal results with it.
    """
    rng = np.random.default_rng(seed)
    c = rng.integers(1, 0x7E800000, count).astype(np.uint32)
    c[: count // 3] = rng.integers(0x00100000, 0x01000000, count // 3)  # at and around subnormal results
    last_place = np.maximum(c >> 23, 1).astype(np.int64) - 1 - 149
    half = last_place - 1
    pairs = [(0x800001, 0xFFFFFE, 47), (0x800800, 0xFFF001, 47), (0x800000, 0x800000, 46), (0x800001, 0x800000, 46)]
    chosen = rng.integers(0, len(pairs), count)
    p, q, scale = np.array(pairs, np.int64)[chosen].T
    # p * q * 2^(s + t) = half a unit; split so that both factors are normal numbers
    s = (half - scale + 46) // 2 - 23
    t = half - scale - s
    a, b = np.ldexp(p.astype(np.float64), s), np.ldexp(q.astype(np.float64), t)
    a, b = a.astype(np.float32), b.astype(np.float32)
    assert np.array_equal(np.ldexp(p.astype(np.float64), s), a) and np.all(a > 0) and np.all(b > 0)
    flip = rng.integers(0, 2, count).astype(np.uint32) << np.uint32(31)
    return a.view(np.uint32) | flip, b.view(np.uint32), c


def test_fma_beside_ties():
    a, b, c = near_ties(20000, 4)
    expected = [f32.fma(*abc) for abc in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert native_fma(a, b, c) == expected
    with np.errstate(all="ignore"):
        wide = [x.view(np.float32).astype(np.float64) for x in (a, b, c)]
        twice = (wide[0] * wide[1] + wide[2]).astype(np.float32).view(np.uint32)
    assert int((twice != np.array(expected)).sum()) > 2000  # rounding twice is wrong in very many of them


@pytest.mark.parametrize("first", [0, 1, 3, 4, 6, (1 << 34) - 2, 1 << 40])
@pytest.mark.parametrize("count", [1, 5, 64, 131])
def test_random_tensors(first, count):
    key = philox.derive_key(3, "init", "w")
    y = np.empty(count, np.float32)
    elements = range(first, first + count)
    _native.uniform(y, key, first)
    assert y.view(np.uint32).tolist() == [philox.uniform(e, key) for e in elements]
    _native.normal(y, key, first)
    assert y.view(np.uint32).tolist() == [philox.normal(e, key) for e in elements]
    _native.trunc_normal(y, key, 0.02, 0.75, first)
    std, bound = 0x3CA3D70A, 0x3F400000
    assert y.view(np.uint32).tolist() == [philox.trunc_normal(e, key, std, bound) for e in elements]


def test_normals_are_normal_in_the_tails():
    """A million of them: moments, and no more than the least u1 can give."""
    y = np.empty(1_000_000, np.float32)
    _native.normal(y, philox.derive_key(1, "init", "tails"), 0)
    wide = y.astype(np.float64)
    assert abs(wide.mean()) < 4e-3 and abs(wide.var() - 1) < 6e-3 and abs((wide**4).mean() - 3) < 0.06
    assert float(np.abs(wide).max()) <= np.sqrt(-2 * np.log(2.0**-24)) + 1e-5
