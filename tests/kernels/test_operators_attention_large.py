"""Attention at the sizes of real heads and windows, against numpy vectorised over (row, key) pairs.

Each numpy step below is one exact operation (numpy_exact.py); exp is the native one,
which test_functions_native.py holds to the reference. What is not seen is masked out, never multiplied by zero.
"""

import numpy as np
import pytest

from bitwitness.kernels import _native
from bitwitness.kernels.program import call
from bitwitness.kernels.reference import sums

from .numpy_exact import fma


def exp(x):
    y = np.empty_like(x)
    _native.apply("exp", np.ascontiguousarray(x), y)
    return y


def dots(a, b):
    """[I,d], [J,d] -> [I,J]: the block sum over d."""
    acc = np.zeros((len(a), len(b)), np.float32)
    for block in sums.blocks(a.shape[1]):
        p = np.zeros_like(acc)
        for i in block:
            p = fma(a[:, None, i], b[None, :, i], p)
        acc = acc + p
    return acc


def weighted(weights, seen, rows, acc):
    """acc [I,d] + the block sum over j of weights[I,j] * rows[j,d], where seen[I,j]."""
    for block in sums.blocks(len(rows)):
        p = np.zeros_like(acc)
        for j in block:
            p = np.where(seen[:, j, None], fma(weights[:, j, None], rows[None, j], p), p)
        acc = acc + p
    return acc


def rowsums(x):
    """[I,n] -> [I]: the row sum, n at most 4,096."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % 16)))
    lanes = np.zeros((len(x), 16), np.float32)
    for at in range(0, padded.shape[1], 16):
        lanes = lanes + padded[:, at : at + 16]
    return fold(lanes)


def rowsum_products(a, b):
    lanes = np.zeros((len(a), 16), np.float32)
    for i in range(a.shape[1]):
        lanes[:, i % 16] = fma(a[:, i], b[:, i], lanes[:, i % 16])
    return fold(lanes)


def fold(lanes):
    m = lanes[:, :8] + lanes[:, 8:]
    even = (m[:, 0] + m[:, 4]) + (m[:, 2] + m[:, 6])
    odd = (m[:, 1] + m[:, 5]) + (m[:, 3] + m[:, 7])
    # a chunk is added to +0, which only a sum of -0 would show, and there is none
    return even + odd


def one_window(qkv, start, do, heads, kv_heads, scale):
    """Forward and backward of one window; start counts from its first row. Returns o, m, l, dqkv."""
    n, d = len(qkv), qkv.shape[1] // (heads + 2 * kv_heads)
    head = [qkv[:, i * d : (i + 1) * d] for i in range(heads + 2 * kv_heads)]
    rows = np.arange(n)
    seen = (start[:, None] <= rows[None]) & (rows[None] <= rows[:, None])
    scale = np.float32(scale)
    o, m, total = np.zeros_like(do), np.zeros((n, heads), np.float32), np.zeros((n, heads), np.float32)
    dhead = [np.zeros_like(h) for h in head]
    for h in range(heads):
        g = h // (heads // kv_heads)
        q, k, v = head[h], head[heads + g], head[heads + kv_heads + g]
        at = slice(h * d, (h + 1) * d)
        s = dots(q, k)
        m[:, h] = np.where(seen, s, -np.inf).max(axis=1) * scale
        e = exp(fma(s, np.broadcast_to(scale, s.shape), np.broadcast_to(-m[:, h, None], s.shape)))
        total[:, h] = rowsums(np.where(seen, e, np.float32(0)))
        o[:, at] = weighted(e, seen, v, np.zeros_like(q)) / total[:, h, None]
        p = e / total[:, h, None]
        delta = rowsum_products(do[:, at], o[:, at])
        ds = (p * (dots(do[:, at], v) - delta[:, None])) * scale
        dhead[h] = weighted(ds, seen, k, np.zeros_like(q))
        dhead[heads + g] = weighted(ds.T, seen.T, q, dhead[heads + g])
        dhead[heads + kv_heads + g] = weighted(p.T, seen.T, do[:, at], dhead[heads + kv_heads + g])
    return o, m, total, np.concatenate(dhead, axis=1)


def starts(kind, windows, window):
    rng = np.random.default_rng(windows * window)
    row = np.arange(windows * window)
    first = row // window * window
    if kind == "documents":
        return np.maximum.accumulate(np.where((rng.random(row.size) < 0.02) | (row == first), row, 0))
    if kind == "sliding":
        return np.maximum(first, row - 40)
    if kind == "any":
        return first + (rng.random(row.size) * (row - first + 1)).astype(int)
    return first


CASES = [
    # windows, window, heads, kv_heads, d, kind
    (1, 300, 2, 1, 64, "causal"),
    (1, 530, 2, 1, 16, "any"),
    (3, 70, 6, 3, 40, "sliding"),
    (2, 129, 3, 1, 20, "documents"),
    (1, 257, 2, 2, 128, "documents"),
    (5, 16, 8, 8, 6, "any"),
    (2, 40, 1, 1, 264, "causal"),
]


@pytest.mark.parametrize(("windows", "window", "heads", "kv_heads", "d", "kind"), CASES)
def test_large_attention(values, windows, window, heads, kv_heads, d, kind):
    rows, scale = windows * window, float(np.float32(1 / np.sqrt(d)))
    qkv = values("normal", 1, rows, (heads + 2 * kv_heads) * d)
    do = values("normal", 2, rows, heads * d)
    start = starts(kind, windows, window).astype(np.int32)
    parts = []
    for first in range(0, rows, window):
        at = slice(first, first + window)
        parts.append(one_window(qkv[at], start[at] - first, do[at], heads, kv_heads, scale))
    expected = [np.concatenate(part) for part in zip(*parts, strict=True)]
    shape = {"heads": heads, "kv_heads": kv_heads, "scale": scale, "window": window}
    for threads in (1, 2, 3, 5):
        o, m, total = (np.full((rows, n), np.nan, np.float32) for n in (heads * d, heads, heads))
        call("attention", qkv, start, o, m, total, threads=threads, **shape)
        dqkv = np.full_like(qkv, np.nan)
        call("attention_backward", qkv, start, o, m, total, do, dqkv, threads=threads, **shape)
        for name, got, want in zip(("o", "m", "l", "dqkv"), (o, m, total, dqkv), expected, strict=True):
            wrong = np.argwhere(got.view(np.uint32) != want.view(np.uint32))
            assert not len(wrong), f"{name} at {threads} threads: {len(wrong)} differ, first at {wrong[0]}"
