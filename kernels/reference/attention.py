"""Attention over a visible range per row, forward and backward (docs/arithmetic.md, "attention")."""

from dataclasses import dataclass

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import functions, sums
from bitwitness.kernels.reference.elementwise import Matrix, Vector

Pairs = dict[tuple[int, int, int], int]
"""(row, head, key) -> a number, for the pairs where the row sees the key."""


@dataclass(frozen=True)
class Layout:
    """A row of qkv: H query heads, then G key heads, then G value heads, each `width` wide."""

    heads: int
    kv_heads: int
    width: int

    def query(self, h: int) -> slice:
        return self._head(h)

    def key(self, g: int) -> slice:
        return self._head(self.heads + g)

    def value(self, g: int) -> slice:
        return self._head(self.heads + self.kv_heads + g)

    def kv_of(self, h: int) -> int:
        return h // (self.heads // self.kv_heads)

    def _head(self, i: int) -> slice:
        return slice(i * self.width, (i + 1) * self.width)


def attention(
    qkv: Matrix, start: list[int], o: Matrix, m: Matrix, total: Matrix,
    *, heads: int, kv_heads: int, scale: int, window: int,
) -> None:  # fmt: skip
    """o = softmax(q k * scale) v over the keys start_r ... r; m, total: scaled maximum and sum of each."""
    layout = Layout(heads, kv_heads, len(o[0]) // heads)
    for r in range(len(qkv)):
        seen = range(start[r], r + 1)
        before = start[r] % window  # unseen rows of the window before the first seen one
        for h in range(heads):
            g = layout.kv_of(h)
            scores = _scores(qkv, r, h, seen, layout)
            greatest = scores[0]
            for s in scores[1:]:
                greatest = f32.maximum(greatest, s)
            m[r][h] = f32.mul(greatest, scale)
            p = [functions.exp(f32.fma(s, scale, f32.neg(m[r][h]))) for s in scores]
            total[r][h] = sums.rowsum(p, offset=before)
            weighted = _over_keys(p, [qkv[j][layout.value(g)] for j in seen], before)
            o[r][layout.query(h)] = [f32.div(x, total[r][h]) for x in weighted]


def attention_backward(
    qkv: Matrix, start: list[int], o: Matrix, m: Matrix, total: Matrix, do: Matrix, dqkv: Matrix,
    *, heads: int, kv_heads: int, scale: int, window: int,
) -> None:  # fmt: skip
    """The gradients of q, k and v, in the layout of qkv."""
    layout = Layout(heads, kv_heads, len(o[0]) // heads)
    p: Pairs = {}
    ds: Pairs = {}
    for r in range(len(qkv)):
        seen = range(start[r], r + 1)
        for h in range(heads):
            g = layout.kv_of(h)
            do_h = do[r][layout.query(h)]
            delta = sums.rowsum_products(do_h, o[r][layout.query(h)])
            for j, s in zip(seen, _scores(qkv, r, h, seen, layout), strict=True):
                e = functions.exp(f32.fma(s, scale, f32.neg(m[r][h])))
                p[r, h, j] = f32.div(e, total[r][h])
                dp = sums.blocksum(do_h, qkv[j][layout.value(g)])
                ds[r, h, j] = f32.mul(f32.mul(p[r, h, j], f32.sub(dp, delta)), scale)
            keys = [qkv[j][layout.key(g)] for j in seen]
            dqkv[r][layout.query(h)] = _over_keys([ds[r, h, j] for j in seen], keys, start[r] % window)
    for j in range(len(qkv)):
        seeing = _seeing(j, start, window)
        for g in range(kv_heads):
            group = [h for h in range(heads) if layout.kv_of(h) == g]
            dqkv[j][layout.key(g)] = _over_queries(ds, qkv, j, group, seeing, layout)
            dqkv[j][layout.value(g)] = _over_queries(p, do, j, group, seeing, layout)


def _scores(qkv: Matrix, r: int, h: int, seen: range, layout: Layout) -> Vector:
    """q . k of row r and head h with each key that it sees."""
    q, g = qkv[r][layout.query(h)], layout.kv_of(h)
    return [sums.blocksum(q, qkv[j][layout.key(g)]) for j in seen]


def _over_keys(weights: Vector, rows: Matrix, before: int) -> Vector:
    """Per element the block sum of weight * row over the seen keys, which follow `before` unseen ones."""
    return [sums.blocksum(weights, column, offset=before) for column in zip(*rows, strict=True)]


def _seeing(j: int, start: list[int], window: int) -> list[list[int]]:
    """The rows that see key j, ascending, by blocks of 256 rows counted from the window's first row."""
    first = j // window * window
    return [
        [r for r in range(max(first + block.start, j), first + block.stop) if start[r] <= j]
        for block in sums.blocks(window)
    ]


def _over_queries(
    weights: Pairs, rows: Matrix, j: int, group: list[int], seeing: list[list[int]], layout: Layout
) -> Vector:
    """dk_j or dv_j: per element the sum over heads ascending, blocks ascending, of the chain weight * row."""
    result = []
    for i in range(layout.width):
        acc = f32.ZERO
        for h in group:
            at = layout.query(h).start + i  # the queries of qkv and the heads of do lie alike
            for block in seeing:
                acc = f32.add(acc, sums.chain((weights[r, h, j], rows[r][at]) for r in block))
        result.append(acc)
    return result
