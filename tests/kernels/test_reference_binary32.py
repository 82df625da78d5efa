"""The exact operations of the reference: against rationals, against the CPU, and at the directed ties."""

import math
import random
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bitwitness.kernels.reference import binary32 as f32


def bits(text: str) -> int:
    """The bits of a binary32 number written in C's hex notation."""
    value: int = struct.unpack("<I", struct.pack("<f", float.fromhex(text)))[0]
    return value


def value_of(a: int) -> Fraction:
    """The finite number a, by way of struct, not of the code under test."""
    return Fraction(struct.unpack("<f", struct.pack("<I", a))[0])


def nearest(x: Fraction) -> int:
    """The bits nearest to a rational, ties to even, by bisection over the ordered bit patterns."""
    if x < 0:
        return nearest(-x) | 0x80000000
    if x >= 2**128 - Fraction(2) ** 103:
        return f32.INFINITY
    low, high = 0, f32.INFINITY  # the value of `low` is at most x, that of `high` above
    while high - low > 1:
        middle = (low + high) // 2
        if value_of(middle) <= x:
            low = middle
        else:
            high = middle
    above = value_of(high) if high < f32.INFINITY else Fraction(2) ** 128
    twice = value_of(low) + above
    if 2 * x == twice:
        return low + (low & 1)
    return low if 2 * x < twice else high


# Exponents near each other make cancellation and ties likely; full-range bits make the rest.
any_bits = st.integers(0, 2**32 - 1)
close_bits = st.builds(
    lambda sign, exponent, fraction: sign << 31 | exponent << 23 | fraction,
    st.integers(0, 1),
    st.integers(100, 150),
    st.sampled_from([0, 1, 2, 3, 0x400000, 0x7FFFFF, 0x7FFFFE]) | st.integers(0, 2**23 - 1),
)
tiny_bits = st.builds(lambda sign, rest: sign << 31 | rest, st.integers(0, 1), st.integers(0, 3 << 23))
special_bits = st.sampled_from(
    [0, 1 << 31, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF,
     0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001]
)  # fmt: skip
numbers = any_bits | close_bits | tiny_bits | special_bits


def finite(*operands: int) -> bool:
    return all(a & 0x7FFFFFFF < f32.INFINITY for a in operands)


@settings(max_examples=300, deadline=None)
@given(numbers, numbers, numbers)
@example(bits("0x1.000002p-12"), bits("0x1.fffffcp-13"), bits("0x1.000002p0"))
def test_exact_rounding_of_finite_results(a: int, b: int, c: int) -> None:
    if not finite(a, b, c):
        return
    x, y, z = value_of(a), value_of(b), value_of(c)
    for got, true in [
        (f32.add(a, b), x + y),
        (f32.sub(a, b), x - y),
        (f32.mul(a, b), x * y),
        (f32.fma(a, b, c), x * y + z),
        *([(f32.div(a, b), x / y)] if y else []),
    ]:
        if true != 0:
            assert got == nearest(true)
        else:
            assert got & 0x7FFFFFFF == 0
    if x > 0:
        root = value_of(f32.sqrt(a))
        below, above = value_of(f32.sqrt(a) - 1), value_of(f32.sqrt(a) + 1)
        # nearest: the true root lies between the midpoints towards both neighbours
        assert ((root + below) / 2) ** 2 < x < ((root + above) / 2) ** 2


def test_against_the_cpu() -> None:
    """Random bit patterns: `+ - * / sqrt` of the CPU are IEEE operations too."""
    rng = np.random.default_rng(1)
    a = rng.integers(0, 2**32, 20000, dtype=np.uint32)
    b = rng.integers(0, 2**32, 20000, dtype=np.uint32)
    b[::2] = a[::2] + rng.integers(-(2**25), 2**25, 10000).astype(np.uint32)  # close magnitudes
    x, y = a.view(np.float32), b.view(np.float32)
    with np.errstate(all="ignore"):
        results = [(f32.add, x + y), (f32.sub, x - y), (f32.mul, x * y), (f32.div, x / y)]
        roots = np.sqrt(x).view(np.uint32).tolist()
    for operation, expected in results:
        for p, q, r in zip(a.tolist(), b.tolist(), expected.view(np.uint32).tolist(), strict=True):
            assert operation(p, q) == f32.canonical(r), (operation.__name__, hex(p), hex(q))
    assert [f32.sqrt(p) for p in a.tolist()] == [f32.canonical(r) for r in roots]


# a*b + c lies so close beside the midpoint of two binary32 numbers that binary64 rounds it onto the midpoint;
# a second rounding, to even, then goes away from the truth. Random tests do not meet these.
NAIVE_FAILS = [
    # 1 - 2^-46 halves above an odd number: stays; to even it would go up
    ("0x1.000002p-12", "0x1.fffffcp-13", "0x1.000002p0", "0x1.000002p0"),
    ("-0x1.000002p-12", "0x1.fffffcp-13", "-0x1.000002p0", "-0x1.000002p0"),
    # 1 + 2^-36 halves above an even number: goes up; to even it would stay
    ("0x1.001p-12", "0x1.ffe002p-13", "0x1p0", "0x1.000002p0"),
    ("0x1.001p-12", "-0x1.ffe002p-13", "-0x1p0", "-0x1.000002p0"),
    # below: from 1 - 2^-24 (odd) down to the midpoint and no further
    ("-0x1.000002p-12", "0x1.fffffcp-14", "0x1.fffffep-1", "0x1.fffffep-1"),
    # the same at subnormal results, where one unit is 2^-149
    ("0x1.000002p-75", "0x1.fffffcp-76", "0x0.800002p-126", "0x0.800002p-126"),
    ("-0x1.000002p-75", "0x1.fffffcp-76", "-0x0.800002p-126", "-0x0.800002p-126"),
    ("0x1.001p-75", "0x1.ffe002p-76", "0x0.8p-126", "0x0.800002p-126"),
    ("-0x1.001p-75", "0x1.ffe002p-76", "0x0.8p-126", "0x0.7ffffep-126"),
    # rounding up to the least normal number, and staying below it
    ("0x1.000002p-75", "0x1.fffffcp-76", "0x0.fffffep-126", "0x0.fffffep-126"),
]
DIRECTED_TIES = [
    *NAIVE_FAILS,
    ("0x1.000002p-75", "0x1.fffffcp-76", "0x0.000002p-126", "0x0.000002p-126"),
    ("0x1.000002p-75", "0x1.fffffep-76", "0x0.000002p-126", "0x0.000004p-126"),
    ("0x1p-75", "0x1p-75", "0x0.000002p-126", "0x0.000004p-126"),
    ("0x1p-75", "0x1p-75", "0x0.000004p-126", "0x0.000004p-126"),
    ("0x1.000002p-75", "0x1p-75", "0x0.000004p-126", "0x0.000006p-126"),
    ("-0x1p-75", "0x1p-75", "0x0.000002p-126", "0x0p+0"),
    ("-0x1.000002p-75", "0x1.fffffcp-76", "0x1p-126", "0x1p-126"),
    ("0x1p-75", "0x1p-75", "0x0.fffffep-126", "0x1p-126"),
]


@pytest.mark.parametrize(("a", "b", "c", "expected"), DIRECTED_TIES)
def test_directed_fma_ties(a: str, b: str, c: str, expected: str) -> None:
    got = f32.fma(bits(a), bits(b), bits(c))
    assert got == bits(expected)
    assert got == nearest(value_of(bits(a)) * value_of(bits(b)) + value_of(bits(c)))


@pytest.mark.parametrize(("a", "b", "c", "expected"), NAIVE_FAILS)
def test_a_naive_binary64_fma_fails_them(a: str, b: str, c: str, expected: str) -> None:
    """So these ties are real ones: an emulation that rounds twice does not pass."""
    twice = np.float32(float.fromhex(a) * float.fromhex(b) + float.fromhex(c))
    assert float(twice) != float.fromhex(expected)


def test_special_values() -> None:
    inf, minus, nan = f32.INFINITY, f32.NEGATIVE_INFINITY, f32.NAN
    zero, negative_zero, one = f32.ZERO, f32.NEGATIVE_ZERO, f32.ONE
    largest = 0x7F7FFFFF
    assert f32.add(inf, minus) == nan and f32.sub(inf, inf) == nan and f32.add(inf, one) == inf
    assert f32.add(zero, negative_zero) == zero and f32.add(negative_zero, negative_zero) == negative_zero
    assert f32.sub(one, one) == zero
    assert f32.mul(inf, zero) == nan and f32.mul(negative_zero, one) == negative_zero
    assert f32.mul(0x80000001, 0x00000001) == negative_zero  # underflow keeps the sign
    assert f32.mul(largest, largest) == inf and f32.mul(largest, largest | 1 << 31) == minus
    assert f32.div(one, zero) == inf and f32.div(one, negative_zero) == minus and f32.div(zero, zero) == nan
    assert f32.div(inf, inf) == nan and f32.div(one, minus) == negative_zero
    assert f32.sqrt(negative_zero) == negative_zero and f32.sqrt(0xBF800000) == nan and f32.sqrt(inf) == inf
    assert f32.fma(inf, zero, one) == nan and f32.fma(one, inf, minus) == nan
    assert f32.fma(largest, largest, minus) == minus  # the product does not overflow first
    assert f32.fma(largest, f32.TWO, largest | 1 << 31) == largest
    assert f32.fma(negative_zero, one, zero) == zero and f32.fma(negative_zero, one, negative_zero) == negative_zero
    assert f32.fma(one, one, 0xBF800000) == zero
    for payload in (0x7F800001, 0xFFC12345):
        assert f32.add(payload, one) == f32.mul(one, payload) == f32.fma(one, one, payload) == nan
        assert f32.sqrt(payload) == f32.div(payload, one) == nan
    assert f32.maximum(one, nan) == nan and f32.maximum(nan, one) == one
    assert f32.maximum(zero, negative_zero) == negative_zero and f32.maximum(negative_zero, zero) == zero


@pytest.mark.parametrize("n", [0, 1, -1, 2**24 - 1, 2**24 + 1, 2**24 + 3, -(2**31), 2**31 - 1])
def test_from_int(n: int) -> None:
    assert f32.from_int(n) == struct.unpack("<I", struct.pack("<f", float(n)))[0]


def test_fma_against_random_ties() -> None:
    """Products that end exactly at, or one part in 2^47 beside, a midpoint of the sum."""
    rng = random.Random(5)
    for _ in range(3000):
        c = rng.randrange(1, 0x7F000000)
        exponent = math.frexp(float(value_of(c)))[1] - 24 if c >> 23 else -149
        exponent = max(exponent, -149)
        # a * b = (half a unit of c) * (1 - 2^-46), exactly half, or * (1 + 2^-23)
        scale = exponent - 1
        high = scale // 2
        a, b = rng.choice([("0x1.000002p0", "0x1.fffffcp-1"), ("0x1p0", "0x1p0"), ("0x1.000002p0", "0x1p0")])
        p = nearest(Fraction(float.fromhex(a)) * Fraction(2) ** high)
        q = nearest(Fraction(float.fromhex(b)) * Fraction(2) ** (scale - high))
        if rng.random() < 0.5:
            p |= 1 << 31
        assert f32.fma(p, q, c) == nearest(value_of(p) * value_of(q) + value_of(c))
