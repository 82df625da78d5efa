"""One step. Training and replay both call `step`; there is no other path from one state to the next.

    windows ──shard program──▶ shard gradients ──fold──▶ gradient ──norm, clip──▶ AdamW ──▶ next state

The order is that of docs/arithmetic.md, A step: inside a shard, parameter gradients are sums over tokens in ascending
order; the S shard gradients are folded in the shape of an RFC 6962 tree; everything else is a pure function of
the fold. How many windows are computed at a time and on how many threads is not in the bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bitwitness.kernels import host
from bitwitness.kernels.buffers import F32, Array, floats, zeros
from bitwitness.kernels.program import Executor, Program
from bitwitness.kernels.reduce import sum_f64
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.jcs import f32_hex, f64_hex

from .config import RunConfig
from .data.windows import Rows, WindowStream
from .fold import Node, completed
from .models import model
from .models.layout import Layout
from .models.programs import Decoder, StepPrograms
from .parts import PartLeaves, Parts
from .schedule import learning_rate
from .state import State

Weights = Mapping[str, Array]
"""The parameters as the programs of a step read them: `params` and, in block fixed point, every matrix quantised."""

Tap = Callable[[Iterable[tuple[str, F32]]], None]
"""Called with names and float32 values of the tensors that an audit witnesses (docs/formats/audit.md), in their order.

Buffers of the step hold the values, so whoever is called reads them before it returns.
"""


class NotFinite(BitwitnessError):
    """The loss or the gradient norm is not a finite number. The state is as before the step."""

    def __init__(self, step: int, loss: float, norm: float) -> None:
        super().__init__(f"step {step}: loss {loss}, gradient norm {norm}: the run stops before this update")
        self.step, self.loss, self.norm = step, loss, norm


class NoTokens(BitwitnessError):
    """Every target of a step is ignored, so its mean loss is not defined."""


class Windows(Protocol):
    """The data as one logical sequence of windows, a pure function of their absolute number (WindowStream)."""

    def samples(self, first: int, count: int) -> Rows: ...


@dataclass(frozen=True)
class StepRecord:
    """What a step computed, besides the state. Floats are binary64 values or binary32 values held exactly."""

    step: int
    loss: float
    norm: float
    tokens: int
    scalars: dict[str, float]
    parts: PartLeaves | None = None
    """With `run.commit = "parts"`: the leaves that the step commits to."""

    def to_json(self) -> dict[str, object]:
        parts = {} if self.parts is None else {"parts": self.parts.commit().to_json()}
        return parts | {
            "loss": f64_hex(self.loss),
            "norm": f64_hex(self.norm),
            "scalars": {name: f32_hex(value) for name, value in self.scalars.items()},
            "tokens": self.tokens,
        }


Sums = tuple[float, int]
"""What a shard gives beside its gradient: the sum of its token losses in binary64, and its valid tokens."""


class Exchange(Protocol):
    """The ranks among which the shards of a step are divided (ranks.py)."""

    @property
    def own(self) -> range:
        """The shards of this rank."""

    def begin(self, state: State) -> None:
        """All begin with the step after `state`."""

    def combine(self, fold: PartialFold, workspace: Workspace) -> tuple[F32, list[Sums]]:
        """The root of the whole fold, [n], and the sums of every shard."""

    def agree(self, step: int, weights: Commitment) -> None:
        """All have these weights after `step`."""


@dataclass
class Workspace:
    """Programs and buffers of one config: planned once, reused by every step; nothing grows inside a step.

    `windows_at_once` (any number, at most the shard's) trades memory for speed, never bits.
    """

    config: RunConfig
    threads: int
    windows_at_once: int = 0
    taps: bool = False
    captured: StepPrograms | None = None
    """The programs of a model of the user's; else those of the built-in one."""
    ranks: Exchange | None = None
    """The other ranks of a run that several compute."""
    programs: StepPrograms = field(init=False)
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.programs = programs = self.captured or Decoder(config)
        self.layout = layout = programs.layout
        layout.require(*config.optimizer.frozen, *config.optimizer.weight_decay_overrides)
        per_shard = config.data.windows_per_shard
        self.completed = completed(config.data.shards)
        at_once = self.windows_at_once or per_shard
        self.windows_at_once = at_once = max(1, min(at_once, per_shard))
        self._shard = {
            count: self._executor(programs.shard(count, taps=self.taps))
            for count in {at_once, per_shard % at_once} - {0}
        }
        weights = programs.weights()
        self._quantise = None if weights is None else self._executor(weights)
        self._quantised = {} if weights is None else _outputs(weights)
        finish = programs.finish()
        self._finish = None if finish is None else self._executor(finish)
        self._fold = self._executor(model.fold_program(layout))
        norm = model.norm_program(layout)
        self._norm = self._executor(norm)
        self._update = self._executor(model.update_program(config, layout))
        self._loss: Executor | None = None

        rows = per_shard * config.data.window
        self._losses = floats(rows)
        self._nll = floats(rows)
        boundaries = programs.boundaries if self.taps else {}
        self._boundaries = {name: floats(rows, width) for name, width in boundaries.items()}
        self._squares = floats(*norm.buffers["squares"].shape)
        self._scalars = floats(len(layout.names), 8)
        self._apart = {name: floats(*shape) for name, shape in programs.apart.items()}
        self._places = zeros((rows, 3), "I32")
        self._places[:, 2] = [row % config.data.window for row in range(rows)]
        self._free: list[F32] = []

    def _executor(self, program: Program) -> Executor:
        return Executor(program, self.threads)

    def gradient(self) -> F32:
        """Take a gradient buffer of +0 from the pool."""
        buffer = self._free.pop() if self._free else floats(self.layout.size)
        buffer.fill(0.0)
        return buffer

    def release(self, buffer: F32) -> None:
        self._free.append(buffer)

    # -- the parts of a step, each of which an audit can ask for alone ------------------------------------------

    def weights(self, params: F32) -> Weights:
        """Prepare parameters for the products of a step, once for all its shards; good until the next call."""
        bound = {"params": params, **self._quantised}
        if self._quantise is not None:
            self._quantise.run(bound)
        return bound

    def shard_gradient(self, weights: Weights, windows: Windows, first: int) -> tuple[F32, float, int]:
        """Compute the shard whose first sample is `first`.

        Returns its gradient [n] of the SUM of token losses, that sum in binary64, and its valid tokens.
        """
        grads, tokens = self.gradient(), 0
        for sums in self._apart.values():
            sums.fill(0.0)
        per_shard = self.config.data.windows_per_shard
        for at in range(0, per_shard, self.windows_at_once):
            count = min(self.windows_at_once, per_shard - at)
            rows = windows.samples(first + at, count)
            bound = {**weights, **self._apart, "grads": grads, **self._bind(rows, at, first + at)}
            begin = at * self.config.data.window
            bound |= {name: values[begin : begin + len(rows.inputs)] for name, values in self._boundaries.items()}
            _run(self._shard[count], bound)
            tokens += rows.valid
        if self._finish is not None:
            self._finish.run({"grads": grads, **self._apart})
        return grads, sum_f64(self._losses), tokens

    def fold(self, left: F32, right: F32) -> F32:
        """left + right, in the buffer of left; right goes back to the pool."""
        self._fold.run({"left": left, "right": right})
        self.release(right)
        return left

    def sum_squares(self, gradient: F32) -> float:
        """Sum of squares: chunk sums in binary32, added ascending in binary64, tensors in name order."""
        self._norm.run({"grads": gradient, "squares": self._squares})
        return sum_f64(self._squares)

    def tapped(self, shard: int, gradient: F32) -> Iterator[tuple[str, F32]]:
        """Yield the taps of a shard, the last one computed, in their order: block boundaries, token losses, gradients.

        Block boundaries are float32 [rows of a shard, D] and there only in a workspace with `taps`.
        """
        for name, values in self._boundaries.items():
            yield f"shard/{shard}/{name}", values
        yield f"shard/{shard}/loss", self._losses
        for name, tensor in self.layout.tensors(gradient).items():
            yield f"shard/{shard}/gradient/{name}", tensor

    def update(self, state: State, gradient: F32, scalars: dict[str, float]) -> None:
        for row, name in enumerate(self.layout.names):
            operands = adamw_row(self.config, self.layout, name, state.control.step + 1, scalars)
            self._scalars[row] = operands
        bound = {"params": state.params, "m": state.m, "v": state.v, "grads": gradient}
        self._update.run({**bound, "scalars": self._scalars})

    def losses(
        self, params: F32, stream: WindowStream, windows: Sequence[int], tap: Tap | None = None
    ) -> tuple[float, int]:
        """Return (sum of negative log-likelihoods in binary64, valid tokens), one window at a time, no gradient.

        `tap` is given the losses of each window's tokens, as `eval/WINDOW/loss`.
        """
        if self._loss is None:
            self._loss = self._executor(self.programs.loss(1))
        length = self.config.data.window
        total, tokens = 0.0, 0
        weights = self.weights(params)
        for window in windows:
            rows = stream.rows([window])
            _run(self._loss, {**weights, **self._bind(rows, 0, 0)})
            if tap is not None:
                tap([(f"eval/{window}/loss", self._nll[:length])])
            total, tokens = total + sum_f64(self._nll[:length]), tokens + rows.valid
        return total, tokens

    def _bind(self, rows: Rows, at: int, sample: int) -> dict[str, object]:
        """Bind the rows of windows `at`, at + 1, … of a shard, whose first sample is `sample`, and their losses."""
        length = self.config.data.window
        begin = at * length
        part = slice(begin, begin + len(rows.inputs))
        for number, window in enumerate(self._places[part].reshape(-1, length, 3), sample):
            window[:, 0], window[:, 1] = _int32(number & 0xFFFFFFFF), _int32(number >> 32)
        return {
            **self.programs.tables,
            "places": self._places[part],
            "ids": rows.inputs,
            "targets": rows.targets,
            "positions": rows.pos,
            "start": rows.start,
            "loss": self._losses[part],
            "nll": self._nll[part],
        }


def _run(executor: Executor, arrays: Mapping[str, object]) -> None:
    """Run a program on those of `arrays` that it knows."""
    executor.run({buffer.name: arrays[buffer.name] for buffer in executor.program.external})


def _int32(word: int) -> int:
    """A 32-bit word as the signed number of the same bits."""
    return word - (1 << 32) if word >> 31 else word


def _outputs(program: Program) -> dict[str, Array]:
    """Arrays for the outputs of a program, by name."""
    outputs = (buffer for buffer in program.external if buffer.kind == "output")
    return {buffer.name: zeros(buffer.shape, buffer.dtype) for buffer in outputs}


@dataclass
class PartialFold:
    """A step's fold as far as it came: the next shard, the roots of the complete subtrees so far, the sums."""

    shard: int = 0
    stack: list[tuple[int, F32]] = field(default_factory=list)
    total: float = 0.0
    tokens: int = 0
    parts: Parts | None = None
    """The leaves so far of a step that commits to its parts."""
    sums: list[Sums] = field(default_factory=list)
    """Of the shards that were computed here."""


AfterShard = Callable[[PartialFold], None]
"""Told after each shard how far the fold came; what it holds changes with the next one."""


def step(
    state: State,
    windows: Windows,
    workspace: Workspace,
    tap: Tap | None = None,
    fold: PartialFold | None = None,
    after_shard: AfterShard | None = None,
) -> StepRecord:
    """Advance `state` in place by one update and return what was computed.

    Reads windows cursor … cursor + S·W − 1, or, where `fold` holds the first shards of this very step already, the
    rest. Raises NotFinite (state untouched) and NoTokens.
    """
    config = workspace.config
    number = state.control.step + 1
    fold = fold or PartialFold()
    if config.run.commit == "parts" and fold.parts is None:
        fold.parts = Parts(workspace.layout)
    gradient, loss, tokens = folded_gradient(state, windows, workspace, tap, fold, after_shard)
    if tokens == 0:
        workspace.release(gradient)
        raise NoTokens(f"step {number}: every target is ignored; check reset_documents and the dataset")
    norm = math.sqrt(workspace.sum_squares(gradient)) / float(tokens)
    mean = loss / float(tokens)
    if not (math.isfinite(mean) and math.isfinite(norm)):
        workspace.release(gradient)
        raise NotFinite(number, mean, norm)
    scalars = step_scalars(config, number, norm, tokens)
    workspace.update(state, gradient, scalars)
    workspace.release(gradient)
    if tap is not None:
        tap((f"weights/{name}", tensor) for name, tensor in workspace.layout.tensors(state.params).items())
    state.advance(tokens, config.data.windows_per_step)
    leaves = None if fold.parts is None else fold.parts.finish(mean, norm, tokens, scalars)
    return StepRecord(number, mean, norm, tokens, scalars, leaves)


def folded_gradient(
    state: State,
    windows: Windows,
    workspace: Workspace,
    tap: Tap | None = None,
    fold: PartialFold | None = None,
    after_shard: AfterShard | None = None,
) -> tuple[F32, float, int]:
    """Fold the step's shard gradients; return (gradient [n], sum of losses, valid tokens).

    The stack holds the roots of the complete subtrees so far: log2(S) gradients at most. Where several ranks share the
    step, it is that of the shards of this one, and what they have is combined in the order of the tree.
    """
    data, cursor, ranks = workspace.config.data, state.control.cursor, workspace.ranks
    fold = fold or PartialFold()
    own = range(data.shards)
    if ranks is not None:
        ranks.begin(state)
        own = ranks.own
    weights = workspace.weights(state.params)
    for shard in range(max(own.start, fold.shard), own.stop):
        first = cursor + shard * data.windows_per_shard
        gradient, loss, count = workspace.shard_gradient(weights, windows, first)
        if tap is not None:
            tap(workspace.tapped(shard, gradient))
        if fold.parts is not None:
            fold.parts.shard(shard, gradient, loss, count)
        fold.total, fold.tokens = fold.total + loss, fold.tokens + count
        fold.sums.append((loss, count))
        fold.stack.append((1, gradient))
        for node in workspace.completed[shard]:
            if node.first >= own.start:
                _merge(fold, workspace, node)
        fold.shard = shard + 1
        if after_shard is not None and fold.shard < data.shards:
            after_shard(fold)
    if ranks is None:
        return fold.stack[0][1], fold.total, fold.tokens
    gradient, sums = ranks.combine(fold, workspace)
    total, tokens = 0.0, 0
    for loss, count in sums:  # ascending, as one machine adds them
        total, tokens = total + loss, tokens + count
    return gradient, total, tokens


def _merge(fold: PartialFold, workspace: Workspace, node: Node) -> None:
    """Add the two uppermost sums, which are the children of `node`."""
    (_, right), (_, left) = fold.stack.pop(), fold.stack.pop()
    gradient = workspace.fold(left, right)
    if fold.parts is not None:
        fold.parts.fold(node.first, node.shards, gradient)
    fold.stack.append((node.shards, gradient))


def step_scalars(config: RunConfig, update: int, norm: float, tokens: int) -> dict[str, float]:
    """Compute the step's host scalars in binary64, each rounded once to binary32."""
    o = config.optimizer
    rate = learning_rate(config, update)
    clip = o.clip / norm if norm > o.clip else 1.0
    values = {
        "learning_rate": rate,
        "clip": clip,
        "grad_scale": clip / float(tokens),
        "step_size": rate / (1.0 - host.power(o.beta1, update)),
        "inv_sqrt_bias2": 1.0 / math.sqrt(1.0 - host.power(o.beta2, update)),
        "decay": 1.0 - rate * o.weight_decay,
    }
    return {name: host.round_f32(value) for name, value in values.items()}


def adamw_row(config: RunConfig, layout: Layout, name: str, update: int, scalars: dict[str, float]) -> list[float]:
    """One tensor's operands of `adamw`. Vectors (gains) do not decay unless the config says so."""
    o = config.optimizer
    if name in o.weight_decay_overrides:
        decay = host.round_f32(1.0 - learning_rate(config, update) * o.weight_decay_overrides[name])
    else:
        decay = scalars["decay"] if len(layout.slots[name].shape) > 1 else 1.0
    return [
        scalars["grad_scale"],
        host.round_f32(1.0 - o.beta1),
        host.round_f32(o.beta2),
        host.round_f32(1.0 - o.beta2),
        decay,
        scalars["step_size"],
        scalars["inv_sqrt_bias2"],
        host.round_f32(o.epsilon),
    ]
