"""Matrix products and the embedding (docs/arithmetic.md, "Operators")."""

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import sums
from bitwitness.kernels.reference.elementwise import Matrix


def matmul_nn(a: Matrix, b: Matrix, c: Matrix, *, accumulate: int) -> None:
    """C[M,N] = A[M,K] B[K,N], or C + that where accumulate is 1."""
    _matmul(a, _transposed(b), c, accumulate, 0)


def matmul_nt(a: Matrix, b: Matrix, c: Matrix, *, accumulate: int) -> None:
    """The same with B given as [N,K]."""
    _matmul(a, b, c, accumulate, 0)


def matmul_tn(a: Matrix, b: Matrix, c: Matrix, *, accumulate: int, segment: int) -> None:
    """The same with A given as [K,M]; blocks restart at each multiple of segment (0: none)."""
    _matmul(_transposed(a), _transposed(b), c, accumulate, segment)


def embed(ids: list[int], table: Matrix, y: Matrix) -> None:
    """y_r = table[ids_r]."""
    for r, token in enumerate(ids):
        y[r][:] = table[token]


def embed_backward(ids: list[int], dy: Matrix, dtable: Matrix) -> None:
    """Each row of dy is added to the gradient row of its token, rows ascending."""
    for r, token in enumerate(ids):
        dtable[token][:] = map(f32.add, dtable[token], dy[r])


def _matmul(a: Matrix, b: Matrix, c: Matrix, accumulate: int, segment: int) -> None:
    """c[i][j] = blocksum of the rows a[i] and b[j]."""
    for i, row_a in enumerate(a):
        for j, row_b in enumerate(b):
            c[i][j] = sums.blocksum(row_a, row_b, c[i][j] if accumulate else f32.ZERO, segment)


def _transposed(m: Matrix) -> Matrix:
    return [list(column) for column in zip(*m, strict=True)]
