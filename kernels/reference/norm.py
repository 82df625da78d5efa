"""RMSNorm and layer norm, forward and backward, and the rotary embedding (docs/arithmetic.md, "Operators")."""

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import sums
from bitwitness.kernels.reference.elementwise import Matrix, Vector
from bitwitness.kernels.reference.elementwise import add as add_elements


def rmsnorm(x: Matrix, g: Vector, y: Matrix, r: Vector, *, epsilon: int) -> None:
    """y = (x * r) * g with r = 1 / sqrt(mean of x*x + epsilon) of each row."""
    width = f32.from_int(len(g))
    for i, row in enumerate(x):
        mean = f32.div(sums.rowsum_products(row, row), width)
        r[i] = f32.div(f32.ONE, f32.sqrt(f32.add(mean, epsilon)))
        y[i][:] = [f32.mul(f32.mul(x_j, r[i]), g_j) for x_j, g_j in zip(row, g, strict=True)]


def add_rmsnorm(x: Matrix, z: Matrix, g: Vector, h: Matrix, y: Matrix, r: Vector, *, epsilon: int) -> None:
    """h = x + z, then `rmsnorm` of h; h may be x."""
    for row_x, row_z, row_h in zip(x, z, h, strict=True):
        add_elements(row_x, row_z, row_h)
    rmsnorm(h, g, y, r, epsilon=epsilon)


def rmsnorm_backward(
    x: Matrix, g: Vector, r: Vector, dy: Matrix, dz: Matrix, dx: Matrix, dg: Vector, *, segment: int
) -> None:
    """dx = dz + the gradient of `rmsnorm` towards x; dg accumulates over rows; dx may be dz."""
    width = f32.from_int(len(g))
    normalized: Matrix = []
    for i, row in enumerate(x):
        scaled = [f32.mul(d, g_j) for d, g_j in zip(dy[i], g, strict=True)]
        s = sums.rowsum_products(scaled, row)
        c = f32.div(f32.mul(f32.mul(f32.mul(s, r[i]), r[i]), r[i]), width)
        for j, x_j in enumerate(row):
            gradient = f32.fma(f32.neg(x_j), c, f32.mul(scaled[j], r[i]))
            dx[i][j] = f32.add(dz[i][j], gradient)
        normalized.append([f32.mul(x_j, r[i]) for x_j in row])
    for j in range(len(g)):
        dg[j] = sums.blocksum([row[j] for row in dy], [row[j] for row in normalized], dg[j], segment)


def layernorm(x: Matrix, g: Vector, y: Matrix, m: Vector, r: Vector, *, epsilon: int) -> None:
    """y = ((x - m) * r) * g with m the mean of each row and r = 1 / sqrt(mean of (x - m)^2 + epsilon)."""
    width = f32.from_int(len(g))
    for i, row in enumerate(x):
        m[i] = f32.div(sums.rowsum(row), width)
        centred = [f32.sub(x_j, m[i]) for x_j in row]
        mean = f32.div(sums.rowsum_products(centred, centred), width)
        r[i] = f32.div(f32.ONE, f32.sqrt(f32.add(mean, epsilon)))
        y[i][:] = [f32.mul(f32.mul(c, r[i]), g_j) for c, g_j in zip(centred, g, strict=True)]


def layernorm_backward(
    x: Matrix, g: Vector, m: Vector, r: Vector, dy: Matrix, dz: Matrix, dx: Matrix, dg: Vector, *, segment: int
) -> None:
    """dx = dz + the gradient of `layernorm` towards x; dg accumulates over rows; dx may be dz."""
    width = f32.from_int(len(g))
    normalized: Matrix = []
    for i, row in enumerate(x):
        n = [f32.mul(f32.sub(x_j, m[i]), r[i]) for x_j in row]
        t = [f32.mul(d, g_j) for d, g_j in zip(dy[i], g, strict=True)]
        a = f32.div(sums.rowsum(t), width)
        c = f32.div(sums.rowsum_products(t, n), width)
        for j, n_j in enumerate(n):
            gradient = f32.mul(f32.fma(f32.neg(n_j), c, f32.sub(t[j], a)), r[i])
            dx[i][j] = f32.add(dz[i][j], gradient)
        normalized.append(n)
    for j in range(len(g)):
        dg[j] = sums.blocksum([row[j] for row in dy], [row[j] for row in normalized], dg[j], segment)


def rope(q: Matrix, pos: list[int], cos: Matrix, sin: Matrix, *, heads: int, head_width: int, sign: int) -> None:
    """Turn elements i and i + d/2 of the first `heads` heads of each row; sign -1 turns back (backward)."""
    half = head_width // 2
    for r, row in enumerate(q):
        for head in range(heads):
            for i in range(half):
                c, s = cos[pos[r]][i], sin[pos[r]][i]
                if sign < 0:
                    s = f32.neg(s)
                first = head * head_width + i
                second = first + half
                a, b = row[first], row[second]
                row[first] = f32.fma(f32.neg(b), s, f32.mul(a, c))
                row[second] = f32.fma(a, s, f32.mul(b, c))
