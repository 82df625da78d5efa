"""The operators of a step of the built-in model, at its shapes, and what eager PyTorch calls instead.

PyTorch's side is the library's kernel where there is one, a composition where there is none, autograd's backward for
gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from bitwitness.kernels import host
from bitwitness.trainer.config import RunConfig
from bitwitness.trainer.models.layout import Layout
from bitwitness.trainer.models.model import attention_scale

from .eager import rotate
from .gemm import exponents
from .one_operator import Attributes, Case, executor, int16, ints, leaf


def step_cases(config: RunConfig) -> dict[str, Callable[[], Case]]:
    """By operator, its operands in a step of `config` and what PyTorch does instead, made when asked for."""
    m, T = config.model, config.data.window
    R = T * config.data.windows_per_step
    D, Fh, V, H, G, d = m.width, m.hidden, m.vocabulary, m.heads, m.kv_heads, m.head_width
    n, chunk = Layout(m).size, 16384
    torch.manual_seed(0)
    randn, zeros, ids = torch.randn, torch.zeros, torch.randint(V, (R,))
    eps = m.norm_epsilon

    def fill() -> Case:
        x = zeros(R * D)
        return [zeros(R * D)], {"value": 0.5}, lambda: x.fill_(0.5)

    def add() -> Case:
        a, b = randn(n), randn(n)
        mine = a.clone()
        return [mine, b, mine], {}, lambda: a.add_(b)  # in place on both sides, as a fold is

    def matmul(layout: str) -> Callable[[], Case]:
        def case() -> Case:
            x, w, dy = randn(R, D), randn(2 * Fh, D), randn(R, 2 * Fh)
            y, dx, dw = zeros(R, 2 * Fh), zeros(R, D), zeros(2 * Fh, D)
            if layout == "nt":
                return [x, w, zeros(R, 2 * Fh)], {"accumulate": 0}, lambda: torch.mm(x, w.t(), out=y)
            if layout == "nn":
                return [dy, w, zeros(R, D)], {"accumulate": 0}, lambda: torch.mm(dy, w, out=dx)
            return [dy, x, zeros(2 * Fh, D)], {"accumulate": 1, "segment": T}, lambda: dw.addmm_(dy.t(), x)

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
        ours = [x, a, int16(R, -(-D // 128) * 128), zeros(R, -(-D // 128)), ints(R)]
        return ours, {"sign": 1}, lambda: (blocks(torch.ldexp(x, a)), exponents(x))

    def bfp_columns() -> Case:
        x, a = randn(R, D), torch.randint(-3, 3, (R,), dtype=torch.int32)
        per = R // T * -(-T // 128)
        ours = [x, a, int16(D, 128 * per), zeros(D, per)]
        return ours, {"sign": 1, "segment": T}, lambda: blocks(torch.ldexp(x.t(), a).contiguous())

    def matmul_bfp() -> Case:
        x, w, y = randn(R, D), randn(2 * Fh, D), zeros(R, 2 * Fh)
        (p, ps), (q, qs) = (tuple(part.contiguous() for part in blocks(t)) for t in (x, w))
        return [p, ps, q, qs, zeros(R, 2 * Fh)], {"accumulate": 0}, lambda: torch.mm(x, w.t(), out=y)

    def embed() -> Case:
        table = randn(V, D)
        return [ids.int(), table, zeros(R, D)], {}, lambda: F.embedding(ids, table)

    def embed_backward() -> Case:
        dy, grad = randn(R, D), zeros(V, D)
        backward = torch.ops.aten.embedding_dense_backward
        return [ids.int(), dy, zeros(V, D)], {}, lambda: grad.add_(backward(dy, ids, V, -1, False))

    def rmsnorm() -> Case:
        x, g = randn(R, D), randn(D)
        return [x, g, zeros(R, D), zeros(R)], {"epsilon": eps}, lambda: F.rms_norm(x, (D,), g, eps)

    def add_rmsnorm() -> Case:
        x, z, g = randn(R, D), randn(R, D), randn(D)
        ours = [x, z, g, zeros(R, D), zeros(R, D), zeros(R)]
        return ours, {"epsilon": eps}, lambda: F.rms_norm(x + z, (D,), g, eps)

    def rmsnorm_backward() -> Case:
        x, g, dy, dz = leaf(randn(R, D)), leaf(randn(D)), randn(R, D), randn(R, D)
        y, dg = F.rms_norm(x, (D,), g, eps), zeros(D)
        r = (x.detach().square().mean(-1) + eps).rsqrt()

        def theirs() -> None:
            dx, gain = torch.autograd.grad(y, (x, g), dy, retain_graph=True)
            dx.add_(dz)
            dg.add_(gain)

        ours = [x.detach(), g.detach(), r, dy, dz, zeros(R, D), zeros(D)]
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

    shape: Attributes = {"heads": H, "kv_heads": G, "window": T, "scale": attention_scale(d)}
    start = torch.arange(R, dtype=torch.int32) // T * T

    def attend(qkv: torch.Tensor) -> torch.Tensor:
        parts = qkv.view(R // T, T, width).split([H * d, G * d, G * d], dim=-1)
        q, k, v = (part.view(R // T, T, -1, d).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != G)
        return y.transpose(1, 2).reshape(R, H * d)

    def attention() -> Case:
        qkv = randn(R, width)
        return [qkv, start, zeros(R, H * d), zeros(R, H), zeros(R, H)], shape, lambda: attend(qkv)

    def attention_backward() -> Case:
        qkv, do = leaf(randn(R, width)), randn(R, H * d)
        y = attend(qkv)
        saved = [zeros(R, H * d), zeros(R, H), zeros(R, H)]
        executor("attention", [qkv.detach(), start, *saved], shape, 1)()
        ours = [qkv.detach(), start, *saved, do, zeros(R, width)]
        return ours, shape, lambda: torch.autograd.grad(y, qkv, do, retain_graph=True)

    def gated(ab: torch.Tensor) -> torch.Tensor:
        a, b = ab.chunk(2, dim=-1)
        return F.silu(a) * b

    def swiglu() -> Case:
        ab = randn(R, 2 * Fh)
        return [ab, zeros(R, Fh)], {}, lambda: gated(ab)

    def swiglu_backward() -> Case:
        ab, dh = leaf(randn(R, 2 * Fh)), randn(R, Fh)
        h = gated(ab)
        return [ab.detach(), dh, zeros(R, 2 * Fh)], {}, lambda: torch.autograd.grad(h, ab, dh, retain_graph=True)

    def cross_entropy() -> Case:
        logits, x = randn(R, V), randn(R, V).requires_grad_()
        ours = [logits, ids.int(), zeros(R), zeros(R)]
        return ours, {"z_loss": 0.0}, lambda: torch.autograd.grad(F.cross_entropy(x, ids, reduction="sum"), x)

    def cross_entropy_loss() -> Case:
        logits = randn(R, V)
        ours = [logits, ids.int(), zeros(R), zeros(R)]
        return ours, {"z_loss": 0.0}, lambda: F.cross_entropy(logits, ids, reduction="none")

    def sum_squares() -> Case:
        x = randn(n)
        return [x, zeros(-(-n // chunk))], {}, lambda: torch.linalg.vector_norm(x)

    def adamw() -> Case:
        p, g = randn(n).requires_grad_(), randn(n)
        p.grad = g
        optimizer = torch.optim.AdamW([p], lr=1e-3, betas=(0.9, 0.95), fused=True)
        scalars = torch.tensor([1.0, 0.1, 0.95, 0.05, 0.999, 1e-3, 1.0, 1e-8])
        return [randn(n), g, zeros(n), zeros(n), scalars], {}, optimizer.step

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
