"""IEEE 754 binary32 in Python integers: add, sub, mul, div, sqrt, fma, each rounded once, to nearest even.

A number is the integer of its 32 bits. Every finite binary32 number is a whole multiple of 2^-149, the least
subnormal, so `units` turns it into a plain integer, the exact result of an operation is an integer too (a
quotient or a root: an integer and a *sticky* bit for what lies below it), and `rounded` turns that into bits.
There is one rounding in this file, and nothing else is ever inexact: no Python float takes part.

Results that are not numbers are NAN = 7FC00000, whatever the payload of the operands.
docs/arithmetic.md, "Numbers"; IEEE 754-2019 sections 4.3.1 and 5.4.1.
"""

import math

ZERO = 0x00000000
NEGATIVE_ZERO = 0x80000000
ONE = 0x3F800000
TWO = 0x40000000
MINUS_TWO = 0xC0000000
INFINITY = 0x7F800000
NEGATIVE_INFINITY = 0xFF800000
NAN = 0x7FC00000

_SIGN = 0x80000000
_MAGNITUDE = 0x7FFFFFFF
_UNIT_EXPONENT = 149  # a unit is 2^-149
_PRECISION = 24


def is_nan(a: int) -> bool:
    """True for every NaN pattern."""
    return a & _MAGNITUDE > INFINITY


def is_infinite(a: int) -> bool:
    """True for both infinities."""
    return a & _MAGNITUDE == INFINITY


def canonical(a: int) -> int:
    """a, or 7FC00000 where a is any NaN."""
    return NAN if a & _MAGNITUDE > INFINITY else a


def units(a: int) -> int:
    """The finite number a as a signed count of 2^-149; both zeros give 0."""
    magnitude = a & _MAGNITUDE
    exponent = magnitude >> 23
    if exponent > 1:
        magnitude = (magnitude & 0x7FFFFF | 0x800000) << (exponent - 1)
    # Exponent fields 0 and 1 share one spacing: there the bits are the count.
    return -magnitude if a & _SIGN else magnitude


def rounded(count: int, extra: int = 0) -> int:
    """The binary32 number nearest to count * 2^(-149 - extra), ties to even; +0 for a count of 0.

    A result of 2^128 - 2^103 or more in magnitude is infinite.
    """
    sign = 0
    if count < 0:
        sign, count = _SIGN, -count
    # Bits below the unit are lost, and so are those below the 24th significant one.
    drop = count.bit_length() - _PRECISION
    if drop < extra:
        drop = extra
    if drop <= 0:
        return sign | count
    kept = count >> drop
    rest = count - (kept << drop)
    half = 1 << (drop - 1)
    if rest > half or (rest == half and kept & 1):
        kept += 1
    # Each bit dropped above `extra` is one step of the exponent field; the leading bit of `kept`, and a
    # carry to 2^24, add themselves to that field.
    bits = ((drop - extra) << 23) + kept
    return sign | (bits if bits < INFINITY else INFINITY)


def neg(a: int) -> int:
    """-a: the sign bit flipped."""
    return a ^ _SIGN


def add(a: int, b: int) -> int:
    """a + b."""
    if a & _MAGNITUDE >= INFINITY or b & _MAGNITUDE >= INFINITY:
        if is_nan(a) or is_nan(b) or (is_infinite(a) and is_infinite(b) and a != b):
            return NAN
        return a if is_infinite(a) else b
    count = units(a) + units(b)
    if count == 0:
        # An exact zero is +0, except (-0) + (-0).
        return NEGATIVE_ZERO if a == b == NEGATIVE_ZERO else ZERO
    return rounded(count)


def sub(a: int, b: int) -> int:
    """a - b."""
    return add(a, b ^ _SIGN)


def mul(a: int, b: int) -> int:
    """a * b."""
    sign = (a ^ b) & _SIGN
    if a & _MAGNITUDE >= INFINITY or b & _MAGNITUDE >= INFINITY:
        if is_nan(a) or is_nan(b) or a & _MAGNITUDE == 0 or b & _MAGNITUDE == 0:
            return NAN
        return sign | INFINITY
    # `| sign` matters where the product is zero or rounds to zero.
    return rounded(units(a) * units(b), _UNIT_EXPONENT) | sign


def fma(a: int, b: int, c: int) -> int:
    """a * b + c, rounded once."""
    if a & _MAGNITUDE >= INFINITY or b & _MAGNITUDE >= INFINITY or c & _MAGNITUDE >= INFINITY:
        if a & _MAGNITUDE < INFINITY and b & _MAGNITUDE < INFINITY:
            return canonical(c)  # a finite product, however large, is below an infinite c
        return add(mul(a, b), c)  # the product is infinite or NaN: nothing is rounded
    product = units(a) * units(b)
    count = product + (units(c) << _UNIT_EXPONENT)
    if count == 0:
        if product == 0 and (a ^ b) & c & _SIGN:
            return NEGATIVE_ZERO  # (-0) + (-0)
        return ZERO
    return rounded(count, _UNIT_EXPONENT)


def div(a: int, b: int) -> int:
    """a / b; a nonzero number over zero is infinite, 0/0 and inf/inf are NaN."""
    sign = (a ^ b) & _SIGN
    if is_nan(a) or is_nan(b) or (is_infinite(a) and is_infinite(b)):
        return NAN
    if is_infinite(a):
        return sign | INFINITY
    if is_infinite(b):
        return sign
    numerator, denominator = abs(units(a)), abs(units(b))
    if denominator == 0:
        return NAN if numerator == 0 else sign | INFINITY
    # The quotient in units is numerator * 2^149 / denominator. 160 further bits leave at least 2^32 for the
    # least numerator over the greatest denominator (2^277), so the sticky bit stays below the rounding.
    more = 160
    quotient, rest = divmod(numerator << (_UNIT_EXPONENT + more), denominator)
    return rounded(quotient << 1 | (rest != 0), more + 1) | sign


def sqrt(a: int) -> int:
    """The square root; -0 gives -0, a negative number NaN."""
    if is_nan(a) or a & _MAGNITUDE == 0:
        return canonical(a)
    if a & _SIGN:
        return NAN
    if a == INFINITY:
        return INFINITY
    # The root of n units is sqrt(n * 2^149) units: at least 2^74, so the sticky bit is below the rounding.
    square = units(a) << _UNIT_EXPONENT
    root = math.isqrt(square)
    return rounded(root << 1 | (root * root != square), 1)


def greater(a: int, b: int) -> bool:
    """a > b: false where either is NaN, and +0 is not greater than -0."""
    if is_nan(a) or is_nan(b):
        return False
    return ordered(a) > ordered(b)


def ordered(a: int) -> int:
    """An integer that orders numbers and infinities as their values; both zeros give 0."""
    return -(a & _MAGNITUDE) if a & _SIGN else a


def maximum(a: int, b: int) -> int:
    """a > b ? a : b, so a NaN in b survives, and of two zeros b is taken."""
    return a if greater(a, b) else b


def from_int(n: int) -> int:
    """The integer n as binary32, nearest even."""
    return rounded(n << _UNIT_EXPONENT)
