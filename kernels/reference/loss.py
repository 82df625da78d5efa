"""Softmax cross-entropy with z-loss, with and without its gradient (docs/arithmetic.md, "Operators")."""

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import functions, sums
from bitwitness.kernels.reference.elementwise import Matrix, Vector

IGNORED = -1


def cross_entropy(x: Matrix, target: list[int], loss: Vector, nll: Vector, *, z_loss: int) -> None:
    """Logits x become their gradient of the sum of losses; a row with target -1 gives +0 everywhere."""
    for r, row in enumerate(x):
        if target[r] == IGNORED:
            loss[r] = nll[r] = f32.ZERO
            row[:] = [f32.ZERO] * len(row)
            continue
        exponentials, total, u = _row(row)
        _losses(row, target[r], u, z_loss, loss, nll, r)
        factor = f32.fma(f32.mul(f32.TWO, z_loss), u, f32.ONE)
        row[:] = [f32.mul(f32.div(e, total), factor) for e in exponentials]
        row[target[r]] = f32.sub(row[target[r]], f32.ONE)


def cross_entropy_loss(x: Matrix, target: list[int], loss: Vector, nll: Vector, *, z_loss: int) -> None:
    """The losses of `cross_entropy` alone; x stays."""
    for r, row in enumerate(x):
        if target[r] == IGNORED:
            loss[r] = nll[r] = f32.ZERO
        else:
            _losses(row, target[r], _row(row)[2], z_loss, loss, nll, r)


def _row(row: Vector) -> tuple[Vector, int, int]:
    """exp(x - m), their row sum, and u = log(sum) + m, m the maximum of the row."""
    m = row[0]
    for x in row[1:]:
        m = f32.maximum(m, x)
    exponentials = [functions.exp(f32.sub(x, m)) for x in row]
    total = sums.rowsum(exponentials)
    return exponentials, total, f32.add(functions.log(total), m)


def _losses(row: Vector, target: int, u: int, z_loss: int, loss: Vector, nll: Vector, r: int) -> None:
    nll[r] = f32.sub(u, row[target])
    loss[r] = f32.fma(f32.mul(z_loss, u), u, nll[r])
