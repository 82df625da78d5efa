"""How the model's matrix products are emitted: in float32, or in block fixed point (`run.precision`).

A product is named by its matrix (`layer3.qkv`, `head`). Shape letters: R rows of a call, K and N the inputs and outputs
of a matrix W [N, K].

    forward     y [R,N] = x W^T
    backward    dx [R,K] = dy W, and dW += dy^T x, its K-blocks restarting at each window

In block fixed point the matrices are quantised once per step (`weights_program`), and the exponents of the rows of x
and dy, found while these are quantised for the first product that reads them, serve the weight gradient as well.
"""

from __future__ import annotations

from typing import Protocol

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.program import Buffer, Kind, Program, ProgramBuilder

from ..config import Model, RunConfig
from .layout import EMBED, HEAD, Layout, Slot

BLOCK = 128  # integers under one scale


def matrices(model: Model, layout: Layout) -> dict[str, Slot]:
    """Every matrix that a product reads; those read together are one."""
    found = {}
    for layer in range(model.layers):
        prefix, at = f"model.layers.{layer}.", f"layer{layer}."
        found[at + "qkv"] = layout.span(*(f"{prefix}self_attn.{p}_proj.weight" for p in "qkv"))
        found[at + "o"] = layout.span(prefix + "self_attn.o_proj.weight")
        found[at + "gate_up"] = layout.span(prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight")
        found[at + "down"] = layout.span(prefix + "mlp.down_proj.weight")
    found["head"] = layout.slots[EMBED if model.tied else HEAD]
    return found


class Products(Protocol):
    """Emits products into a program builder."""

    def forward(self, name: str, x: Buffer, y: Buffer) -> None: ...

    def backward(self, name: str, dy: Buffer, x: Buffer, dx: Buffer, grad: Buffer) -> None: ...


class Float32Products:
    """K in blocks of 256, fused multiply-adds (docs/arithmetic.md, matmul_nt and below)."""

    def __init__(self, b: ProgramBuilder, params: Buffer, matrices: dict[str, Slot], window: int) -> None:
        self.b, self.params, self.matrices, self.window = b, params, matrices, window

    def weight(self, name: str) -> Buffer:
        slot = self.matrices[name]
        return self.b.view(self.params, slot.offset, slot.shape)

    def forward(self, name: str, x: Buffer, y: Buffer) -> None:
        self.b.call("matmul_nt", x, self.weight(name), y, accumulate=0)

    def backward(self, name: str, dy: Buffer, x: Buffer, dx: Buffer, grad: Buffer) -> None:
        self.b.call("matmul_tn", dy, x, grad, accumulate=1, segment=self.window)
        self.b.call("matmul_nn", dy, self.weight(name), dx, accumulate=0)


class BlockFixedPointProducts:
    """K in blocks of 128 integers (docs/arithmetic.md, Block fixed point); the head's backward products stay float32.

    Probabilities beside a -1 in their block would round to zero, all with one sign, and that bias would train in.
    """

    def __init__(self, b: ProgramBuilder, params: Buffer, matrices: dict[str, Slot], window: int) -> None:
        self.b, self.window = b, window
        self.float32 = Float32Products(b, params, matrices, window)
        self.weights = {name: QuantisedMatrix(b, name, slot, "input") for name, slot in matrices.items()}
        self.x_exponents: dict[str, Buffer] = {}

    def forward(self, name: str, x: Buffer, y: Buffer) -> None:
        w = self.weights[name]
        q, s, self.x_exponents[name] = self.quantised_rows(name + ".x", x, w.a)
        self.b.call("matmul_bfp", q, s, w.q, w.s, y, accumulate=0)

    def backward(self, name: str, dy: Buffer, x: Buffer, dx: Buffer, grad: Buffer) -> None:
        w = self.weights[name].transposed
        if w is None:
            self.float32.backward(name, dy, x, dx, grad)
            return
        q, s, dy_exponents = self.quantised_rows(name + ".dy", dy, w.a)
        self.b.call("matmul_bfp", q, s, w.q, w.s, dx, accumulate=0)
        a = self.b.buffer(name + ".balance", (dy.shape[0],), "I32")
        self.b.call("bfp_balance", dy_exponents, self.x_exponents[name], a)
        left = self.quantised_columns(name + ".dyt", dy, a, sign=-1)
        right = self.quantised_columns(name + ".xt", x, a, sign=1)
        self.b.call("matmul_bfp", *left, *right, grad, accumulate=1)

    def quantised_rows(self, name: str, x: Buffer, a: Buffer) -> tuple[Buffer, Buffer, Buffer]:
        """x 2^a as an operand, and the exponents of its rows before that."""
        q, s = operand(self.b, name, x.shape[0], -(-x.shape[1] // BLOCK))
        e = self.b.buffer(name + ".e", (x.shape[0],), "I32")
        self.b.call("bfp_rows", x, a, q, s, e, sign=1)
        return q, s, e

    def quantised_columns(self, name: str, x: Buffer, a: Buffer, sign: int) -> tuple[Buffer, Buffer]:
        windows = x.shape[0] // self.window
        q, s = operand(self.b, name, x.shape[1], windows * -(-self.window // BLOCK))
        self.b.call("bfp_columns", x, a, q, s, sign=sign, segment=self.window)
        return q, s


class Transposed:
    """What the input gradient reads of a matrix: its columns, quantised, and the exponents moved to dy."""

    def __init__(self, b: ProgramBuilder, name: str, slot: Slot, kind: Kind) -> None:
        outputs, inputs = slot.shape
        self.a = b.buffer(name + ".at", (outputs,), "I32", kind)
        self.q, self.s = operand(b, name + ".t", inputs, -(-outputs // BLOCK), kind)


class QuantisedMatrix:
    """A matrix W [N, K] as the products of a step read it: its rows, quantised, and the exponents moved to x.

    The head has no transposed form: its backward products are float32.
    """

    def __init__(self, b: ProgramBuilder, name: str, slot: Slot, kind: Kind) -> None:
        if len(slot.shape) != 2:  # a captured model may read any parameter as one
            raise KernelError(f"{name} is multiplied with as a matrix, and has {len(slot.shape)} dimensions")
        outputs, inputs = slot.shape
        self.a = b.buffer(name + ".a", (inputs,), "I32", kind)
        self.q, self.s = operand(b, name, outputs, -(-inputs // BLOCK), kind)
        self.transposed = None if name == "head" else Transposed(b, name, slot, kind)


def operand(b: ProgramBuilder, name: str, rows: int, blocks: int, kind: Kind = "temp") -> tuple[Buffer, Buffer]:
    """The integers and the scales of a quantised operand."""
    integers = b.buffer(name + ".q", (rows, BLOCK * blocks), "I16", kind)
    return integers, b.buffer(name + ".s", (rows, blocks), "F32", kind)


def products(config: RunConfig, b: ProgramBuilder, params: Buffer, matrices: dict[str, Slot]) -> Products:
    """The products of the run's precision."""
    kind = BlockFixedPointProducts if config.run.precision == "bfp" else Float32Products
    return kind(b, params, matrices, config.data.window)


def weights_program(config: RunConfig, layout: Layout, matrices: dict[str, Slot]) -> Program | None:
    """params -> every matrix quantised, as the programs of a step read it; None where they read params alone."""
    if config.run.precision != "bfp":
        return None
    b = ProgramBuilder()
    params = b.buffer("params", (layout.size,), kind="input")
    for name, slot in matrices.items():
        weight, w = b.view(params, slot.offset, slot.shape), QuantisedMatrix(b, name, slot, "output")
        b.call("bfp_exponents", weight, w.a)
        if w.transposed is None:
            rows = b.buffer(name + ".rows", slot.shape[:1], "I32")
            b.call("bfp_rows", weight, w.a, w.q, w.s, rows, sign=-1)
        else:
            t = w.transposed
            b.call("bfp_rows", weight, w.a, w.q, w.s, t.a, sign=-1)
            b.call("bfp_columns", weight, t.a, t.q, t.s, sign=-1, segment=slot.shape[0])
    return b.build()
