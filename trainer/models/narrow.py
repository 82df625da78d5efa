"""Between float32 and the 16-bit formats, in integer steps on the bits (docs/formats/derivations.md, Casts).

Widening is exact. Narrowing rounds to nearest, ties to even, keeps subnormals, and gives infinity from half a unit
above the largest finite value on. No floating-point instruction takes part, so no processor flag can change a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

_SIGN, _MAGNITUDE, _INFINITY = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_CHUNK = 1 << 20


def from_bf16(bits: U16) -> U32:
    """binary32 bits of bfloat16 bits: the upper half."""
    return bits.astype(np.uint32) << np.uint32(16)


def from_f16(bits: U16) -> U32:
    """binary32 bits of binary16 bits, exactly; a NaN keeps its payload's place."""
    wide = bits.astype(np.uint32)
    sign, exponent, fraction = (wide & 0x8000) << 16, (wide >> 10) & 0x1F, wide & 0x3FF
    normal = ((exponent + 112) << 23) | (fraction << 13)
    # A subnormal is fraction · 2^-24: with its leading bit at position t it is 1.xxx · 2^(t-24).
    top = np.zeros_like(wide)
    for bit in range(1, 10):
        top = np.where(fraction >= (1 << bit), np.uint32(bit), top)
    small = ((top + np.uint32(103)) << 23) | ((fraction << (np.uint32(23) - top)) & np.uint32(0x7FFFFF))
    result = np.where(exponent == 0, np.where(fraction == 0, np.uint32(0), small), normal)
    result = np.where(exponent == 31, _INFINITY | (fraction << 13), result)
    return np.asarray(sign | result, dtype=np.uint32)


def to_bf16(bits: U32) -> U16:
    """bfloat16 bits of binary32 bits, nearest even; a NaN becomes 0x7FC0."""
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> np.uint32(16)
    return np.where((bits & _MAGNITUDE) > _INFINITY, np.uint32(0x7FC0), rounded).astype(np.uint16)


def to_f16(bits: U32) -> U16:
    """binary16 bits of binary32 bits, nearest even; a NaN becomes 0x7E00."""
    sign, magnitude = (bits & _SIGN) >> np.uint32(16), bits & _MAGNITUDE
    # Normal results: drop 13 bits with the exponent moved by 112; a carry walks into it, and beyond 65504 to infinity.
    moved = magnitude - np.uint32(112 << 23)
    normal = np.minimum((moved + np.uint32(0xFFF) + ((moved >> 13) & np.uint32(1))) >> np.uint32(13), np.uint32(0x7C00))
    # Subnormal results: significand · 2^(exponent - 150) in units of 2^-24, half a unit being the last bit dropped.
    exponent = magnitude >> np.uint32(23)
    significand = np.where(exponent == 0, magnitude, (magnitude & np.uint32(0x7FFFFF)) | np.uint32(0x800000))
    shift = np.minimum(np.uint32(126) - np.minimum(exponent, np.uint32(113)), np.uint32(26))
    half = (np.uint32(1) << (shift - np.uint32(1))) - np.uint32(1)
    small = (significand + half + ((significand >> shift) & np.uint32(1))) >> shift
    result = np.where(magnitude < np.uint32(113 << 23), small, normal)
    result = np.where(magnitude >= _INFINITY, np.uint32(0x7C00), result)
    result = np.where(magnitude > _INFINITY, np.uint32(0x7E00), sign | result)
    return result.astype(np.uint16)


_WIDEN: Mapping[str, Callable[[U16], U32]] = {"BF16": from_bf16, "F16": from_f16}
_NARROW: Mapping[str, Callable[[U32], U16]] = {"BF16": to_bf16, "F16": to_f16}
DTYPES = ("F32", "BF16", "F16")


def widen(data: memoryview, dtype: str, out: npt.NDArray[np.float32]) -> None:
    """Fill `out` (float32, flat) from little-endian bytes of a tensor of `dtype`, one of DTYPES, exactly."""
    target = out.view(np.uint32)
    if dtype == "F32":
        target[:] = np.frombuffer(data, dtype="<u4")
        return
    source = np.frombuffer(data, dtype="<u2")
    for at in range(0, len(target), _CHUNK):
        target[at : at + _CHUNK] = _WIDEN[dtype](source[at : at + _CHUNK])


def narrow(data: memoryview, dtype: str) -> memoryview:
    """The little-endian bytes of a float32 tensor in the 16-bit `dtype`, BF16 or F16."""
    source = np.frombuffer(data, dtype="<u4")
    out = np.empty(len(source), dtype="<u2")
    for at in range(0, len(source), _CHUNK):
        out[at : at + _CHUNK] = _NARROW[dtype](source[at : at + _CHUNK])
    return out.data.cast("B")


def is_finite(values: npt.NDArray[np.float32]) -> bool:
    """Whether no element is an infinity or a NaN, told from the bits."""
    return bool(((values.view(np.uint32) & _MAGNITUDE) < _INFINITY).all())
