"""What a replay reads besides the log: stored states and public data, by addresses that hold only digests and numbers.

The same paths lead to them on `ledger serve`, below an export and in a project folder (docs/formats/replay-files.md):

    replay/states/RUN/STEP/weights.safetensors     RUN: the leaf hash of the genesis, STEP: decimal
    replay/states/RUN/STEP/optimizer.safetensors
    replay/parts/RUN/STEP.json                     of a run that commits to parts of its steps: the leaves of one
    replay/models/RUN/model.json                   of a run that trains a module of the user's: its captured program
    replay/data/ROOT/FILE                          ROOT: of the dataset's commitment, FILE: as its manifest names it

Nothing here is believed by who fetches it: states and documents are checked against the ledger's commitments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .. import jcs
from ..errors import BitwitnessError
from ..files.captured_file import MODEL_FILE
from ..files.regular_file import open_regular, read_regular
from ..project import Project
from ..store import Ledger

PREFIX = "replay/"
ENTRIES = PREFIX + "entries"
"""Where a server takes audit entries, by POST."""
WEIGHTS_FILE, OPTIMIZER_FILE = "weights.safetensors", "optimizer.safetensors"
MANIFEST, HELD_OUT, HELD_OUT_FOLDER = "manifest.json", ".held-out", "held-out"
MANIFEST_LIMIT = 1 << 24

_STATE = re.compile(r"states/([0-9a-f]{64})/(0|[1-9][0-9]{0,14})/(weights\.safetensors|optimizer\.safetensors)")
_PARTS = re.compile(r"parts/([0-9a-f]{64})/([1-9][0-9]{0,14})\.json")
_MODEL = re.compile(r"models/([0-9a-f]{64})/model\.json")
_DATA = re.compile(r"data/([0-9a-f]{64})/(manifest\.json|documents\.bin|tree\.bin|tokens-[0-9]{5,9}\.bin)")


@dataclass(frozen=True)
class StateAddress:
    """A file of a stored state."""

    run: str
    step: int
    file: str

    @property
    def path(self) -> str:
        return f"{PREFIX}states/{self.run}/{self.step}/{self.file}"


@dataclass(frozen=True)
class PartsAddress:
    """The leaves of the parts that a step commits to."""

    run: str
    step: int

    @property
    def path(self) -> str:
        return f"{PREFIX}parts/{self.run}/{self.step}.json"


@dataclass(frozen=True)
class ModelAddress:
    """The captured program of a run, which its genesis commits to."""

    run: str

    @property
    def path(self) -> str:
        return f"{PREFIX}models/{self.run}/{MODEL_FILE}"


@dataclass(frozen=True)
class DataAddress:
    """A file of a dataset: its manifest, its index, its tree, or some of its tokens; never text, paths or salts."""

    root: str
    file: str

    @property
    def path(self) -> str:
        return f"{PREFIX}data/{self.root}/{self.file}"


Address = StateAddress | PartsAddress | ModelAddress | DataAddress


def parse_address(path: str) -> Address | None:
    """The address that a path (beginning with `replay/`) is, character by character; None for any other path."""
    below = path.removeprefix(PREFIX)
    if below == path:
        return None
    if (state := _STATE.fullmatch(below)) is not None:
        return StateAddress(state[1], int(state[2]), state[3])
    if (parts := _PARTS.fullmatch(below)) is not None:
        return PartsAddress(parts[1], int(parts[2]))
    if (model := _MODEL.fullmatch(below)) is not None:
        return ModelAddress(model[1])
    if (data := _DATA.fullmatch(below)) is not None:
        return DataAddress(data[1], data[2])
    return None


def state_folder(run_folder: Path, step: int) -> Path:
    """Where a run's folder keeps the state after `step` updates."""
    return run_folder / "states" / f"step-{step:08d}"


def parts_file(run_folder: Path, step: int) -> Path:
    """Where a run's folder keeps the leaves of the parts of a step."""
    return run_folder / "parts" / f"step-{step:08d}.json"


def dataset_folder(data_dir: Path, name: str) -> Path:
    """Where dataset `name` lies; what a build of X held out, `X.held-out`, lies inside the folder of X."""
    if name.endswith(HELD_OUT):
        return data_dir / name.removesuffix(HELD_OUT) / HELD_OUT_FOLDER
    return data_dir / name


def open_file(project: Project, ledger: Ledger, address: Address) -> BinaryIO | None:
    """The project's own file at an address, open; None where it has none, or where the dataset is not public.

    Folder names come from the ledger, whose entries' names are checked; nothing of the address reaches a path but
    digits and the names of files listed here.
    """
    if not isinstance(address, DataAddress):
        row = ledger.connection.execute("SELECT name FROM runs WHERE hash = ?", (address.run,)).fetchone()
        if row is None:
            return None
        folder = project.runs_dir / str(row[0])
        if isinstance(address, ModelAddress):
            return _open(folder / MODEL_FILE)
        if isinstance(address, PartsAddress):
            return _open(parts_file(folder, address.step))
        return _open(state_folder(folder, address.step) / address.file)
    rows = ledger.connection.execute(
        "SELECT DISTINCT name, visibility FROM datasets WHERE root = ?", (address.root,)
    ).fetchall()
    if any(visibility != "public" for _name, visibility in rows):
        return None
    for name, _visibility in rows:
        folder = dataset_folder(project.data_dir, str(name))
        file = _open(folder / address.file)
        if file is not None:
            if _is_public(folder, address.root):
                return file
            file.close()
    return None


def _is_public(folder: Path, root: str) -> bool:
    """Whether the dataset that lies there now is the public one of this root: a folder may have been built anew.

    Asked after a file of it was opened, so that a folder that changes meanwhile is not taken for the one before.
    """
    try:
        manifest = jcs.parse(read_regular(folder / MANIFEST, MANIFEST_LIMIT))
        return bool(manifest["visibility"] == "public" and manifest["dataset"]["root"] == root)
    except (OSError, BitwitnessError, ValueError, KeyError, TypeError):
        return False


def _open(path: Path) -> BinaryIO | None:
    try:
        return open_regular(path)
    except OSError:
        return None
