"""Weights that come from elsewhere: a Llama checkpoint in safetensors, widened exactly to float32.

`imports/NAME/` of a project holds `weights.safetensors`, the tensors under the names and shapes that a run stores, and
`import.json`: the model, the `weights/1` commitment, and name and SHA-256 of every file that was read. A run that
begins with an import records the last two in its genesis, so whoever has the files can make the same import and meet
the same root. The files are read once: the bytes that are hashed are those that are converted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.ledger import foreign_json, jcs
from bitwitness.ledger.commitments import Commitment, byte_view
from bitwitness.ledger.errors import BitwitnessError, FoundWrong, JsonError
from bitwitness.ledger.files import durable
from bitwitness.ledger.files.regular_file import open_regular, read_regular
from bitwitness.ledger.files.safetensors_header import Header, SafetensorsError, read_header, write_file
from bitwitness.ledger.project import Project

from ..config import Model
from ..state import WEIGHTS_FILE, State, load_weights
from . import narrow
from .layout import EMBED, HEAD, Layout
from .llama_config import read_config

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
RECORD_FILE = "import.json"
FORMAT = "bitwitness/import/1"
FILES_LIMIT = 128
_JSON_LIMIT = 16 << 20
_WEIGHTS_LIMIT = 1 << 40
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,180}\.safetensors")

Json = dict[str, Any]


class ImportRefused(BitwitnessError):
    """A checkpoint that cannot be imported; one line says why."""


class NoSuchImport(BitwitnessError):
    """The project has no import of this name, or none of these weights."""


class ImportDamaged(FoundWrong):
    """The stored import is not what its record says."""


@dataclass(frozen=True)
class Import:
    """An import of a project: `files` are {"name", "sha256"} of what was read, by name."""

    name: str
    model: Model
    weights: Commitment
    files: Sequence[Mapping[str, str]]

    def init(self) -> Json:
        """The `init` of a genesis that begins with these weights."""
        return {"files": [dict(item) for item in self.files], "kind": "import", "weights": self.weights.to_json()}


def imports_dir(project: Project) -> Path:
    return project.root / "imports"


def import_checkpoint(source: Path, folder: Path, name: str) -> Import:
    """Read the Llama checkpoint `source` into `folder`/`name`, which must not exist. Raises ImportRefused and others.

    `source` is a folder of `config.json` and safetensors files, or one of a hub's cache (with `snapshots/`).
    """
    if not _NAME.fullmatch(name):
        raise ImportRefused(f"{name[:100]!a} is not a name for an import: 1 to 100 of A-Z a-z 0-9 . _ -")
    target = folder / name
    if target.exists():
        raise ImportRefused(f"{target} exists; give the import another name, or remove the folder")
    files = _Files(source)
    model = read_config(files.read(CONFIG, _JSON_LIMIT), str(source / CONFIG))
    layout, shards = Layout(model), _shards(files)
    held = files.size(shards)
    if 2 * layout.size > held:  # two bytes are the least that an element takes
        raise ImportRefused(
            f"{source / CONFIG} describes a model of {layout.size} parameters, which the {held} bytes of weights there "
            "cannot hold"
        )
    state = State(layout, moments=False)
    _fill(files, shards, layout, state, model)
    made = Import(name, model, state.commit(optimizer=False).weights, files.listed())
    temporary = folder / f".tmp-{os.getpid()}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        tensors = layout.tensors(state.params)
        write_file(temporary / WEIGHTS_FILE, {n: ("F32", tuple(t.shape), byte_view(t)) for n, t in tensors.items()})
        durable.write_new(temporary / RECORD_FILE, jcs.encode(_record(made)))
        durable.sync_folder(temporary)
        temporary.rename(target)
        durable.sync_folder(folder)
    except OSError as error:
        raise ImportRefused(f"{error.filename or target}: {error.strerror}; nothing was imported") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return made


def find_import(project: Project, name: str) -> Import:
    """The project's import of this name. Raises NoSuchImport, ImportDamaged."""
    folder = imports_dir(project)
    if not _NAME.fullmatch(name) or not (folder / name / RECORD_FILE).is_file():
        known = ", ".join(sorted(path.parent.name for path in folder.glob(f"[!.]*/{RECORD_FILE}"))) or "none"
        raise NoSuchImport(f"no import {name[:100]} (there: {known}); `ledger model import DIR NAME` makes one")
    path = folder / name / RECORD_FILE
    try:
        found = jcs.parse(read_regular(path, _JSON_LIMIT), max_bytes=_JSON_LIMIT)
        if found.keys() != {"files", "format", "model", "weights"} or found["format"] != FORMAT:
            raise ImportDamaged(f"{path}: not a record of the format {FORMAT}")
        model = Model.model_validate({**found["model"], **{k: jcs.f64_from_hex(found["model"][k]) for k in _FLOATS}})
        weights = Commitment.from_json(found["weights"], type="weights/1")
        if not isinstance(found["files"], list) or not all(map(_is_named_file, found["files"])):
            raise ImportDamaged(f"{path}: files are not a list of name and sha256 each")
        return Import(name, model, weights, found["files"])
    except ImportDamaged:
        raise
    except (OSError, BitwitnessError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImportDamaged(f"{path}: not a readable record: {str(error).splitlines()[0]}") from None


def load_import(project: Project, found: Import, model: Model) -> State:
    """State 0 of a run of `model` that begins with the import: its weights, moments of +0. Raises ImportDamaged, …"""
    differing = [key for key in _SHAPE if getattr(found.model, key) != getattr(model, key)]
    if differing:
        said = ", ".join(f"{key} = {getattr(found.model, key)!r}" for key in differing)
        raise ImportRefused(f"the import {found.name} is another model than [model]: it has {said}; leave [model] out")
    state = State(Layout(model))
    path = imports_dir(project) / found.name / WEIGHTS_FILE
    load_weights(path, state)
    if state.commit(optimizer=False).weights != found.weights:
        raise ImportDamaged(f"{path}: other weights than {RECORD_FILE} says; import the checkpoint again")
    return state


def contradiction(project: Project, init: Mapping[str, Any]) -> Commitment | None:
    """The weights of an import of exactly the files that `init` names, if they are others than `init` says."""
    for found in _imports(project):
        if found.init()["files"] == init["files"] and found.weights.to_json() != init["weights"]:
            return found.weights
    return None


def matching_import(project: Project, init: Mapping[str, Any]) -> Import:
    """The project's import that a genesis's `init` describes, by its weights and files. Raises NoSuchImport."""
    for found in _imports(project):
        if found.init() == dict(init):
            return found
    names = ", ".join(item["name"] for item in init["files"][:4])
    raise NoSuchImport(
        f"the run begins with imported weights ({names}) that are not at hand: import the same files with "
        "`ledger model import DIR NAME`, or copy the run's states/step-00000000"
    )


def _imports(project: Project) -> Iterator[Import]:
    """The project's imports whose records can be read, by name."""
    for path in sorted(imports_dir(project).glob(f"[!.]*/{RECORD_FILE}")):
        with suppress(BitwitnessError):
            yield find_import(project, path.parent.name)


def _is_named_file(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "sha256"}
        and all(isinstance(v, str) for v in value.values())
    )


_FLOATS = ("rope_theta", "norm_epsilon", "init_std")
# The fields of [model] that decide what the weights compute. init_std does not.
_SHAPE = ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary", "tied", "rope_theta", "norm_epsilon")


def _record(made: Import) -> Json:
    fields = made.model.model_dump()
    model = {key: jcs.f64_hex(value) if key in _FLOATS else value for key, value in fields.items()}
    init = made.init()
    return {"files": init["files"], "format": FORMAT, "model": model, "weights": init["weights"]}


def _fill(files: _Files, shards: Mapping[str, set[str] | None], layout: Layout, state: State, model: Model) -> None:
    """Convert every tensor into its place; what the checkpoint has too much or too little is refused."""
    wanted = layout.tensors(state.params)
    head: tuple[str, bytes] | None = None
    done: set[str] = set()
    for shard, names in shards.items():
        data = files.read(shard, _WEIGHTS_LIMIT)
        try:
            table: Header = read_header(data, shard)
        except SafetensorsError as error:
            raise ImportRefused(str(error)) from None
        if names is not None and {entry.name for entry in table.tensors} != names:
            raise ImportRefused(f"{shard}: its tensors are not those that {INDEX} says")
        view = memoryview(data)
        for entry in table.tensors:
            raw = view[entry.begin : entry.end]
            if entry.name == HEAD and model.tied:
                head = entry.dtype, hashlib.sha256(raw).digest()
                continue
            tensor = wanted.get(entry.name)
            if tensor is None:
                raise ImportRefused(f"{shard}: a Llama model of this config.json has no tensor {entry.name}")
            if entry.name in done:
                raise ImportRefused(f"{shard}: tensor {entry.name} is in two files")
            if entry.dtype not in narrow.DTYPES:
                raise ImportRefused(f"{shard}: {entry.name} is {entry.dtype}; read are {', '.join(narrow.DTYPES)}")
            if entry.shape != tuple(tensor.shape):
                raise ImportRefused(f"{shard}: {entry.name} is {list(entry.shape)}, not {list(tensor.shape)}")
            flat = tensor.reshape(-1)
            narrow.widen(raw, entry.dtype, flat)
            if not narrow.is_finite(flat):
                raise ImportRefused(f"{shard}: {entry.name} holds an infinity or a NaN")
            if entry.name == EMBED:
                embed = entry.dtype, hashlib.sha256(raw).digest()
            done.add(entry.name)
    if missing := sorted(wanted.keys() - done):
        raise ImportRefused(f"{files.source}: the tensor {missing[0]} is missing, and {len(missing) - 1} more")
    if head is not None and head != embed:
        raise ImportRefused(f"{files.source}: {HEAD} is not {EMBED}, though config.json ties them")


def _shards(files: _Files) -> dict[str, set[str] | None]:
    """The safetensors files to read, each with the tensors that an index expects in it."""
    if not files.has(INDEX):
        if not files.has(SINGLE):
            raise ImportRefused(
                f"{files.source}: neither {SINGLE} nor {INDEX}; only safetensors are read, never .bin or .pt"
            )
        return {SINGLE: None}
    if files.has(SINGLE):
        raise ImportRefused(f"{files.source}: both {SINGLE} and {INDEX}; remove the one that does not count")
    try:
        table = foreign_json.parse(files.read(INDEX, _JSON_LIMIT))["weight_map"]
        pairs = [(str(tensor), str(shard)) for tensor, shard in table.items()]
    except (KeyError, TypeError, AttributeError, JsonError):
        raise ImportRefused(f"{files.source / INDEX}: not an index of shards (weight_map: tensor → file)") from None
    shards: dict[str, set[str] | None] = {}
    for tensor, shard in pairs:
        if not _SHARD.fullmatch(shard):
            raise ImportRefused(f"{files.source / INDEX}: {shard[:100]!a} is not the name of a safetensors file")
        names = shards.setdefault(shard, set())
        if names is not None:
            names.add(tensor)
    if len(shards) + 2 > FILES_LIMIT:
        raise ImportRefused(f"{files.source}: {len(shards)} shards; a genesis names at most {FILES_LIMIT} files")
    return dict(sorted(shards.items()))


class _Files:
    """The checkpoint's folder: reads files whole and remembers their digests. A hub's links may not leave it."""

    def __init__(self, source: Path) -> None:
        self.source = _snapshot(source)
        self._root = source.resolve()
        self._digests: dict[str, str] = {}

    def has(self, name: str) -> bool:
        return (self.source / name).is_file()

    def size(self, names: Iterable[str]) -> int:
        """Bytes of these files together, as far as they are there."""
        found = 0
        for name in names:
            with suppress(OSError):  # what is missing is said when it is read
                found += (self.source / name).stat().st_size
        return found

    def read(self, name: str, limit: int) -> bytes:
        path = self.source / name
        try:
            real = path.resolve(strict=True)
            if not real.is_relative_to(self._root):
                raise ImportRefused(f"{path} is a link that leads out of {self._root}")
            with open_regular(real, follow=False) as file:
                size = os.fstat(file.fileno()).st_size
                if size > limit:
                    raise ImportRefused(f"{path}: {size} bytes are more than the {limit} that are read")
                data = file.read(size + 1)
        except (OSError, RuntimeError, MemoryError) as error:
            raise ImportRefused(f"{path}: {getattr(error, 'strerror', None) or error}") from None
        if len(data) != size:
            raise ImportRefused(f"{path} changed while it was read")
        self._digests[name] = hashlib.sha256(data).hexdigest()
        return data

    def listed(self) -> list[dict[str, str]]:
        return [{"name": name, "sha256": digest} for name, digest in sorted(self._digests.items())]


def _snapshot(source: Path) -> Path:
    """The folder itself, or the one revision of a hub's cache folder: that of refs/main, else the only one."""
    if (source / CONFIG).exists() or not (source / "snapshots").is_dir():
        return source
    revisions = sorted(path for path in (source / "snapshots").iterdir() if path.is_dir())
    main = source / "refs" / "main"
    if main.is_file():
        wanted = read_regular(main, 200).decode("ascii", "replace").strip()
        revisions = [path for path in revisions if path.name == wanted]
    if len(revisions) != 1:
        raise ImportRefused(f"{source}: {len(revisions)} revisions to choose from; name a folder under snapshots/")
    return revisions[0]
