"""`gemm_fp32_vs_torch`, `gemm_bfp_vs_torch`: the matrix products of one step, forward and backward, against torch.mm.

Block fixed point pays for everything that it needs: equilibration, quantising activations and gradients, and quantising
the weights, although a step does that last part once for all its shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bitwitness.kernels.program import Buffer, Executor, Program, ProgramBuilder
from bitwitness.trainer.config import RunConfig
from bitwitness.trainer.models.layout import Layout
from bitwitness.trainer.models.products import matrices, operand

from .interleaved import THREADS, interleave, mean_ratio, ratio


@dataclass(frozen=True)
class Shape:
    """A weight [N, K] used by R tokens in windows of `window`."""

    n: int
    k: int
    rows: int
    window: int


def shapes(config: RunConfig) -> list[Shape]:
    """The distinct matrices of a layer and the head, in the order of the step."""
    rows = config.data.window * config.data.windows_per_step
    slots = matrices(config.decoder, Layout(config.decoder)).values()
    return list(dict.fromkeys(Shape(slot.shape[0], slot.shape[1], rows, config.data.window) for slot in slots))


def bench_gemm(config: RunConfig, rounds: int) -> dict[str, Any]:
    """Geometric means over the shapes of a step and all three layouts, and every shape's ratios."""
    torch.set_num_threads(THREADS)
    table: dict[str, dict[str, float]] = {}
    for shape in shapes(config):
        for layout, contestants in _layouts(shape):
            seconds = interleave(contestants, rounds, rest=0.02)
            table[f"{layout} N={shape.n} K={shape.k} R={shape.rows}"] = {
                name: round(ratio(seconds[name], seconds["torch"]), 3) for name in ("fp32", "bfp")
            }
    means = {name: round(mean_ratio([row[name] for row in table.values()]), 3) for name in ("fp32", "bfp")}
    return {"means": means, "shapes": table, "rounds": rounds, "threads": THREADS}


def _layouts(shape: Shape) -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
    x, dy, w = torch.randn(shape.rows, shape.k), torch.randn(shape.rows, shape.n), torch.randn(shape.n, shape.k)
    y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.zeros_like(w)
    products = {
        "forward": ((x, w, y), lambda: torch.mm(x, w.t(), out=y)),
        "input gradient": ((dy, w, dx), lambda: torch.mm(dy, w, out=dx)),
        "weight gradient": ((dy, x, dw), lambda: dw.addmm_(dy.t(), x)),
    }
    # What the quantiser of an earlier product in the step leaves behind.
    known = {"w_rows": exponents(w), "dy_rows": exponents(dy), "x_rows": exponents(x)}
    for layout, (operands, torch_mm) in products.items():
        bound = dict(zip(("left", "right", "out"), operands, strict=True))
        contestants: dict[str, Callable[[], object]] = {"torch": torch_mm}
        for precision, emit in (("fp32", float32), ("bfp", block_fixed_point)):
            contestants[precision] = _runner(emit(layout, shape), {**bound, **known})
        yield layout, contestants


def _runner(program: Program, arrays: dict[str, torch.Tensor]) -> Callable[[], object]:
    executor = Executor(program, THREADS)
    bound = {buffer.name: arrays[buffer.name] for buffer in program.external}
    return lambda: executor.run(bound)


def exponents(x: torch.Tensor) -> torch.Tensor:
    """Of the greatest magnitude of each row, as `bfp_rows` finds them."""
    return torch.frexp(x.abs().amax(1)).exponent.int()


def _begin(layout: str, shape: Shape) -> tuple[ProgramBuilder, Buffer, Buffer, Buffer]:
    b = ProgramBuilder()
    extents = {"x": (shape.rows, shape.k), "dy": (shape.rows, shape.n), "w": (shape.n, shape.k)}
    operands = {"forward": "x w dy", "input gradient": "dy w x", "weight gradient": "dy x w"}[layout].split()
    left, right = (b.buffer(n, extents[o], kind="input") for n, o in zip(("left", "right"), operands, strict=False))
    accumulates = layout == "weight gradient"
    return b, left, right, b.buffer("out", extents[operands[2]], kind="inout" if accumulates else "output")


def float32(layout: str, shape: Shape) -> Program:
    b, left, right, out = _begin(layout, shape)
    if layout == "forward":
        b.call("matmul_nt", left, right, out, accumulate=0)
    elif layout == "input gradient":
        b.call("matmul_nn", left, right, out, accumulate=0)
    else:
        b.call("matmul_tn", left, right, out, accumulate=1, segment=shape.window)
    return b.build()


def block_fixed_point(layout: str, shape: Shape) -> Program:
    """A product with all that it quantises (trainer/models/products.py emits the same calls into a step)."""
    b, left, right, out = _begin(layout, shape)

    def rows(name: str, x: Buffer, a: Buffer, sign: int) -> tuple[Buffer, Buffer]:
        q, s = operand(b, name, x.shape[0], -(-x.shape[1] // 128))
        b.call("bfp_rows", x, a, q, s, b.buffer(name + ".e", x.shape[:1], "I32"), sign=sign)
        return q, s

    def columns(name: str, x: Buffer, a: Buffer, sign: int, segment: int) -> tuple[Buffer, Buffer]:
        q, s = operand(b, name, x.shape[1], x.shape[0] // segment * -(-segment // 128))
        b.call("bfp_columns", x, a, q, s, sign=sign, segment=segment)
        return q, s

    if layout == "forward":
        a = b.buffer("a", (shape.k,), "I32")
        b.call("bfp_exponents", right, a)
        p, q = rows("x", left, a, 1), rows("w", right, a, -1)
    elif layout == "input gradient":
        a = b.buffer("w_rows", (shape.n,), "I32", "input")
        p, q = rows("dy", left, a, 1), columns("w", right, a, -1, shape.n)
    else:
        of_dy, of_x = (b.buffer(name, (shape.rows,), "I32", "input") for name in ("dy_rows", "x_rows"))
        a = b.buffer("a", (shape.rows,), "I32")
        b.call("bfp_balance", of_dy, of_x, a)
        p, q = columns("dy", left, a, -1, shape.window), columns("x", right, a, 1, shape.window)
    b.call("matmul_bfp", *p, *q, out, accumulate=int(layout == "weight gradient"))
    return b.build()
