"""What a mismatch looks like in numbers: the first value in which the trainer's stored state and a replay differ.

The ledger has roots, no values. Where the state after the step was stored and is what the ledger commits to, its values
are the trainer's own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bitwitness.kernels.tracing.culprit import Element, first_element
from bitwitness.ledger.errors import BitwitnessError

from ..history import RunHistory
from ..material import StoredStates
from ..state import State, load_state
from .culprit_text import element_lines, layer_of, unravel

PARTIES = ("ledger", "replay")


@dataclass(frozen=True)
class FirstValue:
    """The first element that differs: weights before moments, tensors in the order of their names."""

    tensor: str
    index: tuple[int, ...]
    shape: tuple[int, ...]
    element: Element  # ours is the ledger's, theirs the replay's

    def lines(self) -> Iterator[str]:
        """For people."""
        layer = layer_of(self.tensor)
        yield f"  tensor    {self.tensor}{'' if layer is None else f', layer {layer}'}, shape {list(self.shape)}"
        yield f"  element   {list(self.index)}"
        yield from element_lines(self.element, PARTIES)

    def to_json(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor,
            "index": list(self.index),
            "shape": list(self.shape),
            "ledger": self.element.ours,
            "replay": self.element.theirs,
            "ulp": self.element.ulp,
        }

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> FirstValue:
        """What `to_json` gave."""
        index, shape = tuple(kept["index"]), tuple(kept["shape"])
        place = 0
        for at, extent in zip(index, shape, strict=True):
            place = place * extent + at
        return cls(kept["tensor"], index, shape, Element(place, kept["ledger"], kept["replay"], kept["ulp"]))


def first_value(history: RunHistory, stored: StoredStates, state: State) -> FirstValue | None:
    """Compare a replayed state with the stored one of its step; None where that is not at hand, or the same."""
    step = state.control.step
    if step not in history.states:
        return None
    expected = history.stored(step)
    try:
        claimed = load_state(stored.folder(step), state.layout, expected.control)
    except (BitwitnessError, MemoryError):
        return None
    found = claimed.commit()
    if (found.weights, found.optimizer) != (expected.weights, expected.optimizer):
        return None  # not what the trainer signed
    pairs = ((claimed.params, state.params, ""), (claimed.m, state.m, "m/"), (claimed.v, state.v, "v/"))
    for theirs, ours, prefix in pairs:
        replayed = state.layout.tensors(ours)
        for name, tensor in state.layout.tensors(theirs).items():
            if (element := first_element(tensor, replayed[name])) is not None:
                shape = tuple(tensor.shape)
                return FirstValue(prefix + name, unravel(element.index, shape), shape, element)
    return None
