"""The programs of a step, whoever wrote them: the built-in decoder, or a module of the user's.

Everything else about a step (shards, fold, norm, update) is the same for both and depends on the layout alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Protocol

import numpy as np

from bitwitness.kernels import host
from bitwitness.kernels.buffers import F32
from bitwitness.kernels.program import Program

from ..config import RunConfig
from . import model
from .layout import Layout
from .products import matrices, weights_program


class StepPrograms(Protocol):
    """What a step runs, in buffers `params`, `grads` [n], `ids`, `targets`, `positions`, `start` [R], `places` [R, 3]
    and those below; outputs `loss` and `nll` [R]. R rows are the tokens of the windows of a call.
    """

    layout: Layout

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""

    @property
    def tables(self) -> Mapping[str, F32]:
        """Constant inputs by the name of their buffer: rotary tables, cosines and sines."""

    @property
    def apart(self) -> Mapping[str, tuple[int, ...]]:
        """The gradients that a shard sums apart, by buffer, until `finish` adds them."""

    @property
    def boundaries(self) -> Mapping[str, int]:
        """The outputs of a program with taps, by buffer, each float32 [R, width]."""

    def shard(self, windows: int, *, taps: bool = False) -> Program:
        """Forward and backward of `windows` windows; adds to `grads` and what is summed apart."""

    def loss(self, windows: int) -> Program:
        """Forward of `windows` windows, as a held-out loss has it."""

    def finish(self) -> Program | None:
        """What a shard adds once its last window is in, if anything."""

    def weights(self) -> Program | None:
        """What the parameters are turned into once for a step, if anything."""


class Decoder:
    """The built-in model (model.py)."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._model = config, config.decoder
        self.layout = Layout(self._model)

    @property
    def vocabulary(self) -> int:
        return self._model.vocabulary

    @cached_property
    def tables(self) -> Mapping[str, F32]:
        return rotary_tables(self._config.data.window, self._model.head_width, self._model.rope_theta, "cos", "sin")

    @property
    def apart(self) -> Mapping[str, tuple[int, ...]]:
        return {"embed_grad": (self._model.vocabulary, self._model.width)} if self._model.tied else {}

    @property
    def boundaries(self) -> Mapping[str, int]:
        return dict.fromkeys(model.boundaries(self._config), self._model.width)

    def shard(self, windows: int, *, taps: bool = False) -> Program:
        return model.shard_program(self._config, self.layout, windows, taps=taps)

    def loss(self, windows: int) -> Program:
        return model.loss_program(self._config, self.layout, windows)

    def finish(self) -> Program | None:
        return model.finish_program(self._config, self.layout)

    def weights(self) -> Program | None:
        return weights_program(self._config, self.layout, matrices(self._model, self.layout))


def rotary_tables(window: int, head_width: int, theta: float, *names: str) -> dict[str, F32]:
    """Cosines and sines, float32 [window, head_width / 2], under two names."""
    tables = host.rope_tables(range(window), head_width, theta)
    return {name: np.array(table, np.float32) for name, table in zip(names, tables, strict=True)}


def every_program(config: RunConfig, programs: StepPrograms) -> Iterator[Program]:
    """Yield every program of a run; those that read windows read one, since any number has the same operators."""
    yield programs.shard(1)
    yield programs.loss(1)
    yield model.fold_program(programs.layout)
    yield model.norm_program(programs.layout)
    yield model.update_program(config, programs.layout)
    for program in (programs.finish(), programs.weights()):
        if program is not None:
            yield program
