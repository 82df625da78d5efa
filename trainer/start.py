"""What a run begins with: a state drawn from its seed, imported weights, or the state after a step of another run."""

from __future__ import annotations

from typing import Any

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from .config import Model, RunConfig, UserModel
from .history import RunHistory, open_run, open_verified_run
from .models import own_model
from .models.imports import find_import, load_import, matching_import
from .models.layout import Layout
from .record_check import require_record
from .state import State, StateMismatch, initial_state, load_state, save_state, state_folder

_IMPORT = "import:"


class NoSuchStart(BitwitnessError):
    """`run.from` names a step that has no stored state here, or a run of another model."""


def begin(project: Project, ledger: Ledger, config: RunConfig, layout: Layout) -> tuple[State, dict[str, Any]]:
    """The first state of a new run, and the `init` of its genesis.

    Raises NoSuchRun, NoSuchStart, StateMismatch, RecordWrong, and what a missing or damaged import raises.
    """
    if config.run.start is None:
        return initial_state(config, layout), {"kind": "seeded"}
    if config.parent is not None:
        name, step = config.parent
        parent = open_verified_run(project, ledger, name)
        if parent.name != name:  # the genesis names it by its hash, and the configuration by its name
            raise NoSuchStart(f'run.from = "{name}@{step}": give the name of that run, "{parent.name}@{step}"')
        return _parents(project, parent, step, layout, ledger.origin)
    found = find_import(project, config.run.start.removeprefix(_IMPORT))
    return load_import(project, found, config.decoder), found.init()


def _parents(
    project: Project, parent: RunHistory, step: int, layout: Layout, origin: str
) -> tuple[State, dict[str, Any]]:
    """The state after a step of another run, moments and control too, and how a genesis names it."""
    folder = project.runs_dir / parent.name
    stored = sorted(number for number in parent.states if state_folder(folder, number).is_dir())
    if step not in stored:
        beside = [max((n for n in stored if n < step), default=0), min((n for n in stored if n > step), default=0)]
        nearest = " and ".join(f"{parent.name}@{number}" for number in beside if number) or "none at all"
        raise NoSuchStart(f"run {parent.name} has no stored state of step {step} here; the nearest: {nearest}")
    require_record(parent, origin)
    _require_layout(project, parent, layout)
    expected, entry = parent.stored(step), parent.states[step]
    state = load_state(state_folder(folder, step), layout, expected.control)
    found = state.commit()
    if found != expected:
        raise StateMismatch(
            f"{state_folder(folder, step)}: the state is not what the ledger commits to; `ledger audit {parent.name}`",
            found.digest,
        )
    init = {"entry": entry.leaf_hash.hex(), "kind": "parent", "run": parent.run, "state": found.digest, "step": step}
    return state, init


def _require_layout(project: Project, parent: RunHistory, layout: Layout) -> None:
    """Raise NoSuchStart unless the parent's tensors have the names and shapes of `layout`."""
    captured = own_model.captured(own_model.read_model(project.runs_dir / parent.name), parent)
    theirs = Layout(parent.config.decoder) if captured is None else captured.layout
    before, now = ({name: slot.shape for name, slot in each.slots.items()} for each in (theirs, layout))
    odd = next((name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)), None)
    if odd is not None:
        had, has = (list(each[odd]) if odd in each else "absent" for each in (before, now))
        raise NoSuchStart(
            f"run {parent.name} has a model of another shape: {odd} is {had} there, {has} in [model]; leave [model] out"
        )


def keep(project: Project, config: RunConfig, state: State, init: dict[str, Any]) -> None:
    """Store the first state where no seed gives it again. The genesis commits to it, so it has no `state` entry."""
    if init["kind"] != "seeded":
        save_state(state, state_folder(project.runs_dir / config.run.name, state.control.step))


def provide(project: Project, history: RunHistory) -> None:
    """Put state 0 of a run in its place where only the imported files are at hand. Raises NoSuchImport, …"""
    init = history.genesis["init"]
    folder = state_folder(project.runs_dir / history.name, 0)
    if init["kind"] == "import" and not folder.is_dir():
        save_state(load_import(project, matching_import(project, init), history.config.decoder), folder)


def model_of(project: Project, start: str) -> Model | UserModel:
    """The [model] of what `run.from` names."""
    if start.startswith(_IMPORT) or "@" not in start:
        return find_import(project, start.removeprefix(_IMPORT)).model
    with project.open_ledger() as ledger:
        config = open_run(ledger, start.partition("@")[0]).config
    # What the record says of the parent's layers follows anew from the file.
    return config.with_dropout(None).model if isinstance(config.model, UserModel) else config.model
