"""The operators that only a model of one's own calls (bitwitness.kernels.nn), and what eager PyTorch calls instead."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from bitwitness.kernels.host import round_f32
from bitwitness.trainer.config import RunConfig

from .one_operator import Case, executor, leaf

_DROPPED = 0.1


def module_cases(config: RunConfig) -> dict[str, Callable[[], Case]]:
    """By operator, its operands on the tokens of a step of `config` and what PyTorch does, made when asked for."""
    m, T = config.decoder, config.data.window
    R = T * config.data.windows_per_step
    D, n, eps = m.width, R * m.hidden, m.norm_epsilon
    randn, zeros, aten = torch.randn, torch.zeros, torch.ops.aten

    def copy() -> Case:
        x, y = randn(R * D), zeros(R * D)
        return [x, zeros(R * D)], {}, lambda: y.copy_(x)

    def mul() -> Case:
        a, b = randn(n), randn(n)
        return [a, b, zeros(n)], {}, lambda: a * b

    def add_bias() -> Case:
        x, b = randn(R, D), randn(D)
        return [x, b, zeros(R, D)], {}, lambda: x + b

    def bias_backward() -> Case:
        dy, db = randn(R, D), zeros(D)
        return [dy, zeros(D)], {"segment": T}, lambda: db.add_(dy.sum(0))

    def layernorm() -> Case:
        x, g = randn(R, D), randn(D)
        return [x, g, zeros(R, D), zeros(R), zeros(R)], {"epsilon": eps}, lambda: F.layer_norm(x, (D,), g, None, eps)

    def layernorm_backward() -> Case:
        x, g, dy, dz = leaf(randn(R, D)), leaf(randn(D)), randn(R, D), randn(R, D)
        y, dg, mean, r = F.layer_norm(x, (D,), g, None, eps), zeros(D), zeros(R), zeros(R)
        executor("layernorm", [x.detach(), g.detach(), zeros(R, D), mean, r], {"epsilon": eps}, 1)()

        def theirs() -> None:
            dx, gain = torch.autograd.grad(y, (x, g), dy, retain_graph=True)
            dx.add_(dz)
            dg.add_(gain)

        return [x.detach(), g.detach(), mean, r, dy, dz, zeros(R, D), zeros(D)], {"segment": T}, theirs

    def pointwise(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Case]:
        def case() -> Case:
            x = randn(n)
            return [x, zeros(n)], {}, lambda: function(x)

        return case

    def gradient(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], Case]:
        def case() -> Case:
            x, dy = randn(n), randn(n)
            return [x, dy, zeros(n)], {}, lambda: function(dy, x)

        return case

    def dropout() -> Case:
        x, at = randn(R, D), torch.stack([torch.arange(R) // T, torch.zeros(R), torch.arange(R) % T], dim=1).int()
        scale = round_f32(1.0 / (1.0 - _DROPPED))
        attributes = {"p": round_f32(_DROPPED), "scale": scale, "key0": 1, "key1": 2}
        return [x, at, zeros(R, D)], attributes, lambda: F.dropout(x, _DROPPED)

    return {
        "copy": copy,
        "mul": mul,
        "add_bias": add_bias,
        "bias_backward": bias_backward,
        "layernorm": layernorm,
        "layernorm_backward": layernorm_backward,
        "silu": pointwise(F.silu),
        "silu_backward": gradient(aten.silu_backward),
        "gelu": pointwise(F.gelu),
        "gelu_backward": gradient(aten.gelu_backward),
        "gelu_tanh": pointwise(lambda x: F.gelu(x, approximate="tanh")),
        "gelu_tanh_backward": gradient(lambda dy, x: aten.gelu_backward(dy, x, approximate="tanh")),
        "dropout": dropout,
    }
