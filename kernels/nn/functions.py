"""The differentiable functions behind the modules: forward and backward are operators of docs/arithmetic.md.

Every function takes rows: x [R, K], R all tokens of a call. A gradient of a parameter is a sum over rows ascending,
restarting at each window (`segment`); one of a value is what the operator says. Nothing here computes with torch: it
makes memory, and turns it into other shapes.
"""

from __future__ import annotations

from typing import Any

import torch

from bitwitness.kernels import torch_ops
from bitwitness.kernels.dropout_rule import dropout_attributes
from bitwitness.kernels.reduce import sum_f64

torch_ops.register()
ops: Any = torch.ops.bitwitness
Tensor = torch.Tensor


def _filled(shape: torch.Size | tuple[int, ...], like: Tensor, value: float) -> Tensor:
    y = torch.empty(shape, dtype=torch.float32, device=like.device)
    ops.fill(y.view(-1), value=value)
    return y


def _nothing(like: Tensor) -> Tensor:
    """−0 everywhere: the only number that adds nothing to any other."""
    return _filled(like.shape, like, -0.0)


def _copy(x: Tensor) -> Tensor:
    return x.contiguous() if not x.is_contiguous() else x.clone()


class Linear(torch.autograd.Function):
    """y = x Wᵀ; x [R, K], W [N, K]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, segment: int) -> Tensor:
        y = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
        ops.matmul_nt(x, weight, y, accumulate=0)
        ctx.save_for_backward(x, weight)
        ctx.segment = segment
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,) = grads
        x, weight = ctx.saved_tensors
        dy, dx, dw = dy.contiguous(), None, None
        if ctx.needs_input_grad[1]:
            dw = _filled(weight.shape, dy, 0.0)
            ops.matmul_tn(dy, x, dw, accumulate=1, segment=ctx.segment)
        if ctx.needs_input_grad[0]:
            dx = torch.empty(x.shape, dtype=torch.float32, device=x.device)
            ops.matmul_nn(dy, weight, dx, accumulate=0)
        return dx, dw, None


class AddBias(torch.autograd.Function):
    """y = x + b in every row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, segment: int) -> Tensor:
        ctx.segment, ctx.width = segment, bias.shape
        return ops.add_bias(x, bias)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy = grads[0].contiguous()
        db = _filled(ctx.width, dy, 0.0)
        ops.bias_backward(dy, db, segment=ctx.segment)
        return dy, db, None


class Embed(torch.autograd.Function):
    """y_r = E[ids_r]; ids int32 [R], E [V, D]."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return ops.embed(ids, table)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (ids,) = ctx.saved_tensors
        dy = grads[0].contiguous()
        table = _filled(ctx.shape, dy, 0.0)
        ops.embed_backward(ids, dy, table)
        return None, table


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, epsilon: float, segment: int) -> Tensor:
        y, r = ops.rmsnorm(x, gain, epsilon=epsilon)
        ctx.save_for_backward(x, gain, r)
        ctx.segment = segment
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, gain, r = ctx.saved_tensors
        dy, dg = grads[0].contiguous(), _filled(gain.shape, x, 0.0)
        dx = ops.rmsnorm_backward(x, gain, r, dy, _nothing(x), dg, segment=ctx.segment)
        return dx, dg, None, None


class LayerNorm(torch.autograd.Function):
    """Without its bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, epsilon: float, segment: int) -> Tensor:
        y, m, r = ops.layernorm(x, gain, epsilon=epsilon)
        ctx.save_for_backward(x, gain, m, r)
        ctx.segment = segment
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, gain, m, r = ctx.saved_tensors
        dy, dg = grads[0].contiguous(), _filled(gain.shape, x, 0.0)
        dx = ops.layernorm_backward(x, gain, m, r, dy, _nothing(x), dg, segment=ctx.segment)
        return dx, dg, None, None


class Activation(torch.autograd.Function):
    """y = f(x) element by element; f is `silu`, `gelu` or `gelu_tanh`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.name = name
        return getattr(ops, name)(x.view(-1)).view(x.shape)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        dy = grads[0].contiguous()
        return getattr(ops, ctx.name + "_backward")(x.view(-1), dy.view(-1)).view(x.shape), None


class SwiGLU(torch.autograd.Function):
    """h = silu(a)·b; a row of ab [R, 2F] is a, then b."""

    @staticmethod
    def forward(ctx: Any, ab: Tensor) -> Tensor:
        ctx.save_for_backward(ab)
        return ops.swiglu(ab)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (ab,) = ctx.saved_tensors
        return ops.swiglu_backward(ab, grads[0].contiguous())


class Rotary(torch.autograd.Function):
    """Turn the first `heads` heads of each row of q [R, S]; the rest of a row stays."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, heads: int, head_width: int
    ) -> Tensor:
        ctx.save_for_backward(positions, cos, sin)
        ctx.shape = {"heads": heads, "head_width": head_width}
        y = _copy(q)
        ops.rope(y, positions, cos, sin, sign=1, **ctx.shape)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dq = _copy(grads[0])
        ops.rope(dq, *ctx.saved_tensors, sign=-1, **ctx.shape)
        return dq, None, None, None, None, None


class Attention(torch.autograd.Function):
    """Causal attention of the rows of qkv [R, (heads + 2 kv_heads)·d], each seeing the rows from `start` on."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, start: Tensor, heads: int, kv_heads: int, window: int, scale: float) -> Tensor:
        ctx.shape = {"heads": heads, "kv_heads": kv_heads, "window": window, "scale": scale}
        o, m, l = ops.attention(qkv, start, **ctx.shape)  # noqa: E741  the names of docs/arithmetic.md
        ctx.save_for_backward(qkv, start, o, m, l)
        return o  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dqkv = ops.attention_backward(*ctx.saved_tensors, grads[0].contiguous(), **ctx.shape)
        return dqkv, None, None, None, None, None


class Dropout(torch.autograd.Function):
    """The elements whose number, drawn by logical position, is below p become +0; the rest are scaled by 1/(1 − p)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, p: float, key: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(places)
        ctx.attributes = dropout_attributes(p, key)
        return ops.dropout(x, places, **ctx.attributes)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ops.dropout(grads[0].contiguous(), *ctx.saved_tensors, **ctx.attributes), None, None, None


class CrossEntropy(torch.autograd.Function):
    """The sum of token losses over `divisor`, 0-dimensional; logits [R, V], targets int32 [R], −1 ignored."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, z_loss: float, divisor: float) -> Tensor:
        gradient = _copy(logits)
        loss, _nll = ops.cross_entropy(gradient, targets, z_loss=z_loss)
        ctx.save_for_backward(gradient)
        ctx.divisor = divisor
        return torch.tensor(sum_f64(loss) / divisor, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        factor = float(grads[0]) / ctx.divisor
        if factor != 1.0:
            scale = _filled(gradient.shape, gradient, factor)
            gradient = ops.mul(gradient.view(-1), scale.view(-1)).view(gradient.shape)
        return gradient, None, None, None
