"""`operators`: every operator of a training step against what PyTorch has for it, at the shapes of that step.

Wall seconds are medians of turns; CPU seconds are the process's own, one thread on each side, least of the rounds:
they say something on a busy machine as well. PyTorch's side is what eager code would call: the library's kernel where
there is one, a composition where there is none, autograd's backward for gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from bitwitness.kernels import host
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import Buffer, Executor, ProgramBuilder
from bitwitness.trainer.config import RunConfig
from bitwitness.trainer.layout import Layout
from bitwitness.trainer.model import attention_scale

from .eager import rotate
from .gemm import exponents
from .interleaved import THREADS, interleave, ratio

Theirs = Callable[[], object]
Case = tuple[list[torch.Tensor], dict[str, int | float], Theirs]
"""Our operands and attributes, and PyTorch's call."""


def cases(config: RunConfig) -> dict[str, Callable[[], Case]]:
    """By operator, its operands in a step of `config` and what PyTorch does instead, made when asked for."""
    m, T = config.model, config.data.window
    R = T * config.data.windows_per_step
    D, Fh, V, H, G, d = m.width, m.hidden, m.vocabulary, m.heads, m.kv_heads, m.head_width
    n, chunk = Layout(m).size, 16384
    torch.manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape)

    def empty(*shape: int) -> torch.Tensor:
        return torch.zeros(shape)

    def ints(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    def int16(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int16)

    def leaf(x: torch.Tensor) -> torch.Tensor:
        return x.clone().requires_grad_()

    ids = torch.randint(V, (R,))
    eps = m.norm_epsilon

    def fill() -> Case:
        x = empty(R * D)
        return [empty(R * D)], {"value": 0.5}, lambda: x.fill_(0.5)

    def add() -> Case:
        a, b = randn(n), randn(n)
        mine = a.clone()
        return [mine, b, mine], {}, lambda: a.add_(b)  # in place on both sides, as a fold is

    def matmul(layout: str) -> Callable[[], Case]:
        def case() -> Case:
            x, w, dy = randn(R, D), randn(2 * Fh, D), randn(R, 2 * Fh)
            y, dx, dw = empty(R, 2 * Fh), empty(R, D), empty(2 * Fh, D)
            if layout == "nt":
                return [x, w, empty(R, 2 * Fh)], {"accumulate": 0}, lambda: torch.mm(x, w.t(), out=y)
            if layout == "nn":
                return [dy, w, empty(R, D)], {"accumulate": 0}, lambda: torch.mm(dy, w, out=dx)
            return [dy, x, empty(2 * Fh, D)], {"accumulate": 1, "segment": T}, lambda: dw.addmm_(dy.t(), x)

        return case

    def blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = F.pad(x, (0, -x.shape[-1] % 128)).view(x.shape[0], -1, 128)
        exponent = torch.frexp(parts.abs().amax(-1, keepdim=True)).exponent
        q = torch.ldexp(parts, 12 - exponent).round_().clamp_(-4095, 4095).to(torch.int16)
        return q.view(x.shape[0], -1), torch.ldexp(
            torch.ones_like(exponent, dtype=torch.float32), exponent - 12
        ).squeeze(-1)

    def bfp_exponents() -> Case:
        w = randn(2 * Fh, D)
        return [w, ints(D)], {}, lambda: exponents(w.t())

    def bfp_balance() -> Case:
        g, x = (torch.randint(-9, 9, (R,), dtype=torch.int32) for _ in range(2))
        return [g, x, ints(R)], {}, lambda: (g - x) >> 1

    def bfp_rows() -> Case:
        x, a = randn(R, D), torch.randint(-3, 3, (D,), dtype=torch.int32)
        ours = [x, a, int16(R, -(-D // 128) * 128), empty(R, -(-D // 128)), ints(R)]
        return ours, {"sign": 1}, lambda: (blocks(torch.ldexp(x, a)), exponents(x))

    def bfp_columns() -> Case:
        x, a = randn(R, D), torch.randint(-3, 3, (R,), dtype=torch.int32)
        per = R // T * -(-T // 128)
        ours = [x, a, int16(D, 128 * per), empty(D, per)]
        return ours, {"sign": 1, "segment": T}, lambda: blocks(torch.ldexp(x.t(), a).contiguous())

    def matmul_bfp() -> Case:
        x, w, y = randn(R, D), randn(2 * Fh, D), empty(R, 2 * Fh)
        (p, ps), (q, qs) = (tuple(part.contiguous() for part in blocks(t)) for t in (x, w))
        return [p, ps, q, qs, empty(R, 2 * Fh)], {"accumulate": 0}, lambda: torch.mm(x, w.t(), out=y)

    def embed() -> Case:
        table = randn(V, D)
        return [ids.int(), table, empty(R, D)], {}, lambda: F.embedding(ids, table)

    def embed_backward() -> Case:
        dy, grad = randn(R, D), empty(V, D)
        backward = torch.ops.aten.embedding_dense_backward
        return [ids.int(), dy, empty(V, D)], {}, lambda: grad.add_(backward(dy, ids, V, -1, False))

    def rmsnorm() -> Case:
        x, g = randn(R, D), randn(D)
        return [x, g, empty(R, D), empty(R)], {"epsilon": eps}, lambda: F.rms_norm(x, (D,), g, eps)

    def add_rmsnorm() -> Case:
        x, z, g = randn(R, D), randn(R, D), randn(D)
        ours = [x, z, g, empty(R, D), empty(R, D), empty(R)]
        return ours, {"epsilon": eps}, lambda: F.rms_norm(x + z, (D,), g, eps)

    def rmsnorm_backward() -> Case:
        x, g, dy, dz = leaf(randn(R, D)), leaf(randn(D)), randn(R, D), randn(R, D)
        y, dg = F.rms_norm(x, (D,), g, eps), empty(D)
        r = (x.detach().square().mean(-1) + eps).rsqrt()

        def theirs() -> None:
            dx, gain = torch.autograd.grad(y, (x, g), dy, retain_graph=True)
            dx.add_(dz)
            dg.add_(gain)

        ours = [x.detach(), g.detach(), r, dy, dz, empty(R, D), empty(D)]
        return ours, {"segment": T}, theirs

    angles = torch.outer(torch.arange(T), m.rope_theta ** (-torch.arange(d // 2) / (d // 2)))
    cos, sin = angles.cos(), angles.sin()
    width = (H + 2 * G) * d

    def rope() -> Case:
        qkv = randn(R, width)
        tables = list(host.rope_tables(range(T), d, m.rope_theta))
        positions = torch.arange(T, dtype=torch.int32).repeat(R // T)
        heads = qkv[:, : (H + G) * d].view(R // T, T, H + G, d).transpose(1, 2)
        ours = [qkv.clone(), positions, *tables]
        return ours, {"heads": H + G, "head_width": d, "sign": 1}, lambda: rotate(heads, cos, sin)

    shape: dict[str, int | float] = {"heads": H, "kv_heads": G, "window": T, "scale": attention_scale(d)}
    start = torch.arange(R, dtype=torch.int32) // T * T

    def attend(qkv: torch.Tensor) -> torch.Tensor:
        parts = qkv.view(R // T, T, width).split([H * d, G * d, G * d], dim=-1)
        q, k, v = (part.view(R // T, T, -1, d).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != G)
        return y.transpose(1, 2).reshape(R, H * d)

    def attention() -> Case:
        qkv = randn(R, width)
        return [qkv, start, empty(R, H * d), empty(R, H), empty(R, H)], shape, lambda: attend(qkv)

    def attention_backward() -> Case:
        qkv, do = leaf(randn(R, width)), randn(R, H * d)
        y = attend(qkv)
        saved = [empty(R, H * d), empty(R, H), empty(R, H)]
        _executor("attention", [qkv.detach(), start, *saved], shape, 1)()
        ours = [qkv.detach(), start, *saved, do, empty(R, width)]
        return ours, shape, lambda: torch.autograd.grad(y, qkv, do, retain_graph=True)

    def gated(ab: torch.Tensor) -> torch.Tensor:
        a, b = ab.chunk(2, dim=-1)
        return F.silu(a) * b

    def swiglu() -> Case:
        ab = randn(R, 2 * Fh)
        return [ab, empty(R, Fh)], {}, lambda: gated(ab)

    def swiglu_backward() -> Case:
        ab, dh = leaf(randn(R, 2 * Fh)), randn(R, Fh)
        h = gated(ab)
        return [ab.detach(), dh, empty(R, 2 * Fh)], {}, lambda: torch.autograd.grad(h, ab, dh, retain_graph=True)

    def cross_entropy() -> Case:
        logits, x = randn(R, V), randn(R, V).requires_grad_()
        ours = [logits, ids.int(), empty(R), empty(R)]
        return ours, {"z_loss": 0.0}, lambda: torch.autograd.grad(F.cross_entropy(x, ids, reduction="sum"), x)

    def cross_entropy_loss() -> Case:
        logits = randn(R, V)
        ours = [logits, ids.int(), empty(R), empty(R)]
        return ours, {"z_loss": 0.0}, lambda: F.cross_entropy(logits, ids, reduction="none")

    def sum_squares() -> Case:
        x = randn(n)
        return [x, empty(-(-n // chunk))], {}, lambda: torch.linalg.vector_norm(x)

    def adamw() -> Case:
        p, g = randn(n).requires_grad_(), randn(n)
        p.grad = g
        optimizer = torch.optim.AdamW([p], lr=1e-3, betas=(0.9, 0.95), fused=True)
        scalars = torch.tensor([1.0, 0.1, 0.95, 0.05, 0.999, 1e-3, 1.0, 1e-8])
        return [randn(n), g, empty(n), empty(n), scalars], {}, optimizer.step

    return {
        "fill": fill,
        "add": add,
        "matmul_nn": matmul("nn"),
        "matmul_nt": matmul("nt"),
        "matmul_tn": matmul("tn"),
        "bfp_exponents": bfp_exponents,
        "bfp_balance": bfp_balance,
        "bfp_rows": bfp_rows,
        "bfp_columns": bfp_columns,
        "matmul_bfp": matmul_bfp,
        "embed": embed,
        "embed_backward": embed_backward,
        "rmsnorm": rmsnorm,
        "add_rmsnorm": add_rmsnorm,
        "rmsnorm_backward": rmsnorm_backward,
        "rope": rope,
        "attention": attention,
        "attention_backward": attention_backward,
        "swiglu": swiglu,
        "swiglu_backward": swiglu_backward,
        "cross_entropy": cross_entropy,
        "cross_entropy_loss": cross_entropy_loss,
        "sum_squares": sum_squares,
        "adamw": adamw,
    }


def _executor(
    op: str, operands: list[torch.Tensor], attributes: dict[str, int | float], threads: int
) -> Callable[[], None]:
    b = ProgramBuilder()
    buffers: dict[int, Buffer] = {}
    bound = {}
    for spec, array in zip(OPERATORS[op].operands, operands, strict=True):
        if id(array) in buffers:
            continue
        directions = {s.direction for s, a in zip(OPERATORS[op].operands, operands, strict=True) if a is array}
        kind: Any = {"in": "input", "out": "output"}.get(directions.pop() if len(directions) == 1 else "", "inout")
        dtype: Any = spec.dtype
        buffers[id(array)] = b.buffer(spec.name, tuple(array.shape), dtype, kind)
        bound[spec.name] = array
    b.call(op, *(buffers[id(array)] for array in operands), **attributes)
    executor = Executor(b.build(), threads)
    return lambda: executor.run(bound)


def bench_operators(config: RunConfig, rounds: int, only: tuple[str, ...] = ()) -> dict[str, dict[str, float]]:
    """By operator: the ratio of medians at two threads, that of least CPU seconds at one, and our milliseconds."""
    return {op: _measure(op, make(), rounds) for op, make in cases(config).items() if not only or op in only}


def _measure(op: str, case: Case, rounds: int) -> dict[str, float]:
    operands, attributes, theirs = case
    torch.set_num_threads(THREADS)
    contestants = {"ours": _executor(op, operands, attributes, THREADS), "torch": theirs}
    seconds = interleave(contestants, rounds, rest=0.02)
    torch.set_num_threads(1)
    contestants["ours"] = _executor(op, operands, attributes, 1)
    least = {name: _least_cpu(run, rounds) for name, run in contestants.items()}
    torch.set_num_threads(THREADS)
    return {
        "ratio": round(ratio(seconds["ours"], seconds["torch"]), 3),
        "cpu_ratio": round(least["ours"] / least["torch"], 3),
        "ms": round(1000 * sorted(seconds["ours"])[len(seconds["ours"]) // 2], 3),
    }


def _least_cpu(run: Callable[[], object], rounds: int) -> float:
    """CPU seconds of one call: the least of the rounds, each long enough for the clock."""
    run()
    began = time.process_time()
    run()
    count = max(1, round(0.005 / max(time.process_time() - began, 1e-6)))
    least = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(count):
            run()
        least = min(least, (time.process_time() - began) / count)
    return least


def table(results: dict[str, dict[str, float]]) -> str:
    """The results as a table of Markdown."""
    lines = ["| operator | over torch, 2 threads | over torch, CPU seconds of 1 thread | ms |", "|---|---|---|---|"]
    lines += [
        f"| `{op}` | {row['ratio']:.2f} | {row['cpu_ratio']:.2f} | {row['ms']:.2f} |" for op, row in results.items()
    ]
    return "\n".join(lines) + "\n"
