"""What a replay reads besides the ledger: stored states and data, wherever they lie. None of it is believed.

A state counts once its commitments equal the ledger's (`replay.stored_state`), a document once its digest is proven
to the dataset's root (`Dataset.check_range`). So the same audit works on a folder, a server and a bucket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.project import Project

from .data import Dataset
from .history import RunHistory
from .models.own_model import read_model
from .parts import read_leaves
from .state import StateUnavailable, state_folder


class StoredStates(Protocol):
    """Where the stored states of one run are."""

    def folder(self, step: int) -> Path:
        """The folder of the state after `step` updates, complete. Raises StateUnavailable."""

    def at_hand(self, step: int) -> bool:
        """Whether that folder is here already, so that reading it costs no transfer."""

    def again(self, step: int) -> bool:
        """Whether a state that was not the ledger's is worth another look: it may be damaged by the way it came."""


class Material(Protocol):
    """Stored states and data of the runs of one ledger."""

    @property
    def project(self) -> Project:
        """The project whose imports an imported run is held against."""

    def states(self, history: RunHistory) -> StoredStates: ...

    def dataset(self, history: RunHistory, name: str, expected: Commitment) -> Dataset:
        """The dataset that a run calls so, if it has this commitment. Raises what Dataset.open raises."""

    def parts(self, history: RunHistory, step: int) -> bytes:
        """What is said to be the parts that a step commits to. Raises PartsUnavailable; not yet believed."""

    def model(self, history: RunHistory) -> bytes | None:
        """What is said to be the captured model of a run; None where there is nothing. Not yet believed."""


class LocalStates:
    """Those in a run's folder. Where the first one of a run with a parent is missing, the parent's stands in."""

    def __init__(self, runs_dir: Path, history: RunHistory) -> None:
        self._run_folder, self._first, self._parents = runs_dir / history.name, history.first, None
        if history.parent is not None:
            self._parents = runs_dir / history.parent.name

    def _place(self, step: int) -> Path:
        folder = state_folder(self._run_folder, step)
        if step == self._first and self._parents is not None and not folder.is_dir():
            return state_folder(self._parents, step)
        return folder

    def folder(self, step: int) -> Path:
        folder = self._place(step)
        if not folder.is_dir():
            hint = "" if step else "; `ledger model import` of the same files gives it again"
            raise StateUnavailable(f"{folder}: the stored state of step {step} is missing{hint}")
        return folder

    def at_hand(self, step: int) -> bool:
        return self._place(step).is_dir()

    def again(self, step: int) -> bool:
        return False


class LocalMaterial:
    """What a project's own folders hold."""

    def __init__(self, project: Project) -> None:
        self._project = project

    @property
    def project(self) -> Project:
        return self._project

    def states(self, history: RunHistory) -> StoredStates:
        return LocalStates(self._project.runs_dir, history)

    def dataset(self, history: RunHistory, name: str, expected: Commitment) -> Dataset:
        return Dataset.open(self._project.data_dir, name, expected=expected)

    def parts(self, history: RunHistory, step: int) -> bytes:
        return read_leaves(self._project.runs_dir / history.name, step)

    def model(self, history: RunHistory) -> bytes | None:
        return read_model(self._project.runs_dir / history.name)
