"""The fair baseline: the same decoder in plain PyTorch, eager, float32, written as its users would write it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from bitwitness.trainer.config import Model


class Attention(nn.Module):
    def __init__(self, m: Model) -> None:
        super().__init__()
        self.m = m
        d = m.head_width
        self.qkv = nn.Linear(m.width, (m.heads + 2 * m.kv_heads) * d, bias=False)
        self.o = nn.Linear(m.heads * d, m.width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        m, d = self.m, self.m.head_width
        B, T, _ = x.shape
        q, k, v = self.qkv(x).split([m.heads * d, m.kv_heads * d, m.kv_heads * d], dim=-1)
        q, k, v = (t.view(B, T, -1, d).transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=m.heads != m.kv_heads)
        out: torch.Tensor = self.o(y.transpose(1, 2).reshape(B, T, -1))
        return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    def __init__(self, m: Model) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(m.width, eps=m.norm_epsilon)
        self.attention = Attention(m)
        self.norm2 = nn.RMSNorm(m.width, eps=m.norm_epsilon)
        self.gate_up = nn.Linear(m.width, 2 * m.hidden, bias=False)
        self.down = nn.Linear(m.hidden, m.width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        out: torch.Tensor = x + self.down(F.silu(gate) * up)
        return out


class Decoder(nn.Module):
    def __init__(self, m: Model, window: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(m.vocabulary, m.width)
        self.blocks = nn.ModuleList(Block(m) for _ in range(m.layers))
        self.norm = nn.RMSNorm(m.width, eps=m.norm_epsilon)
        self.head = nn.Linear(m.width, m.vocabulary, bias=False)
        if m.tied:
            self.head.weight = self.embed.weight
        half = m.head_width // 2
        angles = torch.outer(torch.arange(window), m.rope_theta ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=m.init_std)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class EagerTrainer:
    """One optimizer step of the baseline: loss, gradient, clip by norm, fused AdamW. `compiled`: torch.compile."""

    def __init__(self, m: Model, window: int, rate: float = 1e-3, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = Decoder(m, window)
        self.loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = self.forward
        if compiled:
            self.loss = torch.compile(self.forward)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(ids).flatten(0, 1), targets.flatten())

    def step(self, ids: torch.Tensor, targets: torch.Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(ids, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()
