"""The rows that a call computes: where each token stands, and what it may see.

A model reads token ids [B, T]; inside, tokens are rows, R = B·T, windows of T after each other. Modules that ask where
a row stands (attention, rotary positions, dropout) and every gradient of a parameter (its sum restarts at each window)
take it from here. Outside of `tokens(...)` the windows of the input are taken as they come: no document ends in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from bitwitness.kernels import host
from bitwitness.kernels.errors import KernelError, ShapeError


@dataclass(frozen=True, eq=False)
class Tokens:
    """R rows in windows of `window`; all int32.

    `start` [R] is the first row that a row sees, counted within the call; `positions` [R] is what rotary and learned
    positions go by; `places` [R, 3] is (sample mod 2^32, sample div 2^32, place in window), what dropout goes by.
    """

    window: int
    positions: torch.Tensor
    start: torch.Tensor
    places: torch.Tensor | None = None
    seed: int = 0

    @property
    def rows(self) -> int:
        return len(self.start)

    def rotary(self, head_width: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The tables cosine and sine, float32 [window, head_width / 2] (docs/arithmetic.md, Host scalars)."""
        return _rotary(self.window, head_width, theta)


_CURRENT: ContextVar[Tokens | None] = ContextVar("tokens", default=None)


@contextmanager
def tokens(rows: Tokens) -> Iterator[Tokens]:
    """Say what the rows of the calls inside are."""
    token = _CURRENT.set(rows)
    try:
        yield rows
    finally:
        _CURRENT.reset(token)


def samples(first: int, count: int, window: int, *, seed: int = 0) -> Tokens:
    """The rows of samples first … first + count − 1, whole windows: what `train` gives a model, without documents."""
    plain = _plain(count * window, window)
    numbers = np.arange(first, first + count, dtype=np.uint64).repeat(window)
    places = np.stack([numbers & 0xFFFFFFFF, numbers >> np.uint64(32), np.tile(np.arange(window), count)], 1)
    words = torch.from_numpy(places.astype(np.uint32).view(np.int32))
    return Tokens(window, plain.positions, plain.start, words, seed)


def tokens_of(x: torch.Tensor) -> Tokens:
    """The rows of x [..., T, D]: those of the innermost `tokens(...)`, else windows as they come. Raises ShapeError."""
    rows, current = x.numel() // x.shape[-1], _CURRENT.get()
    if current is None:
        return _plain(rows, x.shape[-2] if x.dim() > 1 else 1)
    if current.rows != rows:
        raise ShapeError(f"a module got {list(x.shape)}, {rows} rows, where the call has {current.rows} tokens")
    return current


def named_tokens(module: str) -> Tokens:
    """The rows that a `tokens(...)` with `places` gave. Raises KernelError where there is none."""
    current = _CURRENT.get()
    if current is None or current.places is None:
        raise KernelError(f"{module} needs to know its samples: call the model inside `with tokens(samples(...)):`")
    return current


@lru_cache(maxsize=32)
def _plain(rows: int, window: int) -> Tokens:
    row = torch.arange(rows, dtype=torch.int32)
    place = row % window
    return Tokens(window, place, row - place)


@lru_cache(maxsize=32)
def _rotary(window: int, head_width: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = host.rope_tables(range(window), head_width, theta)
    return torch.tensor(cos.tolist()), torch.tensor(sin.tolist())
