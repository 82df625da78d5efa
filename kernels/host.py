"""Scalars of a step, in binary64: cos, sin, exp, log, power, rounding to binary32, rotary tables.

The learning rate, 1 - beta^t, the clip factor and the rotary tables are computed here and stand in the record
of the step, so every machine must get the same bits. Only `+ - * /` on Python floats (IEEE binary64, nearest
even, no contraction: CPython evaluates each operation alone), `math.sqrt`, and integer steps on the bits are
used. `math.pow`, `**`, `math.cos` and the like call the machine's libm, whose last bit differs between
machines; tests/kernels/test_host_lint.py keeps them out. The functions are at most 1 ULP from the true value.

docs/arithmetic.md, "Host scalars".
"""

import array
import math
import struct
from collections.abc import Sequence

from bitwitness.kernels.errors import KernelError

PI = float.fromhex("0x1.921fb54442d18p+1")
INFINITY = float("inf")
NAN = float("nan")

# pi/2 = the sum of these, each but the last of 33 bits, so that n * PART is exact for every |n| < 2^20.
_HALF_PI = tuple(
    float.fromhex(part) for part in ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2ep-69", "0x1.b839a252049c1p-104")
)
_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
# ln 2 in two parts, the first of 33 bits: n * HIGH is exact for every exponent n.
_LN2_HIGH = float.fromhex("0x1.62e42fefp-1")
_LN2_LOW = float.fromhex("0x1.473de6af278edp-34")
_INV_LN2 = float.fromhex("0x1.71547652b82fep+0")
# Adding and subtracting 1.5 * 2^52 rounds to the nearest integer, ties to even.
_ROUNDER = 6755399441055744.0
_SQRT_HALF_FRACTION = 0x6A09E667F3BCD  # fraction bits of sqrt(2): mantissas above it are halved

TRIG_LIMIT = 1000000.0


def _inverse_factorials(first: int, last: int, sign: float) -> tuple[float, ...]:
    """±1/n! for n = first, first + 2, ..., last, highest n first, signs alternating from `sign`.

    Every n! up to 18! = 6402373705728000 is an exact binary64 number, so each is one rounded division.
    """
    values = []
    factorial = 1.0
    for n in range(2, last + 1):
        factorial = factorial * float(n)
        if n >= first and (n - first) % 2 == 0:
            values.append(sign / factorial)
            sign = -sign
    return tuple(reversed(values))


_SIN = _inverse_factorials(3, 17, -1.0)
_COS = _inverse_factorials(4, 18, 1.0)


def bits_f64(x: float) -> int:
    """The 64 bits of x as an integer."""
    value: int = struct.unpack("<Q", struct.pack("<d", x))[0]
    return value


def from_bits_f64(bits: int) -> float:
    """The binary64 number with these 64 bits."""
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def bits_f32(x: float) -> int:
    """The bits of x rounded to binary32, nearest even; a NaN gives 7FC00000, an overflow infinity.

    In integer steps: a conversion instruction would flush subnormals under a caller's control word.
    """
    bits = bits_f64(x)
    sign, exponent, fraction = (bits >> 63) << 31, (bits >> 52) & 0x7FF, bits & 0xFFFFFFFFFFFFF
    if exponent == 0x7FF:
        return 0x7FC00000 if fraction else sign | 0x7F800000
    if exponent < 872:  # below 2^-151: less than half of the least subnormal
        return sign
    significand = fraction | (1 << 52)
    shift = 29 + max(0, 897 - exponent)  # 897: the exponent field of 2^-126
    rounded, rest, half = significand >> shift, significand & ((1 << shift) - 1), 1 << (shift - 1)
    if rest > half or (rest == half and rounded & 1):
        rounded += 1
    # The hidden bit of `rounded` carries into the exponent field, and so does a rounding up to 2^24.
    magnitude = rounded + (max(0, exponent - 897) << 23)
    return sign | min(magnitude, 0x7F800000)


def from_bits_f32(bits: int) -> float:
    """The binary32 number with these 32 bits, widened exactly, in integer steps."""
    sign, exponent, fraction = bits >> 31, (bits >> 23) & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return NAN if fraction else (-INFINITY if sign else INFINITY)
    if exponent:
        return from_bits_f64((sign << 63) | ((exponent + 896) << 52) | (fraction << 29))
    value = float(fraction) * from_bits_f64((1023 - 149) << 52)
    return -value if sign else value


def round_f32(x: float) -> float:
    """x rounded once to binary32 (nearest even, subnormals kept), as a Python float of that exact value."""
    return from_bits_f32(bits_f32(x))


def _two_difference(a: float, b: float) -> tuple[float, float]:
    """a - b as an unevaluated sum: the rounded difference and its exact error (Knuth)."""
    d = a - b
    back = a - d
    return d, (a - (d + back)) + (back - b)


def _reduce(x: float) -> tuple[int, float, float]:
    """x = n * pi/2 + (r + tail), |r| <= pi/4 nearly, n returned mod 4. |x| <= TRIG_LIMIT."""
    n = (x * _TWO_OVER_PI + _ROUNDER) - _ROUNDER
    r = x - n * _HALF_PI[0]  # exact: both products and the difference fit 53 bits
    r, tail = _two_difference(r, n * _HALF_PI[1])
    r, error = _two_difference(r, n * _HALF_PI[2])
    tail = (tail + error) - n * _HALF_PI[3]
    total = r + tail
    return int(n) & 3, total, (r - total) + tail


def _sin_kernel(r: float, tail: float) -> float:
    z = r * r
    p = _SIN[0]
    for c in _SIN[1:-1]:
        p = p * z + c
    cube = z * r
    return r - ((z * (0.5 * tail - cube * p) - tail) - cube * _SIN[-1])


def _cos_kernel(r: float, tail: float) -> float:
    z = r * r
    p = _COS[0]
    for c in _COS[1:]:
        p = p * z + c
    half = 0.5 * z
    w = 1.0 - half
    return w + (((1.0 - w) - half) + (z * z * p - r * tail))


def sin_cos(x: float) -> tuple[float, float]:
    """(sin x, cos x), each at most 1 ULP off. NaN and infinities give NaN; |x| > 10^6 raises KernelError."""
    if x != x or x in (INFINITY, -INFINITY):
        return NAN, NAN
    if not -TRIG_LIMIT <= x <= TRIG_LIMIT:
        raise KernelError(f"angle {x!r} is beyond ±1000000; reduce it before calling sin or cos")
    if -1.0e-9 < x < 1.0e-9:
        return x, 1.0  # x^3/6 and x^2/2 are below half a ULP; this keeps −0 and subnormals
    n, r, tail = _reduce(x)
    s, c = _sin_kernel(r, tail), _cos_kernel(r, tail)
    if n == 0:
        return s, c
    if n == 1:
        return c, -s
    if n == 2:
        return -s, -c
    return -c, s


def sin(x: float) -> float:
    """Sine of x radians, |x| <= 10^6 (see `sin_cos`)."""
    return sin_cos(x)[0]


def cos(x: float) -> float:
    """Cosine of x radians, |x| <= 10^6 (see `sin_cos`)."""
    return sin_cos(x)[1]


# 1/n! for n = 13, ..., 2 (Horner order).
_EXP = tuple(1.0 / float(math.factorial(n)) for n in range(13, 1, -1))
# 2/(2k+1) for k = 11, ..., 1 (Horner order): log((1+s)/(1-s)) = 2s + s (2/3 s^2 + 2/5 s^4 + ...).
_LOG = tuple(2.0 / float(2 * k + 1) for k in range(11, 0, -1))


def exp(x: float) -> float:
    """e to the x, at most 1 ULP off; +0 below the least subnormal, infinity above the greatest number."""
    if x != x:
        return NAN
    if x > 709.79:
        return INFINITY
    if x < -745.2:
        return 0.0
    n = (x * _INV_LN2 + _ROUNDER) - _ROUNDER
    high = x - n * _LN2_HIGH
    low = n * _LN2_LOW
    r = high - low
    p = _EXP[0]
    for c in _EXP[1:]:
        p = p * r + c
    # 1 + r + r^2 p, the error of r carried along, the small terms first.
    value = 1.0 + (high + (r * r * p - low))
    # Two exact powers of two: 2^n alone may be out of range where the result is not.
    half = int(n) // 2
    return value * from_bits_f64((1023 + half) << 52) * from_bits_f64((1023 + int(n) - half) << 52)


def log(x: float) -> float:
    """Natural logarithm, at most 1 ULP off; -infinity at ±0, NaN below."""
    if x != x or x < 0.0:
        return NAN
    if x == 0.0:
        return -INFINITY
    if x == INFINITY:
        return x
    shift = 0
    if bits_f64(x) >> 52 == 0:
        x = x * from_bits_f64((1023 + 54) << 52)
        shift = -54
    bits = bits_f64(x)
    exponent, fraction = (bits >> 52) - 1023 + shift, bits & 0xFFFFFFFFFFFFF
    above = fraction > _SQRT_HALF_FRACTION
    exponent += above
    f = from_bits_f64(((1022 if above else 1023) << 52) | fraction) - 1.0
    e = float(exponent)
    s = f / (2.0 + f)
    z = s * s
    p = _LOG[0]
    for c in _LOG[1:]:
        p = p * z + c
    half_square = 0.5 * f * f
    # log(1 + f) = f - (f^2/2 - s (f^2/2 + z p)): the large part f stays exact.
    return e * _LN2_HIGH - ((half_square - (s * (half_square + z * p) + e * _LN2_LOW)) - f)


def power(x: float, n: int) -> float:
    """x to the integer n >= 0 by repeated squaring, the low bit of n first. Raises KernelError for n < 0."""
    if n < 0:
        raise KernelError(f"power needs an exponent of 0 or more, not {n}")
    result, square = 1.0, x
    while n:
        if n & 1:
            result = result * square
        n >>= 1
        if n:
            square = square * square
    return result


def rope_tables(
    positions: Sequence[int], head_width: int, theta: float
) -> tuple["memoryview[float]", "memoryview[float]"]:
    """Rotary tables (cos, sin): binary32, row-major [len(positions), head_width / 2], fresh and writable.

    Frequency i is exp(-(2i / head_width) * log(theta)), the angle position * frequency, both in binary64, and
    the cosine and sine are rounded once. A table is a buffer: `torch.frombuffer`, `numpy.asarray` and `bytes`
    take it. Raises KernelError for a bad size or base.
    """
    if len(positions) < 1 or head_width < 2 or head_width % 2:
        raise KernelError(f"rotary tables need positions and an even head width, not {head_width}")
    if not 0.0 < theta < INFINITY:
        raise KernelError(f"rotary base must be positive and finite, not {theta!r}")
    base = log(theta)
    half = head_width // 2
    frequencies = [exp(-(float(2 * i) / float(head_width) * base)) for i in range(half)]
    cosines, sines = array.array("I"), array.array("I")
    for position in positions:
        for frequency in frequencies:
            s, c = sin_cos(float(position) * frequency)
            cosines.append(bits_f32(c))
            sines.append(bits_f32(s))
    return _as_floats(cosines, len(positions), half), _as_floats(sines, len(positions), half)


def _as_floats(bits: "array.array[int]", rows: int, columns: int) -> "memoryview[float]":
    """The same memory, read as binary32 [rows, columns]."""
    return memoryview(bits).cast("B").cast("f", shape=[rows, columns])
