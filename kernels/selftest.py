"""Digests of every operator over fixed inputs: the same on every machine, or the machine is not to be trusted.

The inputs come from Philox and from a list of awkward numbers, so that the digests also cover subnormals, infinities
and NaNs. tests/golden/arith-1.json holds what they must be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwitness.kernels import _native, philox
from bitwitness.kernels.ops import arithmetic_digest
from bitwitness.kernels.program import call
from bitwitness.kernels.reduce import canonicalise_nan

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I16 = npt.NDArray[np.int16]

# ±0, the least and greatest subnormal and normal numbers, ±1 and a neighbour, infinities, NaN
AWKWARD = (
    0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,
    0x3F800000, 0xBF800000, 0x3F800001, 0x42B17217, 0xC2AEAC50, 0x7F800000, 0xFF800000, 0x7FC00000,
)  # fmt: skip


def golden_path() -> Path:
    """Where the golden file is installed: beside the native module."""
    return Path(_native.__file__).with_name("arith-1.json")


def golden() -> dict[str, str]:
    """What every digest must be."""
    loaded: dict[str, str] = json.loads(golden_path().read_text(encoding="utf-8"))
    return loaded


def digests(threads: int = 2) -> dict[str, str]:
    """Run everything; return name -> SHA-256 (hex) of its outputs, NaNs canonical, and the arithmetic's own digest."""
    found = {"arithmetic": arithmetic_digest()}
    for name, outputs in _cases(threads):
        sha = hashlib.sha256()
        for array in outputs:
            if array.dtype == np.float32:
                canonicalise_nan(array)
            sha.update(array.astype("<f4").tobytes())
        found[name] = sha.hexdigest()
    return found


def _normal(name: str, *shape: int) -> F32:
    out = np.empty(shape, np.float32)
    philox.normal(out, philox.derive_key(0, "selftest", name))
    return out


def _awkward(name: str, *shape: int) -> F32:
    """Normals with the awkward numbers strewn in, about one in 256."""
    out = _normal(name, *shape).reshape(-1)
    where = np.empty(out.shape, np.float32)
    philox.uniform(where, philox.derive_key(0, "selftest-where", name))
    for i in np.flatnonzero(where < np.float32(1 / 256)):
        out[i] = np.array(AWKWARD[int(i) % len(AWKWARD)], np.uint32).view(np.float32)
    return out.reshape(shape)


def _empty(*shape: int) -> F32:
    return np.zeros(shape, np.float32)


def _operand(rows: int, blocks: int) -> tuple[I16, F32]:
    return np.zeros((rows, 128 * blocks), np.int16), _empty(rows, blocks)


def _ints(values: list[int] | list[list[int]]) -> I32:
    return np.array(values, np.int32)


def _cases(threads: int) -> Iterator[tuple[str, list[F32]]]:
    for flavour, values in (("", _normal), (" awkward", _awkward)):
        for name, outputs in _operators(values, threads):
            yield name + flavour, outputs
    yield from _functions()
    yield from _random()


def _operators(values: Callable[..., F32], threads: int) -> Iterator[tuple[str, list[F32]]]:
    def run(op: str, *operands: Any, **attributes: float) -> tuple[str, list[Any]]:
        call(op, *operands, threads=threads, **attributes)
        # Integers are outputs where the operator's name says so; as binary32 numbers they are exact.
        return op, [array for array in operands if array.dtype == np.float32 or op.startswith("bfp")]

    yield run("fill", _empty(100), value=0.1)
    yield run("copy", values("a", 100), _empty(100))
    yield run("add", values("a", 100), values("b", 100), _empty(100))
    yield run("mul", values("a", 100), values("b", 100), _empty(100))
    yield run("add_bias", values("a", 20, 37), values("b", 37), _empty(20, 37))
    yield run("bias_backward", values("a", 600, 5), values("b", 5), segment=300)
    a, b = values("a", 13, 515), values("b", 515, 35)
    yield run("matmul_nn", a, b, values("c", 13, 35), accumulate=1)
    yield run("matmul_nt", a, np.ascontiguousarray(b.T), _empty(13, 35), accumulate=0)
    yield run("matmul_tn", np.ascontiguousarray(a.T), b, values("c", 13, 35), accumulate=1, segment=103)

    # in block fixed point: integers and exponents are among the outputs
    exponents, moved, k = _ints([0] * 515), _ints([0] * 13), 515
    yield run("bfp_exponents", np.ascontiguousarray(b.T), _ints([0] * k))
    call("bfp_exponents", a, exponents, threads=threads)
    p, q = _operand(13, 5), _operand(35, 5)
    yield run("bfp_rows", a, exponents, *p, moved, sign=-1)
    yield run("bfp_columns", b, exponents, *_operand(35, 5), sign=1, segment=103)
    call("bfp_columns", b, exponents, *q, sign=1, segment=k, threads=threads)
    yield run("bfp_balance", exponents, exponents[::-1].copy(), _ints([0] * k))
    yield run("matmul_bfp", *p, *q, values("c", 13, 35), accumulate=1)

    rows, width, vocabulary = 21, 83, 97
    ids = _ints([(r * r) % vocabulary for r in range(rows)])
    x, z, dy = values("x", rows, width), values("z", rows, width), values("dy", rows, width)
    gain, table = values("gain", width), values("table", vocabulary, width)
    yield run("embed", ids, table, _empty(rows, width))
    yield run("embed_backward", ids, dy, table.copy())
    y, h, r = _empty(rows, width), _empty(rows, width), _empty(rows)
    yield run("rmsnorm", x, gain, y, r, epsilon=1e-5)
    yield run("rmsnorm_backward", x, gain, r, dy, z, _empty(rows, width), gain.copy(), segment=7)
    yield run("add_rmsnorm", x, z, gain, h, y, r, epsilon=1e-5)
    mean = _empty(rows)
    yield run("layernorm", x, gain, y, mean, r, epsilon=1e-5)
    yield run("layernorm_backward", x, gain, mean, r, dy, z, _empty(rows, width), gain.copy(), segment=7)
    yield run("swiglu", values("ab", rows, 2 * width), _empty(rows, width))
    yield run("swiglu_backward", values("ab", rows, 2 * width), dy, _empty(rows, 2 * width))
    wide = values("wide", 1000)
    for name in ("silu", "gelu", "gelu_tanh"):
        yield run(name, wide, _empty(1000))
        yield run(name + "_backward", wide, values("dy", 1000), _empty(1000))
    at = _ints([[n, -1 - n, 7 * n] for n in range(rows)])
    yield run("dropout", x, at, _empty(rows, width), p=0.3, scale=1 / 0.7, key0=123, key1=2**32 - 5)
    target = _ints([-1 if row % 5 == 4 else int(ids[row]) for row in range(rows)])
    logits = values("logits", rows, vocabulary)
    yield run("cross_entropy_loss", logits, target, _empty(rows), _empty(rows), z_loss=1e-4)
    yield run("cross_entropy", logits, target, _empty(rows), _empty(rows), z_loss=1e-4)

    heads, kv_heads, d, window = 4, 2, 10, 150
    stride = (heads + 2 * kv_heads) * d
    shape = {"heads": heads, "kv_heads": kv_heads, "scale": 0.31622776, "window": window}
    qkv, do = values("qkv", 2 * window, stride), values("do", 2 * window, heads * d)
    position = _ints([row % window for row in range(2 * window)])
    # documents of 70 tokens, seen by their own tokens alone
    start = _ints([row - row % window % 70 for row in range(2 * window)])
    angles = values("angles", 2, window, d // 2)
    turn = {"heads": heads + kv_heads, "head_width": d}
    yield run("rope", qkv, position, angles[0], angles[1], sign=1, **turn)
    o, m, total = _empty(2 * window, heads * d), _empty(2 * window, heads), _empty(2 * window, heads)
    yield run("attention", qkv, start, o, m, total, **shape)
    yield run("attention_backward", qkv, start, o, m, total, do, _empty(2 * window, stride), **shape)

    n = 20000
    yield run("sum_squares", values("g", n), _empty(2))
    scalars = np.array([0.01, 0.1, 0.95, 0.05, 0.999, 3e-4, 1.5, 1e-8], np.float32)
    yield run("adamw", values("p", 999), values("g", 999), values("m", 999), np.abs(values("v", 999)), scalars)


def _functions() -> Iterator[tuple[str, list[F32]]]:
    bits = np.arange(0, 1 << 32, 1048573, dtype=np.uint64).astype(np.uint32)
    every = np.concatenate([bits, np.array(AWKWARD, np.uint32)]).view(np.float32)
    unit = np.empty(5000, np.float32)
    philox.uniform(unit, philox.derive_key(0, "selftest", "unit"))
    for name in ("exp", "log", "sigmoid", "erf", "sin2pi", "cos2pi"):
        x = unit if name.endswith("2pi") else every
        y = np.empty_like(x)
        _native.apply(name, x, y)
        yield name, [y]
    y = np.empty_like(every)
    _native.fma(every, np.roll(every, 1), np.roll(every, 2), y)
    yield "fma", [y]


def _random() -> Iterator[tuple[str, list[F32]]]:
    key = philox.derive_key(1, "selftest", "random")
    out = _empty(1001)
    philox.uniform(out, key)
    yield "uniform", [out]
    philox.normal(out, key)
    yield "normal", [out]
    philox.trunc_normal(out, key, std=0.02, bound=1.0)
    yield "trunc_normal", [out]
    yield "permutation", [np.array([philox.permutation(i, 1001, key) for i in range(1001)], np.float32)]
