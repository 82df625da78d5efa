"""The built-in Llama-style decoder, written as step programs: forward and backward, operator by operator.

Shape letters: R rows (tokens of all windows of a call), T window length, D width, F hidden width, H query heads,
G key/value heads, d head width, V vocabulary, n parameters. Parameters and gradients are flat buffers in the
order of `Layout`; a weight is a view of them.

    shard_program     windows -> parameter gradients added to `grads`, loss of every token
    finish_program    what a shard adds once its last window is in: the second use of a tied embedding
    loss_program      windows -> loss of every token, no gradient
    norm_program      folded gradient -> sums of squares, 16,384 elements each, tensors in name order
    update_program    AdamW, one call per tensor
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bitwitness.kernels.program import Buffer, Program, ProgramBuilder

from ..config import RunConfig
from .layout import EMBED, FINAL_NORM, Layout, Slot
from .products import matrices, products

SQUARES_CHUNK = 16384


@dataclass
class _Saved:
    """What the forward pass of one layer keeps for its backward pass."""

    x: Buffer
    y1: Buffer
    r1: Buffer
    qkv: Buffer
    o: Buffer
    m: Buffer
    l: Buffer  # noqa: E741  the row sum's name in docs/arithmetic.md
    h: Buffer
    y2: Buffer
    r2: Buffer
    ab: Buffer
    s: Buffer


class _Decoder:
    """Emits the operators of the decoder into one ProgramBuilder."""

    def __init__(self, config: RunConfig, layout: Layout, windows: int, taps: bool = False) -> None:
        self.config, self.model, self.layout, self.taps = config, config.decoder, layout, taps
        self.rows = windows * config.data.window
        self.window = config.data.window
        self.b = ProgramBuilder()
        self.params = self.b.buffer("params", (layout.size,), kind="input")
        self.matrices = matrices(self.model, layout)
        self.products = products(config, self.b, self.params, self.matrices)
        self.ids = self.b.buffer("ids", (self.rows,), dtype="I32", kind="input")
        self.targets = self.b.buffer("targets", (self.rows,), dtype="I32", kind="input")
        self.positions = self.b.buffer("positions", (self.rows,), dtype="I32", kind="input")
        self.start = self.b.buffer("start", (self.rows,), dtype="I32", kind="input")
        table = (self.window, self.model.head_width // 2)
        self.cos = self.b.buffer("cos", table, kind="input")
        self.sin = self.b.buffer("sin", table, kind="input")
        self.loss = self.b.buffer("loss", (self.rows,), kind="output")
        self.nll = self.b.buffer("nll", (self.rows,), kind="output")
        self.attention: dict[str, Any] = {
            "heads": self.model.heads,
            "kv_heads": self.model.kv_heads,
            "scale": attention_scale(self.model.head_width),
            "window": self.window,
        }

    def temp(self, name: str, *shape: int) -> Buffer:
        return self.b.buffer(name, shape, kind="temp")

    def boundary(self, name: str) -> Buffer:
        """A block boundary [R, D]: kept for the caller where an audit taps it, else scratch. Same operators."""
        return self.b.buffer(name, (self.rows, self.model.width), kind="output" if self.taps else "temp")

    def weight(self, slot: Slot) -> Buffer:
        return self.b.view(self.params, slot.offset, slot.shape)

    def gain(self, name: str) -> Buffer:
        return self.weight(self.layout.slots[name])

    def forward(self) -> tuple[list[_Saved], Buffer, Buffer, Buffer, Buffer]:
        """Emit the forward pass up to the logits; return (layers, h, y, r of the last norm, logits)."""
        m, b, R = self.model, self.b, self.rows
        D, F, d, heads = m.width, m.hidden, m.head_width, m.heads + m.kv_heads
        x = self.boundary(block_input(0))
        b.call("embed", self.ids, self.gain(EMBED), x)
        z: Buffer | None = None
        saved = []
        for layer in range(m.layers):
            at, prefix = f"layer{layer}.", f"model.layers.{layer}."
            if z is not None:
                before, x = x, self.boundary(block_input(layer))
                y1, r1 = self.norm(at + "1", x, (before, z), prefix + "input_layernorm.weight")
            else:
                y1, r1 = self.norm(at + "1", x, None, prefix + "input_layernorm.weight")
            qkv = self.temp(at + "qkv", R, (m.heads + 2 * m.kv_heads) * d)
            self.products.forward(at + "qkv", y1, qkv)
            b.call("rope", qkv, self.positions, self.cos, self.sin, heads=heads, head_width=d, sign=1)
            o, mx, total = (
                self.temp(at + "o", R, m.heads * d),
                self.temp(at + "m", R, m.heads),
                self.temp(at + "l", R, m.heads),
            )
            b.call("attention", qkv, self.start, o, mx, total, **self.attention)
            z1 = self.temp(at + "z1", R, D)
            self.products.forward(at + "o", o, z1)
            h = self.temp(at + "h", R, D)
            y2, r2 = self.norm(at + "2", h, (x, z1), prefix + "post_attention_layernorm.weight")
            ab, s = self.temp(at + "ab", R, 2 * F), self.temp(at + "s", R, F)
            self.products.forward(at + "gate_up", y2, ab)
            b.call("swiglu", ab, s)
            z = self.temp(at + "z2", R, D)
            self.products.forward(at + "down", s, z)
            saved.append(_Saved(x, y1, r1, qkv, o, mx, total, h, y2, r2, ab, s))
            x = h
        assert z is not None
        h = self.boundary(block_input(m.layers))
        y, r = self.norm("final", h, (x, z), FINAL_NORM)
        logits = self.temp("logits", R, m.vocabulary)
        self.products.forward("head", y, logits)
        return saved, h, y, r, logits

    def norm(self, name: str, h: Buffer, addends: tuple[Buffer, Buffer] | None, gain: str) -> tuple[Buffer, Buffer]:
        """Emit the RMSNorm of h, which is first the sum of `addends` where given; return (y, 1/rms)."""
        y, r = self.temp(name + ".y", self.rows, self.model.width), self.temp(name + ".r", self.rows)
        epsilon = self.model.norm_epsilon
        if addends is None:
            self.b.call("rmsnorm", h, self.gain(gain), y, r, epsilon=epsilon)
        else:
            self.b.call("add_rmsnorm", *addends, self.gain(gain), h, y, r, epsilon=epsilon)
        return y, r

    def backward(self, saved: list[_Saved], h: Buffer, y: Buffer, r: Buffer, dlogits: Buffer) -> None:
        m, b, R = self.model, self.b, self.rows
        D, F, d, heads = m.width, m.hidden, m.head_width, m.heads + m.kv_heads
        segment = {"segment": self.window}
        grads = b.buffer("grads", (self.layout.size,), kind="inout")
        embed_grad = b.buffer("embed_grad", (m.vocabulary, D), kind="inout") if m.tied else None

        def view(slot: Slot) -> Buffer:
            return b.view(grads, slot.offset, slot.shape)

        def grad(matrix: str) -> Buffer:
            return view(self.matrices[matrix])

        def gain_grad(name: str) -> Buffer:
            return view(self.layout.slots[name])

        dy = self.temp("final.dy", R, D)
        self.products.backward("head", dlogits, y, dy, grad("head"))
        nothing = self.temp("final.dz", R, D)
        b.call("fill", flat(b, nothing), value=-0.0)  # the only number that adds nothing: −0 + v is v
        dx = self.boundary(block_input(m.layers) + ".grad")
        b.call("rmsnorm_backward", h, self.gain(FINAL_NORM), r, dy, nothing, dx, gain_grad(FINAL_NORM), **segment)
        for layer in reversed(range(m.layers)):
            at, prefix, k = f"layer{layer}.", f"model.layers.{layer}.", saved[layer]
            ds = self.temp(at + "ds", R, F)
            self.products.backward(at + "down", dx, k.s, ds, grad(at + "down"))
            b.call("swiglu_backward", k.ab, ds, k.ab)
            dy2 = self.temp(at + "dy2", R, D)
            self.products.backward(at + "gate_up", k.ab, k.y2, dy2, grad(at + "gate_up"))
            gain = prefix + "post_attention_layernorm.weight"
            dh = self.temp(at + "dh", R, D)
            b.call("rmsnorm_backward", k.h, self.gain(gain), k.r2, dy2, dx, dh, gain_grad(gain), **segment)
            do = self.temp(at + "do", R, m.heads * d)
            self.products.backward(at + "o", dh, k.o, do, grad(at + "o"))
            dqkv = self.temp(at + "dqkv", R, (m.heads + 2 * m.kv_heads) * d)
            b.call("attention_backward", k.qkv, self.start, k.o, k.m, k.l, do, dqkv, **self.attention)
            b.call("rope", dqkv, self.positions, self.cos, self.sin, heads=heads, head_width=d, sign=-1)
            dy1 = self.temp(at + "dy1", R, D)
            self.products.backward(at + "qkv", dqkv, k.y1, dy1, grad(at + "qkv"))
            gain = prefix + "input_layernorm.weight"
            dx = self.boundary(block_input(layer) + ".grad")
            b.call("rmsnorm_backward", k.x, self.gain(gain), k.r1, dy1, dh, dx, gain_grad(gain), **segment)
        # A tied matrix is used twice. Each use sums over the shard's tokens on its own, and the two sums meet
        # once, in finish_program: else the bits would tell how many windows were computed at a time.
        target = embed_grad if embed_grad is not None else gain_grad(EMBED)
        b.call("embed_backward", self.ids, dx, target)


def block_input(layer: int) -> str:
    """The residual stream where block `layer` begins; `layers` names what the last norm reads."""
    return f"block.{layer}.input"


def boundaries(config: RunConfig) -> list[str]:
    """The buffers that a program with taps leaves to its caller, each float32 [R, D]."""
    inputs = [block_input(layer) for layer in range(config.decoder.layers + 1)]
    return inputs + [name + ".grad" for name in inputs]


def shard_program(config: RunConfig, layout: Layout, windows: int, *, taps: bool = False) -> Program:
    """Forward and backward of `windows` windows; adds to `grads` [n] (and `embed_grad` [V, D] when tied)."""
    decoder = _Decoder(config, layout, windows, taps)
    saved, h, y, r, logits = decoder.forward()
    decoder.b.call("cross_entropy", logits, decoder.targets, decoder.loss, decoder.nll, z_loss=config.loss.z_loss)
    decoder.backward(saved, h, y, r, logits)
    return decoder.b.build()


def loss_program(config: RunConfig, layout: Layout, windows: int) -> Program:
    """Forward of `windows` windows: `loss` [R] and `nll` [R]."""
    decoder = _Decoder(config, layout, windows)
    logits = decoder.forward()[-1]
    decoder.b.call("cross_entropy_loss", logits, decoder.targets, decoder.loss, decoder.nll, z_loss=config.loss.z_loss)
    return decoder.b.build()


def finish_program(config: RunConfig, layout: Layout) -> Program | None:
    """grads of the embedding + embed_grad, once per shard; None where the embedding is not tied."""
    if not config.decoder.tied:
        return None
    b = ProgramBuilder()
    slot = layout.slots[EMBED]
    grads = b.buffer("grads", (layout.size,), kind="inout")
    second = b.buffer("embed_grad", slot.shape, kind="input")
    head = b.view(grads, slot.offset, slot.shape)
    b.call("add", flat(b, head), flat(b, second), flat(b, head))
    return b.build()


def fold_program(layout: Layout) -> Program:
    """left = left + right: one node of the gradient fold."""
    b = ProgramBuilder()
    left = b.buffer("left", (layout.size,), kind="inout")
    right = b.buffer("right", (layout.size,), kind="input")
    b.call("add", left, right, left)
    return b.build()


def norm_program(layout: Layout) -> Program:
    """`squares`: one sum per chunk of 16,384 elements of each tensor, tensors in name order."""
    b = ProgramBuilder()
    chunks = [-(-layout.slots[name].size // SQUARES_CHUNK) for name in layout.names]
    grads = b.buffer("grads", (layout.size,), kind="input")
    squares = b.buffer("squares", (sum(chunks),), kind="output")
    at = 0
    for name, count in zip(layout.names, chunks, strict=True):
        slot = layout.slots[name]
        b.call("sum_squares", b.view(grads, slot.offset, (slot.size,)), b.view(squares, at, (count,)))
        at += count
    return b.build()


def update_program(config: RunConfig, layout: Layout) -> Program:
    """AdamW for every tensor that is not frozen; `scalars` [tensors, 8], rows in name order."""
    b = ProgramBuilder()
    n = layout.size
    params, m, v = (b.buffer(name, (n,), kind="inout") for name in ("params", "m", "v"))
    grads = b.buffer("grads", (n,), kind="input")
    scalars = b.buffer("scalars", (len(layout.names), 8), kind="input")
    for row, name in enumerate(layout.names):
        if name in config.optimizer.frozen:
            continue
        slot = layout.slots[name]
        p, g, m1, v1 = (b.view(buffer, slot.offset, (slot.size,)) for buffer in (params, grads, m, v))
        b.call("adamw", p, g, m1, v1, b.view(scalars, 8 * row, (8,)))
    return b.build()


def flat(b: ProgramBuilder, buffer: Buffer) -> Buffer:
    """View a matrix as the vector of its elements."""
    size = 1
    for extent in buffer.shape:
        size *= extent
    return b.view(buffer, 0, (size,))


def attention_scale(head_width: int) -> float:
    """1 / sqrt(head_width) in binary64; the operator rounds it once to binary32."""
    return 1.0 / math.sqrt(head_width)


def huggingface_config(config: RunConfig) -> dict[str, Any]:
    """Return the `config.json` with which `transformers` loads the committed weights."""
    m = config.decoder
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": m.width,
        "intermediate_size": m.hidden,
        "num_hidden_layers": m.layers,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.head_width,
        "vocab_size": m.vocabulary,
        "max_position_embeddings": config.data.window,
        "rms_norm_eps": m.norm_epsilon,
        "rope_theta": m.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": m.tied,
        "torch_dtype": "float32",
    }
