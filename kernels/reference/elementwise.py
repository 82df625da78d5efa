"""Element by element: fill, add, SwiGLU, AdamW, and the sums of squares of a tensor.

Operators here and beside take their operands in the order of docs/arithmetic.md: lists of binary32 bits (rows
of lists for matrices), outputs written in place. Attributes that are numbers arrive as binary32 bits.
"""

from collections.abc import Sequence

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import functions, sums

Vector = list[int]
Matrix = list[list[int]]

SQUARES_CHUNK = 16384


def fill(y: Vector, *, value: int) -> None:
    """y = value."""
    for i in range(len(y)):
        y[i] = value


def add(a: Vector, b: Vector, y: Vector) -> None:
    """y = a + b; y may be a or b."""
    for i in range(len(y)):
        y[i] = f32.add(a[i], b[i])


def swiglu(ab: Matrix, h: Matrix) -> None:
    """h = (a * sigmoid(a)) * b, a the first half of a row of ab and b the second."""
    for row_ab, row_h in zip(ab, h, strict=True):
        width = len(row_h)
        for i in range(width):
            a, b = row_ab[i], row_ab[width + i]
            row_h[i] = f32.mul(f32.mul(a, functions.sigmoid(a)), b)


def swiglu_backward(ab: Matrix, dh: Matrix, dab: Matrix) -> None:
    """The gradient of `swiglu`; dab may be ab."""
    for row_ab, row_dh, row_dab in zip(ab, dh, dab, strict=True):
        width = len(row_dh)
        for i in range(width):
            a, b, d = row_ab[i], row_ab[width + i], row_dh[i]
            s = functions.sigmoid(a)
            t = f32.mul(a, s)
            row_dab[width + i] = f32.mul(d, t)
            row_dab[i] = f32.mul(f32.mul(d, b), f32.fma(t, f32.sub(f32.ONE, s), s))


def sum_squares(x: Vector, y: Vector) -> None:
    """y_c = the row sum of x*x over chunk c of 16,384 elements."""
    for c in range(len(y)):
        chunk = x[c * SQUARES_CHUNK : (c + 1) * SQUARES_CHUNK]
        y[c] = sums.rowsum_products(chunk, chunk)


def adamw(p: Vector, g: Vector, m: Vector, v: Vector, scalars: Sequence[int]) -> None:
    """One AdamW update of parameters p and moments m, v by the gradient g."""
    grad_scale, new1, beta2, new2, decay, step_size, inv_sqrt_bias2, epsilon = scalars
    for i in range(len(p)):
        scaled = f32.mul(g[i], grad_scale)
        m[i] = f32.fma(f32.sub(scaled, m[i]), new1, m[i])
        v[i] = f32.fma(f32.mul(new2, scaled), scaled, f32.mul(beta2, v[i]))
        root = f32.fma(f32.sqrt(v[i]), inv_sqrt_bias2, epsilon)
        p[i] = f32.fma(f32.neg(step_size), f32.div(m[i], root), f32.mul(p[i], decay))
