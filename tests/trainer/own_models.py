"""Files that a user might write, as text: a test puts one into its project folder."""

# The built-in decoder, written with bitwitness.kernels.nn under the names of a Hugging Face checkpoint.
LLAMA = """
import math

import torch

from bitwitness.kernels import nn


class Layer(torch.nn.Module):
    def __init__(self, width, heads, kv_heads, hidden, out_std):
        super().__init__()
        rotary = nn.RotaryEmbedding(width // heads)
        self.input_layernorm = nn.RMSNorm(width, eps=1e-5)
        self.self_attn = nn.CausalSelfAttention(width, heads, kv_heads, rotary=rotary, out_std=out_std)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=1e-5)
        self.mlp = nn.SwiGLU(width, hidden, out_std=out_std)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(torch.nn.Module):
    def __init__(self, layers, width, heads, kv_heads, hidden, vocabulary):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        out_std = 0.02 / math.sqrt(2 * layers)
        self.layers = torch.nn.ModuleList(Layer(width, heads, kv_heads, hidden, out_std) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(torch.nn.Module):
    def __init__(self, layers, width, heads, kv_heads, hidden, vocabulary, tied=True):
        super().__init__()
        self.model = Body(layers, width, heads, kv_heads, hidden, vocabulary)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids):
        return self.lm_head(self.model(ids))
"""

# What a GPT-2 has: learned positions, LayerNorm, biases, GELU, dropout; and a layer that is used twice.
GPT = """
import torch

from bitwitness.kernels import nn


class Block(torch.nn.Module):
    def __init__(self, width, heads, p):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width, bias=False)
        self.attention = nn.CausalSelfAttention(width, heads, bias=True)
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        self.gate, self.tanh, self.silu = nn.Linear(width, width), nn.GELU("tanh"), nn.SiLU()
        self.drop = nn.Dropout(p)

    def forward(self, x):
        x = x + self.drop(self.attention(self.norm1(x)))
        h = self.norm2(x)
        return x + self.drop(self.down(self.act(self.up(h)))) * self.silu(h) + self.tanh(self.gate(h))


class GPT(torch.nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, vocabulary: int = 257, window: int = 24, p: float = 0.1):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.PositionEmbedding(window, width)
        self.drop = nn.Dropout(p)
        self.block, self.last = Block(width, heads, p), Block(width, heads, p)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.drop(self.positions(self.tokens(ids)))
        x = self.last(self.block(self.block(x)))
        return self.head(self.norm(x))
"""

# The least that has blocks: a list of them, one attention each.
TINY = """
import torch

from bitwitness.kernels import nn


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.RMSNorm(8), nn.CausalSelfAttention(8, 2)

    def forward(self, x):
        return x + self.attn(self.norm(x))


class Tiny(torch.nn.Module):
    def __init__(self, layers: int = 2):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(257, 8), torch.nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(8, 257)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
