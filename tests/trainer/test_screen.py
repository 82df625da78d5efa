"""The screen between stored states: silent on honest runs, and it finds a weight that moved a little too far."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.screen import Bounds, differences
from bitwitness.trainer.config import RunConfig, parse_config
from bitwitness.trainer.models.layout import Layout
from bitwitness.trainer.state import State, initial_state
from bitwitness.trainer.step import Workspace, step_scalars

from .conftest import small_config, small_table


def config_of(**optimizer: Any) -> RunConfig:
    table = small_table(steps=40)
    table["optimizer"] = optimizer
    table["model"]["layers"] = 1
    return parse_config(table, where="test")


def advance(config: RunConfig, workspace: Workspace, state: State, gradient: np.ndarray) -> None:
    """One update with a made-up gradient, clipped as a step does it."""
    norm = math.sqrt(workspace.sum_squares(gradient))
    workspace.update(state, gradient, step_scalars(config, state.control.step + 1, norm, 1))
    state.advance(1, 1)


def filled(size: int, value: float) -> np.ndarray:
    return np.full(size, value, np.float32)


def copy(state: State) -> State:
    other = State(state.layout)
    for name in ("params", "m", "v"):
        getattr(other, name)[:] = getattr(state, name)
    other.control = state.control
    return other


GRADIENTS = {
    "steady": lambda n, size, noise: filled(size, 1e-3),
    "growing": lambda n, size, noise: filled(size, 1e-3 * 1.3**n),
    "a burst at the end": lambda n, size, noise: filled(size, 1e-2 if n % 8 == 7 else 1e-20),
    "noise": lambda n, size, noise: noise,
    "one element takes all": lambda n, size, noise: np.where(np.arange(size) == 5, np.float32(3.0), np.float32(0.0)),
    "underflow": lambda n, size, noise: filled(size, 1e-30 if n % 2 else -3e-38),
}
OPTIMIZERS: list[dict[str, Any]] = [
    {},
    {"beta1": 0.0, "beta2": 0.999},
    {"beta1": 0.95, "beta2": 0.9},
    {"beta1": 0.9, "beta2": 0.0},
    {"epsilon": 1e-30, "learning_rate": 0.5, "weight_decay": 3.0},
    {"frozen": ["model.norm.weight"], "weight_decay_overrides": {"model.layers.0.mlp.up_proj.weight": 0.7}},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_whatever_the_gradients_an_honest_run_passes(optimizer: dict[str, Any]) -> None:
    config = config_of(**optimizer)
    workspace = Workspace(config, 1)
    noise = np.random.default_rng(1)
    for make in GRADIENTS.values():
        state = initial_state(config, workspace.layout)
        bounds, before = Bounds(config, workspace.layout), copy(state)
        for number in range(24):
            size = workspace.layout.size
            advance(config, workspace, state, make(number, size, noise.standard_normal(size, np.float32)))
            if number % 8 == 7 or number == 0:
                assert list(differences(bounds, before, state)) == []
                before = copy(state)


def test_the_bound_is_one_that_gradients_can_come_near() -> None:
    """With the gradients that Cauchy–Schwarz names, an update reaches the bound to within its slack."""
    config = config_of(beta1=0.9, beta2=0.95)
    layout = Layout(config.model)
    bounds, updates = Bounds(config, layout), 30
    m = v = 0.0
    for t in range(1, updates + 1):  # g_i proportional to (β1/β2)^(t − i)
        g = (0.9 / 0.95) ** (updates - t)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    ratio, _rest = bounds.moments(updates)
    assert m / math.sqrt(v) <= ratio < m / math.sqrt(v) * 1.00001


def planted(change: str) -> list[str]:
    config = config_of()
    workspace = Workspace(config, 1)
    layout = workspace.layout
    state = initial_state(config, layout)
    gradient = np.random.default_rng(2).standard_normal(layout.size, np.float32)
    for _ in range(4):
        advance(config, workspace, state, gradient)
    before, bounds = copy(state), Bounds(config, layout)
    for _ in range(4):
        advance(config, workspace, state, gradient)
    name = "model.layers.0.mlp.up_proj.weight"
    at = layout.slots[name].offset + 7
    reach, old = bounds.reach(name, 4, 8), float(before.params[at])
    most = reach.move + abs(old * reach.kept) * reach.blur
    if change == "above":
        state.params[at] = old * reach.kept + most * 1.00001
    elif change == "below":
        state.params[at] = old * reach.kept - most * 0.99999
    elif change == "nan":
        state.params[at] = float("nan")
    elif change == "v":
        state.v[at], state.m[at] = before.v[at] * 0.8, 0.0
    else:
        state.m[at] = np.sqrt(state.v[at]) * 1.2
    return [text.split(":")[0] for text in differences(bounds, before, state)]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("above", ["weight 7"]),
        ("below", []),
        ("nan", ["weight 7"]),
        ("v", ["second moment's fall 7"]),
        ("m", ["first moment 7"]),
    ],
)
def test_a_planted_change(change: str, found: list[str]) -> None:
    assert planted(change) == [f"model.layers.0.mlp.up_proj.weight, {text}" for text in found]


def test_an_audit_screens_all_states(project: Project) -> None:
    from bitwitness.trainer.auditing.audit import audit
    from bitwitness.trainer.run import train

    train(project, small_config(), threads=2)
    report = audit(project, "r", screen=True, threads=2)
    assert (report.screened.compared, report.screened.total, report.screened.faults) == (3, 3, ())
    assert report.result == "match"


def test_a_replaced_state_is_found_without_replaying_it(tmp_path: Path) -> None:
    """A weight was swapped in the middle of a run, which was trained on from there."""
    from bitwitness.trainer.auditing.audit import audit

    from .conftest import make_project
    from .test_audit import lying_run

    project = make_project(tmp_path / "p")
    lying_run(
        project,
        "honest = step.Workspace.update\n"
        "def update(self, state, gradient, scalars):\n"
        "    honest(self, state, gradient, scalars)\n"
        "    if state.control.step == 2:\n"
        "        state.params[1000] += 0.1\n"
        "step.Workspace.update = update",
    )
    report = audit(project, "r", screen=True, threads=2)
    assert [fault.step for fault in report.screened.faults] == [4]
    wrong = [item for item in report.units if item.found is not None]
    assert report.result == "mismatch" and (3, 4) in [(item.unit.first, item.unit.last) for item in wrong]
    assert wrong[0].found is not None and wrong[0].found["field"] == "screen"
    assert "AdamW allows in 2 updates" in str(wrong[0].reason)
    # No replay starts from a state that cannot be: the last unit's begins before it, and meets the step.
    assert wrong[1].found is not None and wrong[1].found["step"] == 3
