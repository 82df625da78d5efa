"""Binary64 scalars: at most 1 ULP against mpmath, and exact edges."""

import math
import random
import struct
from collections.abc import Callable

import mpmath
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwitness.kernels import host
from bitwitness.kernels.errors import KernelError

mpmath.mp.prec = 250


def ulp_error(got: float, true: mpmath.mpf) -> float:
    """|got - true| in units of the last place of a binary64 number of the size of `true`."""
    if true == 0:
        return 0.0 if got == 0 else math.inf
    exponent = max(int(mpmath.frexp(abs(true))[1]) - 53, -1074)
    return float(abs(mpmath.mpf(got) - true) / mpmath.mpf(2) ** exponent)


def spread(rng: random.Random, low: float, high: float) -> float:
    """A number whose exponent, not value, is uniform."""
    return float(mpmath.mpf(low) * (mpmath.mpf(high) / low) ** rng.random())


def half_pi_neighbours() -> list[float]:
    """The floats on both sides of n pi/2: the hardest angles to reduce, n up to the limit."""
    values = []
    for n in [*range(1, 40), *range(1000, 636_000, 7919)]:
        x = float(n * mpmath.pi / 2)
        values += [x, math.nextafter(x, math.inf), math.nextafter(x, -math.inf), -x]
    return values


def angles() -> list[float]:
    rng = random.Random(1)
    values = [rng.uniform(-10, 10) for _ in range(2000)] + [rng.uniform(-1e6, 1e6) for _ in range(2000)]
    values += [spread(rng, 1e-300, 1.0) for _ in range(300)] + [spread(rng, 1e-10, 1e-6) for _ in range(300)]
    return values + half_pi_neighbours() + [1e6, -1e6, 1e-9, -1e-9]


def exponents() -> list[float]:
    rng = random.Random(2)
    values = [rng.uniform(-744, 709.7) for _ in range(2000)] + [rng.uniform(-1, 1) for _ in range(2000)]
    values += [spread(rng, 1e-300, 1.0) for _ in range(200)]
    return values + [n * math.log(2) * 0.5 for n in range(-2040, 2040, 3)]


def positives() -> list[float]:
    rng = random.Random(3)
    values = [rng.uniform(0.5, 2) for _ in range(3000)] + [spread(rng, 1e-320, 1e308) for _ in range(2000)]
    values += [1 + rng.uniform(-1e-3, 1e-3) for _ in range(500)]
    return [*values, 5e-324, 2.0**-1022, math.sqrt(2), math.nextafter(1, 0), math.nextafter(1, 2), 10000.0]


@pytest.mark.parametrize(
    ("ours", "true", "arguments"),
    [
        (host.sin, mpmath.sin, angles()),
        (host.cos, mpmath.cos, angles()),
        (host.exp, mpmath.exp, exponents()),
        (host.log, mpmath.log, positives()),
    ],
    ids=["sin", "cos", "exp", "log"],
)
def test_at_most_one_ulp(
    ours: Callable[[float], float], true: Callable[[mpmath.mpf], mpmath.mpf], arguments: list[float]
) -> None:
    worst = max((ulp_error(ours(x), true(mpmath.mpf(x))), x) for x in arguments)
    assert worst[0] <= 1.0, f"{worst[0]} ULP at {worst[1]!r}"


def test_edges() -> None:
    assert host.bits_f64(host.sin(-0.0)) == 1 << 63
    assert host.cos(0.0) == 1.0 and host.sin(5e-324) == 5e-324
    assert host.exp(0.0) == 1.0 and host.exp(-math.inf) == 0.0 and host.exp(math.inf) == math.inf
    assert host.exp(710.0) == math.inf and host.exp(-746.0) == 0.0
    assert host.log(1.0) == 0.0 and host.log(-0.0) == -math.inf and host.log(math.inf) == math.inf
    for f in (host.sin, host.cos, host.exp, host.log):
        assert math.isnan(f(math.nan))
    assert math.isnan(host.log(-1.0)) and math.isnan(host.cos(math.inf))
    with pytest.raises(KernelError, match="reduce it"):
        host.cos(1000001.0)


def test_power_squares() -> None:
    assert host.power(0.9, 0) == 1.0 and host.power(0.9, 1) == 0.9
    assert host.power(0.9, 5) == 0.9 * ((0.9 * 0.9) * (0.9 * 0.9))
    assert host.power(2.0, 1000) == 2.0**1000 and host.power(2.0, 5000) == math.inf
    with pytest.raises(KernelError):
        host.power(2.0, -1)


@given(st.floats(width=64))
def test_rounding_to_binary32(x: float) -> None:
    try:
        expected = struct.unpack("<I", struct.pack("<f", x))[0]
    except OverflowError:
        expected = 0x7F800000 if x > 0 else 0xFF800000
    assert host.bits_f32(x) == (0x7FC00000 if x != x else expected)


@given(st.integers(0, 2**32 - 1))
def test_widening_is_exact(bits: int) -> None:
    if bits & 0x7FFFFFFF <= 0x7F800000:
        assert host.bits_f32(host.from_bits_f32(bits)) == bits
        assert host.from_bits_f32(bits) == struct.unpack("<f", struct.pack("<I", bits))[0]


@pytest.mark.parametrize("tie", [2.0**-150, 3 * 2.0**-150, 1 + 2.0**-24, 1 + 3 * 2.0**-24, (2 - 2.0**-24) * 2.0**127])
def test_rounding_at_ties(tie: float) -> None:
    below, above = math.nextafter(tie, 0), math.nextafter(tie, math.inf)
    assert host.bits_f32(above) == host.bits_f32(below) + 1
    assert host.bits_f32(tie) in (host.bits_f32(below), host.bits_f32(above)) and host.bits_f32(tie) % 2 == 0


def test_rope_tables_are_rounded_once() -> None:
    positions, width, theta = range(3, 40), 12, 10000.0
    cosines, sines = host.rope_tables(positions, width, theta)
    assert cosines.shape == sines.shape == (37, 6) and cosines.format == "f"
    for row, position in enumerate(positions):
        for i in range(width // 2):
            angle = float(position) * host.exp(-(2.0 * i / width * host.log(theta)))
            assert cosines[row, i] == host.round_f32(host.cos(angle))
            assert sines[row, i] == host.round_f32(host.sin(angle))
            assert abs(host.cos(angle) - math.cos(position * theta ** (-2 * i / width))) < 1e-12
    assert numpy.asarray(cosines).tobytes() == bytes(cosines)
    for bad in [(range(0), 8, theta), (positions, 7, theta), (positions, 8, 0.0)]:
        with pytest.raises(KernelError):
            host.rope_tables(*bad)
