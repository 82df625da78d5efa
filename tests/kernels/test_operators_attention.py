"""attention and attention_backward: native equals reference, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FLAVOURS = ["normal", "wide", "tiny", "huge", "special", "bits"]
flavours = st.sampled_from(FLAVOURS)
seeds = st.integers(0, 2**32 - 1)


def start_rows(kind, rows, window, seed):
    """First visible row of each row: the window's start, document resets, a sliding window, or anything legal."""
    rng = np.random.default_rng(seed)
    row = np.arange(rows)
    first = row // window * window
    if kind == "causal":
        start = first
    elif kind == "documents":
        resets = (rng.random(rows) < 0.2) | (row == first)
        start = np.maximum.accumulate(np.where(resets, row, 0))
    elif kind == "sliding":
        start = np.maximum(first, row - 3)
    else:
        start = first + (rng.random(rows) * (row - first + 1)).astype(int)
    return start.astype(np.int32)


def check(values, same_bits, flavour, seed, rows, window, heads, group, width, start, scale=0.3):
    kv_heads = heads // group
    shape = {"heads": heads, "kv_heads": kv_heads, "scale": scale, "window": window}
    qkv = values(flavour, seed, rows, (heads + 2 * kv_heads) * width)
    o, m, total = (values("bits", seed + i, rows, n) for i, n in enumerate((heads * width, heads, heads)))
    same_bits("attention", qkv, start, o, m, total, **shape)

    from bitwitness.kernels.program import call

    call("attention", qkv, start, o, m, total, **shape)
    do = values(flavour, seed + 5, rows, heads * width)
    dqkv = values("bits", seed + 6, *qkv.shape)
    same_bits("attention_backward", qkv, start, o, m, total, do, dqkv, **shape)


@settings(max_examples=30)
@given(
    flavours, seeds, st.integers(1, 3), st.integers(1, 11), st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 3), (3, 3)]),
    st.sampled_from([2, 4, 6, 8, 10, 16, 18]), st.sampled_from(["causal", "documents", "sliding", "any"]),
)  # fmt: skip
def test_attention(values, same_bits, flavour, seed, windows, window, heads, width, kind):
    rows = windows * window
    check(values, same_bits, flavour, seed, rows, window, *heads, width, start_rows(kind, rows, window, seed))


@pytest.mark.parametrize("window", [255, 257, 530])
def test_attention_across_key_and_query_blocks(values, same_bits, window):
    """Blocks of 256 keys and queries count from the window's first row; most rows see few keys, some see all."""
    start = start_rows("sliding", window, window, 1)
    start[[200, window - 1]] = 0
    start[-30] = 100
    check(values, same_bits, "normal", window, window, window, 2, 2, 4, start)


def test_attention_over_two_long_windows(values, same_bits):
    """The second window's blocks start at row 270, not at a multiple of 256."""
    start = start_rows("sliding", 540, 270, 1)
    start[[269, 539]] = 0, 270
    check(values, same_bits, "normal", 9, 540, 270, 1, 1, 2, start)


def test_attention_over_more_keys_than_a_chunk(values, same_bits):
    """The row sum of one row's probabilities passes 4,096; only that row sees much."""
    rows = 4110
    start = np.arange(rows, dtype=np.int32)
    start[-1] = 0
    start[-5] = 4000
    check(values, same_bits, "normal", 3, rows, rows, 1, 1, 2, start)


def test_what_is_not_seen_takes_no_part(values):
    from bitwitness.kernels.program import call

    shape = {"heads": 2, "kv_heads": 1, "scale": 0.5, "window": 12}
    start = np.array([0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8], np.int32)
    qkv, do = values("normal", 1, 12, 4 * 8), values("normal", 2, 12, 2 * 8)
    results = []
    for strange in (np.float32(0), np.float32(np.nan)):
        changed = qkv.copy()
        changed[:4] = strange  # rows 4 ... 11 do not see them
        o, m, total = (np.zeros((12, n), np.float32) for n in (16, 2, 2))
        call("attention", changed, start, o, m, total, **shape)
        dqkv = np.zeros_like(qkv)
        call("attention_backward", changed, start, o, m, total, do, dqkv, **shape)
        results.append([x[4:].tobytes() for x in (o, m, total, dqkv)])
    assert results[0] == results[1]


def test_windows_are_independent(values):
    """Two windows in one call are two calls of one window."""
    from bitwitness.kernels.program import call

    shape = {"heads": 4, "kv_heads": 2, "scale": 0.25, "window": 40}
    qkv, start = values("normal", 1, 80, 8 * 8), start_rows("documents", 80, 40, 3)
    do = values("normal", 2, 80, 4 * 8)

    def run(rows):
        part, begin = qkv[rows], (start[rows] - rows.start).astype(np.int32)
        o, m, total = (np.zeros((len(part), n), np.float32) for n in (32, 4, 4))
        call("attention", part, begin, o, m, total, **shape)
        dqkv = np.zeros_like(part)
        call("attention_backward", part, begin, o, m, total, do[rows], dqkv, **shape)
        return [x.tobytes() for x in (o, m, total, dqkv)]

    first, second, both = run(slice(0, 40)), run(slice(40, 80)), run(slice(0, 80))
    assert [a + b for a, b in zip(first, second, strict=True)] == both
