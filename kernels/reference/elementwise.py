"""Element by element: fill, copy, add, mul, biases, SwiGLU, SiLU, GELU, dropout, AdamW, and sums of squares.

Operators here and beside take their operands in the order of docs/arithmetic.md: lists of binary32 bits (rows
of lists for matrices), outputs written in place. Attributes that are numbers arrive as binary32 bits.
"""

from collections.abc import Sequence

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import functions, philox, sums

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


def copy(x: Vector, y: Vector) -> None:
    """y = x, bit for bit."""
    y[:] = x


def mul(a: Vector, b: Vector, y: Vector) -> None:
    """y = a * b; y may be a or b."""
    for i in range(len(y)):
        y[i] = f32.mul(a[i], b[i])


def add_bias(x: Matrix, b: Vector, y: Matrix) -> None:
    """y = x + b in every row; y may be x."""
    for row_x, row_y in zip(x, y, strict=True):
        add(row_x, b, row_y)


def bias_backward(dy: Matrix, db: Vector, *, segment: int) -> None:
    """db accumulates over rows: a block sum of dy."""
    ones = [f32.ONE] * len(dy)
    for j in range(len(db)):
        db[j] = sums.blocksum([row[j] for row in dy], ones, db[j], segment)


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


def silu(x: Vector, y: Vector) -> None:
    """y = x * sigmoid(x); y may be x."""
    for i, x_i in enumerate(x):
        y[i] = f32.mul(x_i, functions.sigmoid(x_i))


def silu_backward(x: Vector, dy: Vector, dx: Vector) -> None:
    """The gradient of `silu`; dx may be x or dy."""
    for i, (x_i, d) in enumerate(zip(x, dy, strict=True)):
        s = functions.sigmoid(x_i)
        dx[i] = f32.mul(d, f32.fma(f32.mul(x_i, s), f32.sub(f32.ONE, s), s))


SQRT_HALF, INVERSE_SQRT_2PI = 0x3F3504F3, 0x3ECC422A
HALF, MINUS_HALF = 0x3F000000, 0xBF000000
GELU_LINEAR, GELU_CUBIC, GELU_SLOPE = 0x3FCC422A, 0x3D922279, 0x3E5B33B6


def _normal_distribution(x: int) -> int:
    return f32.mul(f32.add(f32.ONE, functions.erf(f32.mul(x, SQRT_HALF))), HALF)


def gelu(x: Vector, y: Vector) -> None:
    """y = x times the normal distribution at x; y may be x."""
    for i, x_i in enumerate(x):
        y[i] = f32.mul(x_i, _normal_distribution(x_i))


def gelu_backward(x: Vector, dy: Vector, dx: Vector) -> None:
    """The gradient of `gelu`; dx may be x or dy."""
    for i, (x_i, d) in enumerate(zip(x, dy, strict=True)):
        density = f32.mul(functions.exp(f32.mul(f32.mul(x_i, x_i), MINUS_HALF)), INVERSE_SQRT_2PI)
        dx[i] = f32.mul(d, f32.fma(x_i, density, _normal_distribution(x_i)))


def _gelu_sigmoid(x: int) -> int:
    return functions.sigmoid(f32.mul(x, f32.fma(f32.mul(x, x), GELU_CUBIC, GELU_LINEAR)))


def gelu_tanh(x: Vector, y: Vector) -> None:
    """GELU by the tanh formula, written with sigmoid; y may be x."""
    for i, x_i in enumerate(x):
        y[i] = f32.mul(x_i, _gelu_sigmoid(x_i))


def gelu_tanh_backward(x: Vector, dy: Vector, dx: Vector) -> None:
    """The gradient of `gelu_tanh`; dx may be x or dy."""
    for i, (x_i, d) in enumerate(zip(x, dy, strict=True)):
        s = _gelu_sigmoid(x_i)
        slope = f32.fma(f32.mul(x_i, x_i), GELU_SLOPE, GELU_LINEAR)
        dx[i] = f32.mul(d, f32.fma(f32.mul(f32.mul(x_i, s), f32.sub(f32.ONE, s)), slope, s))


def dropout(x: Matrix, at: list[list[int]], y: Matrix, *, p: int, scale: int, key0: int, key1: int) -> None:
    """y = x * scale, or +0 where the uniform number of the element's position is below p; y may be x."""
    key = key0 & 0xFFFFFFFF, key1 & 0xFFFFFFFF
    for row_x, position, row_y in zip(x, at, y, strict=True):
        low, high, place = (word & 0xFFFFFFFF for word in position)
        for j, x_j in enumerate(row_x):
            words = philox.philox4x32((j // 4, low, high, place), key)
            u = f32.rounded(words[j % 4] >> 8 << 125)  # times 2^-24
            row_y[j] = f32.ZERO if f32.greater(p, u) else f32.mul(x_j, scale)


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
