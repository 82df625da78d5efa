"""The modules, with the signatures of torch.nn where those allow it. x is [..., T, width], width that of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bitwitness.kernels.dropout_rule import dropout_key
from bitwitness.kernels.errors import KernelError, ShapeError
from bitwitness.kernels.initial import Initial

from . import functions
from .declared import Declared
from .tokens import named_tokens, tokens_of

STD = 0.02


def product(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor:
    """x [..., K] times matrices [N_i, K] stacked as one, plus their biases: [..., ΣN_i] in one product."""
    segment = tokens_of(x).window
    weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
    y = _call(functions.Linear, _rows(x, weight.shape[1]), weight, segment)
    given = [bias for bias in biases if bias is not None]
    if given:
        y = _call(functions.AddBias, y, given[0] if len(given) == 1 else torch.cat(given), segment)
    return y.view(*x.shape[:-1], weight.shape[0])


def _rows(x: Tensor, width: int) -> Tensor:
    """x as [R, width]."""
    if x.shape[-1] != width:
        raise ShapeError(f"a module of width {width} got {list(x.shape)}")
    return x.reshape(-1, width)


def _call(function: type[torch.autograd.Function], *arguments: object) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _as_torchs(module: str, **given: object) -> None:
    """Arguments that torch's module has: taken where they say what is so here anyway. Raises KernelError."""
    here = {"device": (None,), "dtype": (None, torch.float32), "inplace": (False,), "elementwise_affine": (True,)}
    for name, value in given.items():
        if not any(value is known for known in here[name]):
            raise KernelError(f"{module}: {name} = {value} is not here; {name} may be {here[name][-1]}")


def _one_width(shape: int | Sequence[int]) -> int:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(sizes) != 1:
        raise ShapeError(f"normalized_shape must be one width, not {list(sizes)}")
    return sizes[0]


class Linear(Declared):
    """y = x Wᵀ + b. `std` is the deviation of the initial weights; a bias begins at 0."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: None = None,
        dtype: torch.dtype | None = None,
        *,
        std: float = STD,
    ) -> None:
        super().__init__()
        _as_torchs("Linear", device=device, dtype=dtype)
        self.in_features, self.out_features = in_features, out_features
        self.initial = {"weight": Initial(std=std), "bias": Initial()}
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features))
        self.bias = torch.nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return product(x, [self.weight], [self.bias])

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Declared):
    """Rows of a table by token id: ids [...] of integers give [..., D]."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, std: float = STD) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.initial = {"weight": Initial(std=std)}
        self.weight = torch.nn.Parameter(torch.empty(num_embeddings, embedding_dim))
        self.reset_parameters()

    def forward(self, ids: Tensor) -> Tensor:
        flat = ids.reshape(-1)
        if flat.dtype != torch.int32:
            flat = flat.to(torch.int32)
        return _call(functions.Embed, flat, self.weight).view(*ids.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class PositionEmbedding(Embedding):
    """x plus a learned row for the position of each token in its window, or in its document where documents reset."""

    def forward(self, x: Tensor) -> Tensor:
        rows = tokens_of(x)
        if rows.window > self.num_embeddings:
            raise ShapeError(f"windows of {rows.window} tokens need as many positions, not {self.num_embeddings}")
        return x + _call(functions.Embed, rows.positions, self.weight).view(x.shape)


class RMSNorm(Declared):
    """x / rms(x) · weight along the last dimension."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True
    ) -> None:
        super().__init__()
        _as_torchs("RMSNorm", elementwise_affine=elementwise_affine)
        self.width, self.eps = _one_width(normalized_shape), 2.0**-23 if eps is None else eps
        self.initial = {"weight": Initial(value=1.0)}
        self.weight = torch.nn.Parameter(torch.empty(self.width))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        rows = _rows(x, self.width)
        return _call(functions.RMSNorm, rows, self.weight, self.eps, tokens_of(x).window).view(x.shape)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"


class LayerNorm(Declared):
    """(x − mean) / deviation · weight + bias along the last dimension."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        _as_torchs("LayerNorm", elementwise_affine=elementwise_affine)
        self.width, self.eps = _one_width(normalized_shape), eps
        self.initial = {"weight": Initial(value=1.0), "bias": Initial()}
        self.weight = torch.nn.Parameter(torch.empty(self.width))
        self.bias = torch.nn.Parameter(torch.empty(self.width)) if bias else None
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        segment = tokens_of(x).window
        y = _call(functions.LayerNorm, _rows(x, self.width), self.weight, self.eps, segment)
        if self.bias is not None:
            y = _call(functions.AddBias, y, self.bias, segment)
        return y.view(x.shape)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, bias={self.bias is not None}"


class SiLU(torch.nn.Module):
    """x · sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        _as_torchs("SiLU", inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        return _call(functions.Activation, _rows(x, x.shape[-1]), "silu").view(x.shape)


class GELU(torch.nn.Module):
    """x · Φ(x), by the error function (`none`) or by the tanh formula (`tanh`)."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise KernelError(f"GELU: approximate must be 'none' or 'tanh', not {approximate!r}")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        name = "gelu_tanh" if self.approximate == "tanh" else "gelu"
        return _call(functions.Activation, _rows(x, x.shape[-1]), name).view(x.shape)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SwiGLU(torch.nn.Module):
    """A gated feed-forward layer: down(silu(gate(x)) · up(x)), gate and up in one product."""

    def __init__(
        self, width: int, hidden: int, bias: bool = False, *, std: float = STD, out_std: float | None = None
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(width, hidden, bias, std=std)
        self.up_proj = Linear(width, hidden, bias, std=std)
        self.down_proj = Linear(hidden, width, bias, std=std if out_std is None else out_std)

    def forward(self, x: Tensor) -> Tensor:
        pair = [self.gate_proj, self.up_proj]
        ab = product(x, [m.weight for m in pair], [m.bias for m in pair])
        h = _call(functions.SwiGLU, _rows(ab, ab.shape[-1]))
        y: Tensor = self.down_proj(h.view(*x.shape[:-1], h.shape[-1]))
        return y


class RotaryEmbedding(torch.nn.Module):
    """Rotary positions of heads `head_width` wide: element i turns with element i + head_width/2."""

    def __init__(self, head_width: int, theta: float = 10000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise ShapeError(f"a head of {head_width} elements does not fall into pairs")
        self.head_width, self.theta = head_width, float(theta)

    def forward(self, x: Tensor, heads: int) -> Tensor:
        """x [..., T, S] with its first `heads` heads turned; what follows them in a row stays."""
        rows = tokens_of(x)
        cos, sin = rows.rotary(self.head_width, self.theta)
        y = _call(functions.Rotary, _rows(x, x.shape[-1]), rows.positions, cos, sin, heads, self.head_width)
        return y.view(x.shape)

    def extra_repr(self) -> str:
        return f"{self.head_width}, theta={self.theta}"


class CausalSelfAttention(torch.nn.Module):
    """Attention of each token to itself and the earlier ones of its window, or document.

    `heads` query heads share `kv_heads` key and value heads (as many, unless given). Query, key and value matrices are
    parameters of their own, read in one product.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        bias: bool = False,
        *,
        rotary: RotaryEmbedding | None = None,
        std: float = STD,
        out_std: float | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if width % heads or heads % kv_heads:
            raise ShapeError(
                f"heads = {heads} must divide width = {width}, and kv_heads = {kv_heads} must divide heads"
            )
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        if rotary is not None and rotary.head_width != self.head_width:
            raise ShapeError(f"the rotary embedding is {rotary.head_width} wide, the heads are {self.head_width}")
        self.q_proj = Linear(width, heads * self.head_width, bias, std=std)
        self.k_proj = Linear(width, kv_heads * self.head_width, bias, std=std)
        self.v_proj = Linear(width, kv_heads * self.head_width, bias, std=std)
        self.o_proj = Linear(heads * self.head_width, width, bias, std=std if out_std is None else out_std)
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        rows, three = tokens_of(x), [self.q_proj, self.k_proj, self.v_proj]
        qkv = product(x, [m.weight for m in three], [m.bias for m in three])
        if self.rotary is not None:
            qkv = self.rotary(qkv, self.heads + self.kv_heads)
        shape = (self.heads, self.kv_heads, rows.window, 1.0 / math.sqrt(self.head_width))
        o = _call(functions.Attention, _rows(qkv, qkv.shape[-1]), rows.start, *shape)
        y: Tensor = self.o_proj(o.view(*x.shape[:-1], o.shape[-1]))
        return y


class Dropout(torch.nn.Module):
    """In training, zero an element with probability p and scale the rest by 1/(1 − p).

    Which ones follows from the seed, the module's name in the model, and the element's logical position (sample, place,
    column), so the masks of a step are the same however it is cut. `named` gives the modules their names.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        _as_torchs("Dropout", inplace=inplace)
        if not 0.0 <= p < 1.0:
            raise KernelError(f"Dropout: p must be from 0 to below 1, not {p}")
        self.p, self.name = float(p), ""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        rows = named_tokens("Dropout")
        flat = _rows(x, x.shape[-1])
        if flat.shape[0] != rows.rows:
            raise ShapeError(f"Dropout got {list(x.shape)}, where the call has {rows.rows} tokens")
        key = dropout_key(rows.seed, self.name)
        return _call(functions.Dropout, flat, rows.places, self.p, key).view(x.shape)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def named(model: torch.nn.Module) -> torch.nn.Module:
    """Tell each Dropout its name in the model; returns the model."""
    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            module.name = name
    return model


class CrossEntropyLoss(torch.nn.Module):
    """Softmax cross-entropy of logits [..., V] and targets [...]: the sum over valid targets, or their mean.

    The sum is made in binary64, ascending, and rounded once. `z_loss` weighs the squared log-partition.
    """

    def __init__(self, *, ignore_index: int = -100, reduction: str = "mean", z_loss: float = 0.0) -> None:
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise KernelError(f"CrossEntropyLoss: reduction must be 'mean' or 'sum', not {reduction!r}")
        self.ignore_index, self.reduction, self.z_loss = ignore_index, reduction, z_loss

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        flat = targets.reshape(-1).to(torch.int32)
        flat = torch.where(flat == self.ignore_index, -1, flat).to(torch.int32)
        valid = int((flat >= 0).sum())
        if self.reduction == "mean" and not valid:
            raise KernelError("CrossEntropyLoss: no target is valid, so the mean is not defined")
        divisor = float(valid) if self.reduction == "mean" else 1.0
        return _call(functions.CrossEntropy, _rows(logits, logits.shape[-1]), flat, self.z_loss, divisor)
