"""exp, log, sin2pi, cos2pi of the reference: at most 1 ULP against mpmath, and exact edges.

The native functions are held to the reference bit for bit in test_functions_native.py.
"""

import random
import struct
from collections.abc import Callable

import mpmath
import pytest

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import functions

SAMPLES = 20000


def to_float(a: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", a))[0]
    return value


def ulp_error(got: int, true: mpmath.mpf) -> float:
    """|got - true| in units of the last place of a binary32 number of the size of `true`."""
    exponent = max(int(mpmath.frexp(abs(true))[1]) - 24, -149) if true else -149
    return float(abs(mpmath.mpf(to_float(got)) - true) / mpmath.mpf(2) ** exponent)


def exp_arguments() -> list[int]:
    """Every exponent that matters, both signs, and both ends of the range."""
    rng = random.Random(1)
    values = [rng.randrange(0x32000000, 0x42B17218) for _ in range(SAMPLES // 2)]
    values += [rng.randrange(0xB2000000, 0xC2AEAC50) for _ in range(SAMPLES // 2)]
    values += [functions.EXP_GREATEST - i for i in range(50)] + [functions.EXP_LEAST - i for i in range(50)]
    # around the half multiples of ln 2, where the reduction turns
    for n in range(-250, 254):
        turn = struct.unpack("<I", struct.pack("<f", (n + 0.5) * 0.6931471805599453 / 2))[0]
        values += [turn - 1, turn, turn + 1]
    return values


def log_arguments() -> list[int]:
    rng = random.Random(2)
    values = [rng.randrange(1, 0x7F800000) for _ in range(SAMPLES // 2)]
    values += [rng.randrange(0x3F000000, 0x40000000) for _ in range(SAMPLES // 2)]
    values += [0x3F800000 + i for i in range(-100, 100)] + [functions.SQRT_HALF + i for i in range(-20, 20)]
    return [*values, *range(1, 20), *range(0x007FFFF0, 0x00800010), 0x7F7FFFFF]


def turn_arguments() -> list[int]:
    """Multiples of 2^-24 (all that a random word gives), and smaller numbers too."""
    rng = random.Random(3)
    values = [f32.rounded(rng.randrange(1 << 24) << 125) for _ in range(SAMPLES // 2)]
    values += [rng.randrange(0x20000000, 0x3F800000) for _ in range(SAMPLES // 2)]
    for eighth in range(8):
        near = range(max(0, (eighth << 21) - 20), (eighth << 21) + 20)
        values += [f32.rounded(count << 125) for count in near]
    return values


def erf_arguments() -> list[int]:
    """Every binade below 8 and both signs, more of them where the formula turns and where 1 is reached."""
    rng = random.Random(4)
    values = [rng.randrange(0, 0x41000000) | rng.randrange(2) << 31 for _ in range(SAMPLES // 4)]
    values += [rng.randrange(0x3D000000, 0x40900000) for _ in range(SAMPLES // 2)]
    for turn in (functions.ERF_TURN, functions.FOUR):
        values += [turn + i for i in range(-200, 200)]
    return [*values, 1, 2, 0x00800000]


def true_sin(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.sinpi(2 * x)


def true_cos(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.cospi(2 * x)


@pytest.mark.parametrize(
    ("ours", "true", "arguments"),
    [
        (functions.exp, mpmath.exp, exp_arguments()),
        (functions.log, mpmath.log, log_arguments()),
        (functions.sin2pi, true_sin, turn_arguments()),
        (functions.cos2pi, true_cos, turn_arguments()),
        (functions.erf, mpmath.erf, erf_arguments()),
    ],
    ids=["exp", "log", "sin2pi", "cos2pi", "erf"],
)
def test_at_most_one_ulp(
    ours: Callable[[int], int], true: Callable[[mpmath.mpf], mpmath.mpf], arguments: list[int]
) -> None:
    with mpmath.workprec(80):
        worst = max((ulp_error(ours(x), true(mpmath.mpf(to_float(x)))), x) for x in arguments)
    assert worst[0] <= 1.0, f"{worst[0]} ULP at {to_float(worst[1]).hex()}"


def test_exp_edges() -> None:
    with mpmath.workprec(80):
        below = to_float(functions.EXP_LEAST + 1)  # one further from zero: the next number below
        above = to_float(functions.EXP_GREATEST + 1)
        assert mpmath.exp(mpmath.mpf(below)) < mpmath.mpf(2) ** -126
        assert mpmath.exp(mpmath.mpf(above)) > mpmath.mpf(2) ** 128 * (1 - mpmath.mpf(2) ** -25)
    assert functions.exp(functions.EXP_LEAST) >= 0x00800000
    assert functions.exp(functions.EXP_LEAST + 1) == f32.ZERO
    assert functions.exp(functions.EXP_GREATEST) <= 0x7F7FFFFF
    assert functions.exp(functions.EXP_GREATEST + 1) == f32.INFINITY
    assert functions.exp(f32.ZERO) == functions.exp(f32.NEGATIVE_ZERO) == functions.exp(1) == f32.ONE
    assert functions.exp(f32.INFINITY) == f32.INFINITY and functions.exp(f32.NEGATIVE_INFINITY) == f32.ZERO
    assert functions.exp(0xFFC00001) == f32.NAN


def test_log_edges() -> None:
    assert functions.log(f32.ONE) == f32.ZERO
    assert functions.log(f32.ZERO) == functions.log(f32.NEGATIVE_ZERO) == f32.NEGATIVE_INFINITY
    assert functions.log(0x80000001) == functions.log(f32.NEGATIVE_INFINITY) == f32.NAN
    assert functions.log(f32.INFINITY) == f32.INFINITY and functions.log(0x7F800001) == f32.NAN


def test_quarter_turns_are_exact() -> None:
    quarters = [f32.rounded(i << 147) for i in range(4)]  # 0, 1/4, 1/2, 3/4
    minus_one = f32.ONE | 1 << 31
    assert [functions.cos2pi(u) for u in quarters] == [f32.ONE, f32.NEGATIVE_ZERO, minus_one, f32.ZERO]
    assert [functions.sin2pi(u) for u in quarters] == [f32.ZERO, f32.ONE, f32.NEGATIVE_ZERO, minus_one]


def test_erf_edges() -> None:
    assert functions.erf(f32.ZERO) == f32.ZERO and functions.erf(f32.NEGATIVE_ZERO) == f32.NEGATIVE_ZERO
    assert functions.erf(f32.INFINITY) == f32.ONE == functions.erf(functions.FOUR + 1)
    assert functions.erf(f32.NEGATIVE_INFINITY) == f32.ONE | 1 << 31
    assert functions.erf(0xFFC00001) == f32.NAN


def test_sigmoid() -> None:
    assert functions.sigmoid(f32.ZERO) == 0x3F000000
    assert functions.sigmoid(f32.INFINITY) == f32.ONE
    assert functions.sigmoid(f32.NEGATIVE_INFINITY) == f32.ZERO  # 1 / infinity
    assert functions.sigmoid(f32.NAN) == f32.NAN
