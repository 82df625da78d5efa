"""A model of the user's own (`model.module`): read, captured, committed to, stored with the run, and read back.

Only `train` runs the user's file. What it captures is data (kernels/capturing/graph.py): `runs/NAME/model.json`,
canonical JSON whose SHA-256 stands in the genesis beside that of the file. Replay and audit run what was captured, and
nothing else.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bitwitness.kernels.capturing.graph import Graph
from bitwitness.kernels.dropout_rule import dropout_key
from bitwitness.kernels.errors import KernelError
from bitwitness.ledger import jcs
from bitwitness.ledger.errors import BitwitnessError, JsonError
from bitwitness.ledger.files import durable
from bitwitness.ledger.files.captured_file import MODEL_FILE, MODEL_LIMIT
from bitwitness.ledger.files.regular_file import read_regular

from ..config import RunConfig, UserModel
from ..history import RunHistory
from .apart import OWN, apart
from .captured import CapturedModel

if TYPE_CHECKING:
    import torch

_SOURCE_LIMIT = 1 << 20

Json = dict[str, Any]


class ModelError(BitwitnessError):
    """The user's file cannot be made a model of; the message names the file, and the line where there is one."""


class ModelChanged(BitwitnessError):
    """The user's file is not the one that the run began with."""


class ModelUnavailable(BitwitnessError):
    """The captured model of a run is not at hand."""


@dataclass(frozen=True)
class OwnModel:
    """A captured model: its programs, its canonical JSON, and the SHA-256 of the file that it came from.

    `programs.config` is the run's configuration with what the record says of the model (its dropout) filled in.
    """

    programs: CapturedModel
    data: bytes
    source: str

    @cached_property
    def program(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def to_json(self) -> Json:
        """The `model` of a genesis."""
        return {"program": self.program, "source": self.source}

    def save(self, run_folder: Path) -> None:
        """Store the captured model with the run, durably, unless it is there."""
        path = run_folder / MODEL_FILE
        if path.is_file() and path.read_bytes() == self.data:
            return
        run_folder.mkdir(parents=True, exist_ok=True)
        try:
            durable.replace(path, self.data)
        except OSError as error:
            raise BitwitnessError(f"{path}: the captured model could not be stored: {error.strerror}") from None


def load(root: Path, config: RunConfig) -> OwnModel:
    """Run the user's file, which lies in the project folder `root`, and capture its model.

    Forward runs on tensors without memory, for two numbers of windows, in training and not. Raises ModelError, and
    CaptureError for what has no defined bits.
    """
    model = config.model
    assert isinstance(model, UserModel)
    import torch  # a run of the built-in model does without it

    from bitwitness.kernels.capturing.capture import capture, declaring

    path = root / model.file
    source = _read(path, model.file)
    with apart(), _told(path, model.file):
        module = _run(source, path)
        cls = getattr(module, model.cls, None)
        if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
            raise ModelError(f"{model.file} has no torch.nn.Module {model.cls}; model.module names FILE.py:CLASS")
        with declaring(str(path)):
            made = cls(**model.arguments)
        graph = capture(
            made, window=config.data.window, seed=config.run.seed, z_loss=config.loss.z_loss, file=str(path)
        )
        dropout = _dropout(made, graph, config.run.seed)
    data = jcs.encode(graph.to_json())
    if len(data) > MODEL_LIMIT:
        raise ModelError(f"{model.file} is captured into {len(data)} bytes; auditors read at most {MODEL_LIMIT}")
    # Read as auditors will read it, so that nobody trains what no audit takes.
    read = Graph.from_json(jcs.parse(data))
    config = _with_dropout(config, model.file, dropout)
    return OwnModel(CapturedModel(config, read), data, hashlib.sha256(source).hexdigest())


def _dropout(made: torch.nn.Module, graph: Graph, seed: int) -> dict[str, float]:
    """The layers that drop in training, and their p."""
    from bitwitness.kernels import nn

    keys = {(node.attributes["key0"], node.attributes["key1"]) for node in graph.step if node.op == "dropout"}
    layers = (module for module in made.modules() if isinstance(module, nn.Dropout))
    return {layer.name: layer.p for layer in layers if dropout_key(seed, layer.name) in keys}


def _with_dropout(config: RunConfig, file: str, found: dict[str, float]) -> RunConfig:
    """The configuration with the dropout of the model, which stands in the record for everyone to read."""
    given = config.dropout
    if given and given != found:
        odd = min(name for name in given.keys() | found.keys() if given.get(name) != found.get(name))
        said, has = (f"p = {each[odd]}" if odd in each else "none" for each in (given, found))
        raise ModelError(f"{file}: Dropout {odd!r} is {has} there, {said} in model.dropout; leave model.dropout out")
    return config.with_dropout(found)


def as_recorded(config: RunConfig, recorded: RunConfig) -> RunConfig:
    """A configuration whose file leaves out what the record says of the model; require_same compares the model."""
    if isinstance(config.model, UserModel) and isinstance(recorded.model, UserModel) and config.model.dropout is None:
        return config.with_dropout(recorded.model.dropout)
    return config


def require_same(own: OwnModel | None, recorded: Json | None, config: RunConfig) -> None:
    """Raise ModelChanged unless a resumed run has the model that its genesis commits to."""
    if own is None or recorded is None:
        return
    assert isinstance(config.model, UserModel)
    began = f"run {config.run.name} began with"
    if own.source != recorded["source"]:
        raise ModelChanged(
            f"{config.model.file} is not the file that {began} (SHA-256 {recorded['source'][:16]}…, now "
            f"{own.source[:16]}…); put it back, or begin a new run"
        )
    if own.program != recorded["program"]:
        raise ModelChanged(
            f"{config.model.file} is captured into another program than {began}; forward must not change"
        )


def read_model(run_folder: Path) -> bytes | None:
    """The bytes of a run's captured model, unchecked; None where there is none."""
    try:
        return read_regular(run_folder / MODEL_FILE, MODEL_LIMIT)
    except OSError:
        return None


def captured(data: bytes | None, history: RunHistory) -> CapturedModel | None:
    """The programs of a run's captured model; None for a run of the built-in one.

    Raises ModelUnavailable where `data` is not what the genesis commits to, GraphError where that is no model.
    """
    recorded = history.genesis.get("model")
    if recorded is None:
        return None
    if data is None:
        raise ModelUnavailable(
            f"the run's {MODEL_FILE} is missing; it lies in the run's folder, or with whoever trained it"
        )
    if hashlib.sha256(data).hexdigest() != recorded["program"]:
        raise ModelUnavailable(f"the run's {MODEL_FILE} is not the one that the ledger commits to")
    try:
        graph = Graph.from_json(jcs.parse(data, max_bytes=MODEL_LIMIT))
    except JsonError as error:
        raise KernelError(f"{MODEL_FILE}: {error}") from None
    return CapturedModel(history.config, graph)


def _read(path: Path, name: str) -> bytes:
    try:
        return read_regular(path, _SOURCE_LIMIT)
    except OSError as error:
        raise ModelError(f"{name}: {error.strerror}; model.module names a file in the project folder") from None


@contextmanager
def _told(path: Path, name: str) -> Iterator[None]:
    """Whatever the user's code raises, or torch over what it made, is one line that names the file, and its line.

    It runs in more places than its own: a class may have its own `train`, `named_parameters` or `__getattr__`.
    """
    from bitwitness.kernels.capturing.capture_guard import is_interrupt, said_of

    try:
        yield
    except (BitwitnessError, KernelError):
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        line = _line(error, str(path))
        if isinstance(error, SyntaxError) and error.filename == str(path):
            line = error.lineno
        where = name if line is None else f"{name}:{line}"
        raise ModelError(f"{where}: {said_of(error)}") from error


def _run(source: bytes, path: Path) -> ModuleType:
    """Execute the very bytes that were read as a module. It stays in sys.modules, which dataclasses look into."""
    module = ModuleType(OWN)
    module.__file__, module.__spec__ = str(path), ModuleSpec(OWN, None, origin=str(path))
    sys.modules[OWN] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _line(error: BaseException, file: str) -> int | None:
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
