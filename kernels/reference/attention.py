"""Attention over a visible range per row, forward and backward (docs/arithmetic.md, "attention")."""

from collections.abc import Iterator
from dataclasses import dataclass

from bitwitness.kernels.reference import binary32 as f32
from bitwitness.kernels.reference import functions, sums
from bitwitness.kernels.reference.elementwise import Matrix, Vector


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
        first = r // window * window
        seen = range(start[r], r + 1)
        for h in range(heads):
            g = layout.kv_of(h)
            scores = _scores(qkv, r, h, seen, layout)
            greatest = scores[0]
            for s in scores[1:]:
                greatest = f32.maximum(greatest, s)
            m[r][h] = f32.mul(greatest, scale)
            p = [functions.exp(f32.fma(s, scale, f32.neg(m[r][h]))) for s in scores]
            # Unseen keys from the window's first row to start_r add +0 to their lanes: nothing changes.
            total[r][h] = sums.rowsum([f32.ZERO] * (start[r] - first) + p)
            weighted = _over_keys(p, seen, first, [qkv[j][layout.value(g)] for j in seen])
            o[r][layout.query(h)] = [f32.div(x, total[r][h]) for x in weighted]


def attention_backward(
    qkv: Matrix, start: list[int], o: Matrix, m: Matrix, total: Matrix, do: Matrix, dqkv: Matrix,
    *, heads: int, kv_heads: int, scale: int, window: int,
) -> None:  # fmt: skip
    """The gradients of q, k and v, in the layout of qkv."""
    layout = Layout(heads, kv_heads, len(o[0]) // heads)
    p: dict[tuple[int, int, int], int] = {}  # (row, head, key) -> probability, for the pairs that are seen
    ds: dict[tuple[int, int, int], int] = {}
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
            dqkv[r][layout.query(h)] = _over_keys(
                [ds[r, h, j] for j in seen], seen, r // window * window, [qkv[j][layout.key(g)] for j in seen]
            )
    for j in range(len(qkv)):
        first = j // window * window
        queries = range(first, min(first + window, len(qkv)))
        seeing = [r for r in queries if start[r] <= j <= r]
        for g in range(kv_heads):
            group = [h for h in range(heads) if layout.kv_of(h) == g]
            dqkv[j][layout.key(g)] = [
                _over_queries(ds, j, group, seeing, first, [qkv[r] for r in seeing], layout, i)
                for i in range(layout.width)
            ]
            dqkv[j][layout.value(g)] = [
                _over_queries(p, j, group, seeing, first, [do[r] for r in seeing], layout, i)
                for i in range(layout.width)
            ]


def _scores(qkv: Matrix, r: int, h: int, seen: range, layout: Layout) -> Vector:
    """q . k of row r and head h with each key that it sees."""
    q, g = qkv[r][layout.query(h)], layout.kv_of(h)
    return [sums.blocksum(q, qkv[j][layout.key(g)]) for j in seen]


def _over_keys(weights: Vector, seen: range, first: int, rows: Matrix) -> Vector:
    """Per element the sum of weight * row over the seen keys, in blocks from the window's first row."""
    result = []
    for i in range(len(rows[0])):
        acc = f32.ZERO
        for block in _aligned_blocks(list(seen), first):
            acc = f32.add(acc, sums.chain((weights[j - seen.start], rows[j - seen.start][i]) for j in block))
        result.append(acc)
    return result


def _over_queries(
    weights: dict[tuple[int, int, int], int], j: int, group: list[int], seeing: list[int], first: int,
    rows: Matrix, layout: Layout, i: int,
) -> int:  # fmt: skip
    """Element i of dk_j or dv_j: heads ascending, in each blocks of queries, in each a chain."""
    acc = f32.ZERO
    for h in group:
        at = layout.query(h).start + i
        row_of = dict(zip(seeing, rows, strict=True))
        for block in _aligned_blocks(seeing, first):
            acc = f32.add(acc, sums.chain((weights[r, h, j], row_of[r][at]) for r in block))
    return acc


def _aligned_blocks(rows: list[int], first: int) -> Iterator[list[int]]:
    """Ascending rows, cut where the distance from `first` passes a multiple of 256; no empty blocks."""
    block: list[int] = []
    for row in rows:
        if block and (row - first) // sums.BLOCK != (block[-1] - first) // sums.BLOCK:
            yield block
            block = []
        block.append(row)
    if block:
        yield block
