"""exp, log, sin2pi, cos2pi, sigmoid, erf from `+ - * / fma` and integer steps (docs/arithmetic.md, "Functions").

The sequence of operations is the definition: kernels/csrc/functions.h is the same one, and both are at most
1 ULP from the true value (tests/kernels/test_functions.py). Coefficients are binary32 numbers in C's hex
notation, highest power first.
"""

from collections.abc import Sequence

from bitwitness.kernels import host
from bitwitness.kernels.reference import binary32 as f32


def _constant(text: str) -> int:
    """The bits of a binary32 number written in hex; refused if it is not one exactly."""
    value = float.fromhex(text)
    if host.round_f32(value) != value:
        raise ValueError(f"{text} is not a binary32 number")
    return host.bits_f32(value)


def _constants(text: str) -> list[int]:
    return [_constant(word) for word in text.split()]


# Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
ROUND_TO_INTEGER = _constant("0x1.8p+23")

LN2_HIGH = _constant("0x1.62e4p-1")  # 15 bits: its product with any exponent is exact
LN2_LOW = _constant("0x1.7f7d1cp-20")
INVERSE_LN2 = _constant("0x1.715476p+0")

EXP_LEAST = _constant("-0x1.5d589ep+6")  # below: the result would be under 2^-126
EXP_GREATEST = _constant("0x1.62e42ep+6")  # above: the result would be over the greatest number
EXP = _constants("0x1.685352p-10 0x1.123bd0p-7 0x1.555b96p-5 0x1.55548ep-3 0x1.fffff8p-2 0x1p+0 0x1p+0")

SQRT_HALF = 0x3F3504F3
TWO_TO_23 = _constant("0x1p+23")
LEAST_NORMAL = _constant("0x1p-126")
MINUS_HALF = _constant("-0x1p-1")
LOG = _constants(
    "0x1.11c890p-4 -0x1.dd6608p-4 0x1.e7a5b6p-4 -0x1.fc4d90p-4 0x1.232cf6p-3 -0x1.555ae4p-3 0x1.99a546p-3"
    " -0x1.00000ap-2 0x1.555546p-2"
)

FOUR = _constant("0x1p+2")
HALF_PI = _constant("0x1.921fb6p+0")
# sin(pi/2 r) / r - HALF_PI in r^2; the last one is what pi/2 loses in binary32.
SIN = _constants("0x1.465d3ep-13 -0x1.32b45cp-8 0x1.466b82p-4 -0x1.4abbcep-1 -0x1.777a5cp-25")
COS = _constants("0x1.d684a8p-11 -0x1.55b7cep-6 0x1.03c1b8p-2 -0x1.3bd3ccp+0 0x1p+0")

ERF_TURN = host.bits_f32(0.9375)
ERF_SMALL = _constants(
    "0x1.4f8e58p-14 -0x1.a6126ep-11 0x1.544aa8p-8 -0x1.b80120p-6 0x1.ce2d64p-4 -0x1.812740p-2 0x1.06eba8p-3"
)
ERF_LARGE = _constants(
    "0x1.97b4f6p-17 -0x1.5c1e26p-12 0x1.e24fc2p-9 -0x1.869b68p-6 0x1.b3850ap-4 0x1.452b58p-1 0x1.077ff2p-3"
)


def _polynomial(coefficients: Sequence[int], x: int) -> int:
    """Horner's rule: p = the first coefficient, then p = fma(p, x, next)."""
    p = coefficients[0]
    for c in coefficients[1:]:
        p = f32.fma(p, x, c)
    return p


def exp(x: int) -> int:
    """e^x; +0 where it is below 2^-126, infinity above the greatest number."""
    if f32.is_nan(x):
        return f32.NAN
    if f32.greater(EXP_LEAST, x):
        return f32.ZERO
    if f32.greater(x, EXP_GREATEST):
        return f32.INFINITY
    shifted = f32.fma(x, INVERSE_LN2, ROUND_TO_INTEGER)
    n = f32.sub(shifted, ROUND_TO_INTEGER)
    r = f32.fma(n, f32.neg(LN2_HIGH), x)
    r = f32.fma(n, f32.neg(LN2_LOW), r)
    # times 2^n: n, the low bits of `shifted`, is added to the exponent field; the result is always normal
    return (_polynomial(EXP, r) + (shifted << 23)) & 0xFFFFFFFF


def log(x: int) -> int:
    """The natural logarithm; -infinity at ±0, NaN below."""
    if f32.is_nan(x):
        return f32.NAN
    if x in (f32.ZERO, f32.NEGATIVE_ZERO):
        return f32.NEGATIVE_INFINITY
    if f32.greater(f32.ZERO, x):
        return f32.NAN
    if x == f32.INFINITY:
        return f32.INFINITY
    subnormal = f32.greater(LEAST_NORMAL, x)
    scaled = f32.mul(x, TWO_TO_23) if subnormal else x
    # x = m * 2^exponent with m in [sqrt(1/2), sqrt(2)); >> rounds down.
    exponent = (scaled - SQRT_HALF) >> 23
    m = scaled - (exponent << 23)
    e = f32.from_int(exponent - (23 if subnormal else 0))
    f = f32.sub(m, f32.ONE)
    z = f32.mul(f, f)
    p = _polynomial(LOG, f)
    # ln(1 + f) = f - z/2 + f z p; e ln 2 + f is kept as a rounded sum and its error.
    small = f32.fma(e, LN2_LOW, f32.mul(f32.mul(f, z), p))
    small = f32.fma(MINUS_HALF, z, small)
    high = f32.mul(e, LN2_HIGH)
    total = f32.add(high, f)
    lost = f32.sub(f, f32.sub(total, high))
    return f32.add(total, f32.add(small, lost))


def sincos2pi(u: int) -> tuple[int, int]:
    """(sin 2 pi u, cos 2 pi u) for u in [0, 1): the quarter turn nearest to 4u is taken out exactly."""
    quarters = f32.mul(u, FOUR)
    shifted = f32.add(quarters, ROUND_TO_INTEGER)
    quadrant = shifted & 3
    r = f32.sub(quarters, f32.sub(shifted, ROUND_TO_INTEGER))
    z = f32.mul(r, r)
    s = f32.fma(r, HALF_PI, f32.mul(r, _polynomial(SIN, z)))
    c = _polynomial(COS, z)
    if quadrant & 1:
        s, c = c, s
    return (f32.neg(s) if quadrant in (2, 3) else s), (f32.neg(c) if quadrant in (1, 2) else c)


def sin2pi(u: int) -> int:
    """sin 2 pi u for u in [0, 1)."""
    return sincos2pi(u)[0]


def cos2pi(u: int) -> int:
    """cos 2 pi u for u in [0, 1)."""
    return sincos2pi(u)[1]


def sigmoid(a: int) -> int:
    """1 / (1 + exp(-a))."""
    return f32.div(f32.ONE, f32.add(f32.ONE, exp(f32.neg(a))))


def erf(x: int) -> int:
    """The error function; its sign is that of x."""
    if f32.is_nan(x):
        return f32.NAN
    sign, a = x & 0x80000000, x & 0x7FFFFFFF
    if f32.greater(a, FOUR):
        return sign | f32.ONE
    if f32.greater(ERF_TURN, a):
        return sign | f32.fma(_polynomial(ERF_SMALL, f32.mul(a, a)), a, a)
    q = _polynomial(ERF_LARGE, a)
    u = f32.fma(q, a, a)
    lost = f32.fma(q, a, f32.sub(a, u))  # q a + a = u + lost
    e = exp(f32.neg(u))
    return sign | f32.sub(f32.ONE, f32.fma(f32.neg(e), lost, e))
