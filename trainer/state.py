"""The state between two steps, its commitment, and its file form.

A state is everything that the next step depends on: weights, both moments of the optimizer, and the control
numbers (step, tokens, cursor). State n is the state after n updates; state 0 is in the genesis.

Stored, it is a folder `step-00000050/` with `weights.safetensors` and `optimizer.safetensors`. What a folder holds
is believed only once its commitments equal the ledger's.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from bitwitness.kernels.buffers import F32, floats
from bitwitness.kernels.initial import fill
from bitwitness.ledger import commitments
from bitwitness.ledger.commitments import Commitment, byte_view
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.exchange.replay_files import OPTIMIZER_FILE, WEIGHTS_FILE, state_folder
from bitwitness.ledger.files import durable
from bitwitness.ledger.files.safetensors_header import (
    HEADER_LIMIT,
    SafetensorsError,
    TensorEntry,
    read_header,
    write_file,
)

from . import hashing
from .config import RunConfig
from .models.layout import Layout

__all__ = ["OPTIMIZER_FILE", "WEIGHTS_FILE", "State", "StateCommitment", "load_state", "save_state", "state_folder"]


class StateUnavailable(BitwitnessError):
    """No stored state can be read where one is needed."""


class StateMismatch(FoundWrong):
    """A stored state is not the one that the ledger commits to. `found` is its digest, if it could be read."""

    def __init__(self, message: str, found: str = "") -> None:
        super().__init__(message)
        self.found = found


@dataclass(frozen=True)
class Control:
    """Updates done, tokens learned from, and the absolute number of the next window."""

    step: int = 0
    tokens: int = 0
    cursor: int = 0

    def to_json(self) -> dict[str, int]:
        return {"cursor": self.cursor, "step": self.step, "tokens": self.tokens}


@dataclass(frozen=True)
class StateCommitment:
    """What a state commits to. `optimizer` is absent where the run thins it (`commit_optimizer_every`)."""

    control: Control
    weights: Commitment
    optimizer: Commitment | None

    @property
    def digest(self) -> str:
        return commitments.state_digest(self.control.to_json(), self.optimizer, self.weights)


class State:
    """Flat float32 buffers of n elements each: weights, first and second moment; and the control numbers."""

    def __init__(self, layout: Layout, *, moments: bool = True) -> None:
        """All +0. Without `moments` only the weights take memory; such a state makes no step."""
        self.layout = layout
        self.params = floats(layout.size)
        self.m = floats(layout.size if moments else 0)
        self.v = floats(layout.size if moments else 0)
        self.control = Control()

    def commit(self, *, optimizer: bool = True) -> StateCommitment:
        """Hash the state: `weights/1` and, unless thinned, `optimizer/1` (moments named m/NAME and v/NAME)."""
        weights = hashing.commit("weights/1", self.layout.views(self.params))
        moments = None
        if optimizer:
            views = {**self.layout.views(self.m, "m/"), **self.layout.views(self.v, "v/")}
            moments = hashing.commit("optimizer/1", views)
        return StateCommitment(self.control, weights, moments)

    def advance(self, tokens: int, windows: int) -> None:
        """Count one update that learned from `tokens` tokens of `windows` windows."""
        now = self.control
        self.control = replace(now, step=now.step + 1, tokens=now.tokens + tokens, cursor=now.cursor + windows)


def initial_state(config: RunConfig, layout: Layout) -> State:
    """Draw state 0 from the seed, each tensor as the layout says, moments of +0."""
    state = State(layout)
    for name, tensor in layout.tensors(state.params).items():
        fill(tensor, layout.initial[name], config.run.seed, name)
    return state


def save_state(state: State, folder: Path) -> int:
    """Write a state durably: temporary name, fsync, rename. Returns its bytes. An existing folder is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(folder.name + f".tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        size = 0
        for name, tensors in _files(state).items():
            path = temporary / name
            views = {key: ("F32", tuple(tensor.shape), byte_view(tensor)) for key, tensor in tensors.items()}
            write_file(path, views)
            size += path.stat().st_size
        durable.sync_folder(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        durable.sync_folder(folder.parent)
        return size
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise BitwitnessError(f"{folder}: the state could not be stored: {error.strerror}") from None


_TEMPORARY = re.compile(r"step-[0-9]{8,}\.tmp-([0-9]{1,9})")


def remove_leftovers(run_folder: Path) -> None:
    """Remove what processes that died while they stored a state left behind."""
    for path in sorted(run_folder.glob("states/step-*.tmp-*")):
        match = _TEMPORARY.fullmatch(path.name)
        if match is not None and not _alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def load_state(folder: Path, layout: Layout, control: Control) -> State:
    """Read a stored state into memory. Raises StateUnavailable or StateMismatch; trust it after `commit()`."""
    state = State(layout)
    state.control = control
    for name, tensors in _files(state).items():
        load_tensors(folder / name, tensors)
    return state


def load_weights(path: Path, state: State) -> None:
    """Fill the weights of `state` from a file that holds exactly them. Raises StateUnavailable or StateMismatch."""
    load_tensors(path, state.layout.tensors(state.params))


def _files(state: State) -> dict[str, dict[str, F32]]:
    """Which tensors stand in which file of a stored state."""
    m, v = state.layout.tensors(state.m), state.layout.tensors(state.v)
    return {
        WEIGHTS_FILE: state.layout.tensors(state.params),
        OPTIMIZER_FILE: {"m/" + name: m[name] for name in m} | {"v/" + name: v[name] for name in v},
    }


def load_tensors(path: Path, tensors: dict[str, F32]) -> None:
    """Fill `tensors` from a safetensors file that holds exactly them. Anything but a regular file is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a FIFO would be waited for
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise StateUnavailable(f"{path}: not a regular file")
            room = HEADER_LIMIT + sum(tensor.nbytes for tensor in tensors.values())
            if status.st_size > room + 8:
                raise StateMismatch(f"{path}: {status.st_size} bytes are more than the model's tensors")
            entries = _header(file, path, status.st_size)
            if entries.keys() != tensors.keys():
                odd = min(entries.keys() ^ tensors.keys())
                raise StateMismatch(f"{path}: tensor {odd} is in the file or in the model, not in both")
            for name, tensor in tensors.items():
                entry = entries[name]
                if entry.dtype != "F32" or entry.shape != tuple(tensor.shape):
                    found, wanted = list(entry.shape), list(tensor.shape)
                    raise StateMismatch(f"{path}: {name} is {entry.dtype} {found}, not F32 {wanted}")
                file.seek(entry.begin)
                if file.readinto(byte_view(tensor)) != tensor.nbytes:
                    raise StateMismatch(f"{path}: {name} is cut short")
    except SafetensorsError as error:
        raise StateMismatch(str(error)) from None
    except (OSError, ValueError) as error:
        raise StateUnavailable(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _header(file: BinaryIO, path: Path, size: int) -> dict[str, TensorEntry]:
    """The file's checked table of tensors. It is mapped for that, and read only as far as its header reaches."""
    data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
    return {entry.name: entry for entry in read_header(data, str(path)).tensors}
