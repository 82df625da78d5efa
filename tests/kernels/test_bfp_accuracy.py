"""What block fixed point loses, against binary64, on inputs that break quantisers; and that what breaks stays local.

The table of docs/arithmetic.md is printed by `python -m tests.kernels.test_bfp_accuracy`.
"""

import numpy as np
import pytest

from bitwitness.kernels.program import call

T, K, N = 1024, 512, 96


def operand(rows, blocks):
    return np.empty((rows, 128 * blocks), np.int16), np.empty((rows, blocks), np.float32)


def exponents(x):
    """Exponents of the columns' greatest magnitudes."""
    e = np.empty(x.shape[1], np.int32)
    call("bfp_exponents", x, e, threads=2)
    return e


def rows(x, a, sign):
    q, s = operand(x.shape[0], -(-x.shape[1] // 128))
    call("bfp_rows", x, a, q, s, np.empty(x.shape[0], np.int32), sign=sign, threads=2)
    return q, s


def columns(x, a, sign, segment):
    q, s = operand(x.shape[1], len(x) // segment * -(-segment // 128))
    call("bfp_columns", x, a, q, s, sign=sign, segment=segment, threads=2)
    return q, s


def product(p, q):
    c = np.empty((len(p[0]), len(q[0])), np.float32)
    call("matmul_bfp", *p, *q, c, accumulate=0, threads=2)
    return c


def forward(x, w):
    a = exponents(w)
    return product(rows(x, a, 1), rows(w, a, -1))


def input_gradient(g, w):
    a = exponents(w.T.copy())
    return product(rows(g, a, 1), columns(w, a, -1, len(w)))


def weight_gradient(g, x, segment):
    a = np.empty(len(g), np.int32)
    call("bfp_balance", exponents(g.T.copy()), exponents(x.T.copy()), a)
    return product(columns(g, a, -1, segment), columns(x, a, 1, segment))


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def outlier_channels():
    """Activations with a few channels a thousand times the rest, as large transformers have."""
    x = normal(1, T, K)
    x[:, [3, 77, 300]] *= 1000
    w = normal(2, N, K)
    w[:, [3, 77, 300]] /= 300
    return x, w, normal(3, T, N)


def sink_token():
    """One token of each window whose activations dwarf the others' while its gradient is small."""
    x, g = normal(1, T, K), normal(3, T, N)
    x[::256] *= 2000
    g[::256] /= 500
    return x, normal(2, N, K), g


def heavy_tails():
    """Gradients of Student's t with two degrees of freedom: no variance."""
    g = np.random.default_rng(3).standard_t(2, (T, N)).astype(np.float32)
    return normal(1, T, K), normal(2, N, K), g


def plain():
    return normal(1, T, K), normal(2, N, K), normal(3, T, N)


def minute():
    """Products of 1e-38 with ordinary numbers: below the least exponent of a block everything rounds to zero."""
    x, w, g = plain()
    return x, w, g * np.float32(1e-12)


CASES = [plain, outlier_channels, sink_token, heavy_tails, minute]
# error of (forward, input gradient, weight gradient), root mean square over that of the exact result
BOUNDS = {
    "plain": (5e-4, 6e-4, 5e-4),
    "outlier_channels": (6e-4, 6e-4, 5e-4),
    "sink_token": (6e-4, 6e-4, 6e-4),
    "heavy_tails": (5e-4, 2e-3, 6e-4),
    "minute": (5e-4, 6e-4, 6e-4),
}


def relative(found, exact):
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))


def bf16(x):
    bits = x.view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def errors(case):
    """Of block fixed point and of bf16 operands: forward, input gradient, weight gradient (windows of 256)."""
    x, w, g = case()
    found = forward(x, w), input_gradient(g, w), weight_gradient(g, x, 256)
    x64, w64, g64 = (a.astype(np.float64) for a in (x, w, g))
    exact = x64 @ w64.T, g64 @ w64, g64.T @ x64
    xb, wb, gb = (bf16(a).astype(np.float64) for a in (x, w, g))
    rounded = xb @ wb.T, gb @ wb, gb.T @ xb
    return [relative(f, e) for f, e in zip(found, exact, strict=True)], [
        relative(f, e) for f, e in zip(rounded, exact, strict=True)
    ]


@pytest.mark.parametrize("case", CASES)
def test_error_against_binary64(case):
    for error, bound in zip(errors(case)[0], BOUNDS[case.__name__], strict=True):
        assert error <= bound


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**60])
def test_a_poisoned_activation_stays_in_its_row(value):
    """NaN in the outputs that read it, the bits of the clean product elsewhere."""
    x, w, _ = plain()
    clean = forward(x, w)
    x[200, 17] = value
    y = forward(x, w)
    assert np.isnan(y[200]).all()
    assert np.delete(y, 200, 0).tobytes() == np.delete(clean, 200, 0).tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_poisoned_token_stays_in_its_gradients(value):
    """Its factor is then the largest, so the other gradients lose digits, but none becomes NaN, nor this one finite."""
    x, w, g = plain()
    x[200, 17] = value
    dw = weight_gradient(g, x, 256)
    assert np.isnan(dw[:, 17]).all() and np.isfinite(np.delete(dw, 17, 1)).all()
    g[300, 5] = value
    dw, dx = weight_gradient(g, x, 256), input_gradient(g, w)
    assert np.isnan(dw[5]).all() and np.isfinite(np.delete(np.delete(dw, 5, 0), 17, 1)).all()
    assert np.isnan(dx[300]).all() and np.isfinite(np.delete(dx, 300, 0)).all()


def test_zero_and_the_least_numbers_are_zero():
    """1e-38 beside 1 is nothing; alone it is below the least exponent, hence nothing as well, never NaN."""
    x, w = np.full((3, 200), 1e-38, np.float32), normal(2, 5, 200)
    assert not forward(x, w).any()
    x[:, 0] = 1
    assert relative(forward(x, w), x.astype(np.float64) @ w.T.astype(np.float64)) < 1e-3
    x[:] = 0
    assert forward(x, w).tobytes() == bytes(3 * 5 * 4)


def main():
    print("| inputs | y | dx | dW | bf16: y | dx | dW |\n|---|---|---|---|---|---|---|")
    for case in CASES:
        ours, theirs = errors(case)
        print(f"| {case.__name__.replace('_', ' ')} | " + " | ".join(f"{e:.1e}" for e in ours + theirs) + " |")


if __name__ == "__main__":
    main()
