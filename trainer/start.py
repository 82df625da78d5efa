"""What a run begins with: the state drawn from its seed, or imported weights with moments of +0."""

from __future__ import annotations

from typing import Any

from bitwitness.ledger.project import Project

from .config import Model, RunConfig
from .history import RunHistory
from .imports import find_import, load_import, matching_import
from .layout import Layout
from .state import State, initial_state, save_state, state_folder

_IMPORT = "import:"


def begin(project: Project, config: RunConfig, layout: Layout) -> tuple[State, dict[str, Any]]:
    """State 0 of a new run, and the `init` of its genesis. Raises what a missing or damaged import raises."""
    if config.run.start is None:
        return initial_state(config, layout), {"kind": "seeded"}
    found = find_import(project, config.run.start.removeprefix(_IMPORT))
    return load_import(project, found, config.decoder), found.init()


def keep(project: Project, config: RunConfig, state: State, init: dict[str, Any]) -> None:
    """Store state 0 where no seed gives it again. The genesis commits to it, so it has no `state` entry."""
    if init["kind"] != "seeded":
        save_state(state, state_folder(project.runs_dir / config.run.name, 0))


def provide(project: Project, history: RunHistory) -> None:
    """Put state 0 of a run in its place where only the imported files are at hand. Raises NoSuchImport, …"""
    init = history.genesis["init"]
    folder = state_folder(project.runs_dir / history.name, 0)
    if init["kind"] == "import" and not folder.is_dir():
        save_state(load_import(project, matching_import(project, init), history.config.decoder), folder)


def model_of(project: Project, start: str) -> Model:
    """The [model] of what `run.from` names."""
    return find_import(project, start.removeprefix(_IMPORT)).model
