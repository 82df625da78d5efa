"""Stored states and data from a server, a bucket or an export: fetched when a replay asks for them, kept, checked.

A state is downloaded whole, going on where an earlier try ended; of a dataset only the blocks are fetched that hold
what the replayed windows read. What the other side lacks or withholds is unavailable, and covers nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.exchange.replay_files import (
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    ModelAddress,
    PartsAddress,
    StateAddress,
)
from bitwitness.ledger.files.captured_file import MODEL_LIMIT
from bitwitness.ledger.files.safetensors_header import HEADER_LIMIT
from bitwitness.ledger.follow.remote import NotThere, Remote, RemoteError
from bitwitness.ledger.project import Project

from ..data import Dataset
from ..data.remote_dataset import RemoteDataset
from ..history import RunHistory
from ..memory import parameters
from ..models import own_model
from ..parts import MAX_FILE, PartsUnavailable
from ..state import StateUnavailable, state_folder

_TRIES = 3


class RemoteStates:
    """Those of one run at `remote`, kept below `folder`."""

    def __init__(self, remote: Remote, history: RunHistory, parameters: Callable[[], int], folder: Path) -> None:
        self._remote, self._run, self._folder = remote, history.run, folder
        self._parameters = parameters
        self._doubted: set[int] = set()

    def folder(self, step: int) -> Path:
        folder = state_folder(self._folder, step)
        if folder.is_dir():
            return folder
        part = folder.with_name(folder.name + ".part")
        part.mkdir(parents=True, exist_ok=True)
        for name, size in self.sizes(step).items():
            self._download(step, name, part / name, size)
        part.rename(folder)
        return folder

    def sizes(self, step: int) -> dict[str, int]:
        """The files of a stored state and the bytes of their tensors. Imported weights have no moments yet."""
        weights = 4 * self._parameters()
        return {WEIGHTS_FILE: weights} | ({OPTIMIZER_FILE: 2 * weights} if step else {})

    def at_hand(self, step: int) -> bool:
        return state_folder(self._folder, step).is_dir()

    def again(self, step: int) -> bool:
        """Once for each state: what was kept is dropped."""
        shutil.rmtree(state_folder(self._folder, step), ignore_errors=True)
        if step in self._doubted:
            return False
        self._doubted.add(step)
        return True

    def _download(self, step: int, name: str, path: Path, size: int) -> None:
        address = StateAddress(self._run, step, name).path
        room = size - (path.stat().st_size if path.exists() else 0)
        if room > shutil.disk_usage(path.parent).free:
            raise StateUnavailable(f"{path.parent}: no room for the {size} bytes of step {step}'s {name}")
        for attempt in range(_TRIES):
            try:
                with open(path, "ab") as file:
                    self._remote.download(address, file, size + HEADER_LIMIT + 8)
                return
            except NotThere:
                raise StateUnavailable(f"{self._remote.url} has no stored state of step {step}") from None
            except (RemoteError, OSError) as error:
                if attempt == _TRIES - 1 or isinstance(error, OSError):
                    raise StateUnavailable(f"the stored state of step {step} could not be fetched: {error}") from None


class RemoteMaterial:
    """What `remote` publishes for audits. `project`, the copy of its log, keeps what was fetched."""

    def __init__(self, remote: Remote, project: Project) -> None:
        self._remote, self._project = remote, project
        self._models: dict[str, bytes] = {}

    @property
    def project(self) -> Project:
        return self._project

    def states(self, history: RunHistory) -> RemoteStates:
        folder = self._project.runs_dir / history.run
        return RemoteStates(self._remote, history, lambda: self._parameters(history), folder)

    def _parameters(self, history: RunHistory) -> int:
        captured = own_model.captured(self.model(history), history)
        return parameters(history.config) if captured is None else captured.layout.size

    def dataset(self, history: RunHistory, name: str, expected: Commitment) -> Dataset:
        entries = history.datasets.values()
        entry = next(item for item in entries if item["name"] == name and item["dataset"] == expected.to_json())
        return RemoteDataset(self._remote, self._project.data_dir / expected.root, entry)

    def parts(self, history: RunHistory, step: int) -> bytes:
        try:
            return self._remote.get(PartsAddress(history.run, step).path, MAX_FILE)
        except NotThere:
            raise PartsUnavailable(f"{self._remote.url} has no parts of step {step}") from None
        except RemoteError as error:
            raise PartsUnavailable(f"the parts of step {step} could not be fetched: {error}") from None

    def model(self, history: RunHistory) -> bytes | None:
        """Fetched once; its digest is compared by whoever asked (own_model.captured)."""
        if history.run not in self._models:
            try:
                self._models[history.run] = self._remote.get(ModelAddress(history.run).path, MODEL_LIMIT)
            except RemoteError:
                return None
        return self._models[history.run]
