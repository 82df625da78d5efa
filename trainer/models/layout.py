"""Where each tensor of the model lies in the flat parameter buffer.

Names and shapes are those of a Hugging Face Llama checkpoint, so the committed weights load there as they are.
Tensors that one matrix product reads together (q, k, v; gate, up) lie next to each other. Gradients and both
moments use the same layout.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bitwitness.kernels.buffers import F32
from bitwitness.kernels.initial import Initial
from bitwitness.ledger.commitments import TensorView

from ..config import ConfigError, Model

EMBED = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Slot:
    """A tensor's place: `shape` row-major float32 elements from `offset` (in elements)."""

    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size


class Layout:
    """The tensors of a model in storage order, and their offsets in one flat buffer of `size` elements.

    `initial` says how each begins.
    """

    def __init__(self, model: Model) -> None:
        self._place((name, shape, _initial(model, name, shape)) for name, shape in _tensors(model))

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, tuple[int, ...], Initial]]) -> Layout:
        """The layout of any tensors, (name, shape, how it begins), in this order."""
        layout = cls.__new__(cls)
        layout._place(tensors)
        return layout

    def _place(self, tensors: Iterable[tuple[str, tuple[int, ...], Initial]]) -> None:
        self.slots: dict[str, Slot] = {}
        self.initial: dict[str, Initial] = {}
        self.size = 0
        for name, shape, initial in tensors:
            self.slots[name] = slot = Slot(self.size, shape)
            self.initial[name] = initial
            self.size += slot.size

    @property
    def names(self) -> list[str]:
        """Tensor names in byte order, the order of every commitment and of the gradient norm."""
        return sorted(self.slots)

    def require(self, *names: str) -> None:
        """Raise ConfigError unless every name is that of a tensor of the model."""
        for name in names:
            if name not in self.slots:
                close = difflib.get_close_matches(name, self.slots, n=1)
                hint = f"; did you mean {close[0]}?" if close else f"; they are named like {self.names[0]}"
                raise ConfigError(f"the model has no tensor {name}{hint}")

    def span(self, *names: str) -> Slot:
        """Return adjacent tensors that differ in their rows alone as one, stacked by rows."""
        first, at = self.slots[names[0]], self.slots[names[0]].offset
        for slot in (self.slots[name] for name in names):
            if slot.offset != at or slot.shape[1:] != first.shape[1:]:
                raise ValueError(f"{names} are not adjacent")
            at += slot.size
        return Slot(first.offset, (sum(self.slots[name].shape[0] for name in names), *first.shape[1:]))

    def tensors(self, flat: F32) -> dict[str, F32]:
        """Return views of `flat` (float32, [size]) by tensor name, in byte order of names."""
        return {
            name: flat[slot.offset : slot.offset + slot.size].reshape(slot.shape)
            for name, slot in ((name, self.slots[name]) for name in self.names)
        }

    def views(self, flat: F32, prefix: str = "") -> Mapping[str, TensorView]:
        """Return what a tensor commitment reads: dtype, shape and bytes of every tensor of `flat`."""
        return {prefix + name: ("F32", tensor.shape, tensor) for name, tensor in self.tensors(flat).items()}


def _initial(model: Model, name: str, shape: tuple[int, ...]) -> Initial:
    """Gains of 1; matrices normal, narrower back into the residual stream (Radford et al. 2019, section 2.3)."""
    if len(shape) == 1:
        return Initial(value=1.0)
    residual = name.endswith(("o_proj.weight", "down_proj.weight"))
    return Initial(std=model.init_std / math.sqrt(2 * model.layers) if residual else model.init_std)


def _tensors(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, d = model.width, model.head_width
    yield EMBED, (model.vocabulary, width)
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (width,)
        yield prefix + "self_attn.q_proj.weight", (model.heads * d, width)
        yield prefix + "self_attn.k_proj.weight", (model.kv_heads * d, width)
        yield prefix + "self_attn.v_proj.weight", (model.kv_heads * d, width)
        yield prefix + "self_attn.o_proj.weight", (width, model.heads * d)
        yield prefix + "post_attention_layernorm.weight", (width,)
        yield prefix + "mlp.gate_proj.weight", (model.hidden, width)
        yield prefix + "mlp.up_proj.weight", (model.hidden, width)
        yield prefix + "mlp.down_proj.weight", (width, model.hidden)
    yield FINAL_NORM, (width,)
    if not model.tied:
        yield HEAD, (model.vocabulary, width)
