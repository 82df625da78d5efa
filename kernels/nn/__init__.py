"""Modules for a model of your own, `torch.nn` in shape, every bit defined (docs/your-own-model.md).

    from bitwitness.kernels import nn

    class MLP(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

        def forward(self, x):
            return x + self.down(self.act(self.up(x)))

They run eagerly with autograd, one operator at a time, and `ledger train` captures them into a step program with the
same bits. Between them `+` and `*` of tensors of one shape may stand, and views.
"""

from bitwitness.kernels.initial import Initial

from .declared import initialise, load_parameters
from .layers import (
    GELU,
    CausalSelfAttention,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    PositionEmbedding,
    RMSNorm,
    RotaryEmbedding,
    SiLU,
    SwiGLU,
    named,
)
from .tokens import Tokens, samples, tokens

__all__ = [
    "GELU",
    "CausalSelfAttention",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Initial",
    "LayerNorm",
    "Linear",
    "PositionEmbedding",
    "RMSNorm",
    "RotaryEmbedding",
    "SiLU",
    "SwiGLU",
    "Tokens",
    "initialise",
    "load_parameters",
    "named",
    "samples",
    "tokens",
]
