"""The screen: what AdamW and the schedule allow between two stored states, whatever the data was.

Nothing is replayed and no data is read, so it covers all of a run in the time that reading its states takes. It finds
states that were replaced, or edited by more than an optimizer moves; what it lets pass is not thereby right
(docs/formats/audit.md, Screen).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwitness.kernels.buffers import F32
from bitwitness.kernels.host import round_f32

from ..config import RunConfig
from ..history import RunHistory
from ..material import StoredStates
from ..models.layout import Layout
from ..record_check import Fault
from ..replay import stored_state
from ..state import State, StateMismatch, StateUnavailable
from ..step import Workspace, adamw_row, step_scalars

F64 = NDArray[np.float64]

U = 2.0**-24
"""The unit roundoff of binary32."""
TINY = 2.0**-149
"""The least positive binary32."""
_F64 = 1.0 + 1e-9
"""Room for the roundings of these bounds themselves, which are computed in binary64."""


@dataclass(frozen=True)
class Reach:
    """How far one tensor's elements can get in some updates: p becomes p·kept, give or take `move` + |p·kept|·blur."""

    kept: float
    move: float
    blur: float


@dataclass(frozen=True)
class Screened:
    """How many intervals between stored states were compared, of how many, and what cannot be."""

    compared: int = 0
    total: int = 0
    faults: tuple[Fault, ...] = ()


class Bounds:
    """The bounds of one configuration (docs/formats/audit.md, Screen).

    `first` is the state that the run began with, where its moments are not those of a seed: +0 before update 1.
    """

    def __init__(self, config: RunConfig, layout: Layout, first: State | None = None) -> None:
        self._config, self._layout = config, layout
        self._begin = 0 if first is None else first.control.step
        o = config.optimizer
        self.frozen = frozenset(o.frozen)
        c1, b2, c2 = round_f32(1.0 - o.beta1), round_f32(o.beta2), round_f32(1.0 - o.beta2)
        self._b1, self._c1 = (1.0 - c1 + c1 * U) * (1.0 + U), c1 * (1.0 + U) ** 2
        self.b2, self._c2 = b2 * (1.0 - U) ** 2, c2 * (1.0 - U) ** 2
        self._epsilon = round_f32(o.epsilon)
        # What underflow can take from v in one update: half a TINY for each product, and for the sum.
        self._root = math.sqrt((2.0 + 2.0 * o.clip) * TINY)
        self._moments: list[tuple[float, float]] = [(0.0, 0.0) if first is None else _ratio(first)]
        self._reaches: dict[tuple[bool, float | None, int, int], Reach] = {}

    def moments(self, update: int) -> tuple[float, float]:
        """(R, T) with |m| ≤ R·√v + T after `update` updates (Cauchy–Schwarz, with roundings)."""
        while len(self._moments) <= update - self._begin:
            ratio, rest = self._moments[-1]
            carried = 0.0 if ratio == 0.0 else math.inf if self.b2 == 0.0 else (self._b1 * ratio) ** 2 / self.b2
            ratio = math.sqrt(carried + self._c1**2 / self._c2) * _F64
            self._moments.append((ratio, (self._b1 * rest + ratio * self._root + TINY) * _F64))
        return self._moments[update - self._begin]

    def quotient(self, update: int, inv_sqrt_bias2: float) -> float:
        """The most that |m'/q| can be in update `update`."""
        ratio, rest = self.moments(update)
        by_epsilon = rest / self._epsilon if self._epsilon > 0.0 else math.inf
        return (ratio / inv_sqrt_bias2 + by_epsilon) * (1.0 + U) / (1.0 - U) ** 2 * _F64

    def reach(self, name: str, after: int, until: int) -> Reach:
        """How far tensor `name` gets in the updates after + 1 … until."""
        if name in self.frozen:
            return Reach(1.0, 0.0, 0.0)
        matrix, own = len(self._layout.slots[name].shape) > 1, self._config.optimizer.weight_decay_overrides.get(name)
        key = (matrix, own, after, until)  # tensors that decay alike get equally far
        if key not in self._reaches:
            self._reaches[key] = self._reach(name, after, until)
        return self._reaches[key]

    def _reach(self, name: str, after: int, until: int) -> Reach:
        kept, move, grow = 1.0, 0.0, (1.0 + U) ** 2
        for update in range(after + 1, until + 1):
            # Learning rate and bias corrections do not depend on norm and tokens.
            scalars = step_scalars(self._config, update, 0.0, 1)
            row = adamw_row(self._config, self._layout, name, update, scalars)
            decay, step_size, inv_sqrt_bias2 = row[4], row[5], row[6]
            kept *= decay
            move = (move * abs(decay) + abs(step_size) * self.quotient(update, inv_sqrt_bias2)) * grow + 2.0 * TINY
        blur = grow ** (until - after) - 1.0
        return Reach(kept, move * _F64, blur * _F64 + 1e-12)


@np.errstate(all="ignore")  # what a stored state holds may be anything
def screen(history: RunHistory, stored: StoredStates, workspace: Workspace, trusted: set[int]) -> Screened:
    """Compare every two neighbouring states that are at hand and are the ledger's.

    `trusted` are the stored states whose record says nothing wrong. A run that goes on from another one's moments is
    screened where the state that it goes on from is at hand.
    """
    steps = sorted({history.first} | trusted)
    bounds = None if history.first else Bounds(history.config, workspace.layout)
    faults: list[Fault] = []
    compared, before = 0, None
    for step in steps:
        wanted = step == history.first or (bounds is not None and stored.at_hand(step))
        try:
            state = stored_state(history, stored, workspace, step) if wanted else None
        except (StateMismatch, StateUnavailable):  # which the replay of its units will tell
            state = None
        if bounds is None and state is not None:
            bounds = Bounds(history.config, workspace.layout, state)
        if state is not None and before is not None and bounds is not None:
            compared += 1
            wrong = next(differences(bounds, before, state), None)
            if wrong is not None:
                digest = history.stored(step).digest
                faults.append(Fault(step, "screen", wrong, digest, digest))
        before = state
    return Screened(compared, len(steps) - 1, tuple(faults))


def _ratio(state: State) -> tuple[float, float]:
    """(R, T) with |m| ≤ R·√v + T in this state, whatever made it: T where v is 0, and R of the other elements."""
    m, root = np.abs(_wide(state.m)), np.sqrt(_wide(state.v))
    blank = root == 0.0
    rest = float(m[blank].max()) if blank.any() else 0.0
    ratio = float((m[~blank] / root[~blank]).max()) if not blank.all() else 0.0
    return ratio * _F64, rest


def differences(bounds: Bounds, before: State, after: State) -> Iterator[str]:
    """Say of each tensor that got further than it can, or whose moments cannot be, where that is worst."""
    first, last = before.control.step, after.control.step
    layout = before.layout
    old, new = layout.tensors(before.params), layout.tensors(after.params)
    old_v, new_m, new_v = layout.tensors(before.v), layout.tensors(after.m), layout.tensors(after.v)
    ratio, rest = bounds.moments(last)
    kept_v = bounds.b2 ** (last - first) * (1.0 - 1e-12)
    for name in layout.names:
        reach = bounds.reach(name, first, last)
        base = _wide(old[name]) * reach.kept
        yield from _beyond(
            f"{name}, weight",
            np.abs(_wide(new[name]) - base),
            np.abs(base) * reach.blur + reach.move,
            last - first,
        )
        if name in bounds.frozen:
            continue
        least = _wide(old_v[name]) * kept_v - (last - first) * 4.0 * TINY
        yield from _beyond(f"{name}, second moment's fall", least, _wide(new_v[name]), last - first)
        if math.isinf(ratio):  # β2 = 0: the second moment says nothing of the gradients before
            continue
        most = np.sqrt(_wide(new_v[name])) * ratio + rest
        yield from _beyond(f"{name}, first moment", np.abs(_wide(new_m[name])), most, last)


def _wide(values: F32) -> F64:
    return values.astype(np.float64)


def _beyond(what: str, found: F64, most: F64, updates: int) -> Iterator[str]:
    wrong = ~(found <= most)  # a NaN is wrong, too
    if bool(wrong.any()):
        at = int(np.nan_to_num(np.where(wrong, found - most, -math.inf), nan=math.inf).argmax())
        yield (
            f"{what} {at}: {found.reshape(-1)[at]:.3g}, more than the {most.reshape(-1)[at]:.3g} that AdamW "
            f"allows in {updates} updates"
        )
