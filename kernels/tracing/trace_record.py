"""One party's trace of a step as a folder that can be handed to another (docs/formats/trace.md, A recorded step).

trace.json           the script and every leaf: what is compared, and all that the other party needs to see
step.safetensors     the trace file: the script and all inputs, which the referee executes
values.safetensors   what the operators wrote, where it was kept: a trace file with an empty script
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.tracing import trace_file
from bitwitness.kernels.tracing.trace import Place, Trace, chunk_hashes, outline, script_leaf, tree_root
from bitwitness.kernels.tracing.trace_file import CHUNK_BYTES, DTYPES, Array, TraceFile, canonical, parse_canonical
from bitwitness.kernels.tracing.trace_limits import Limits, memory_of_json, read_given

FORMAT = "bitwitness.step-trace/1"
TRACE, STEP, VALUES = "trace.json", "step.safetensors", "values.safetensors"

_HASH = re.compile(r"[0-9a-f]{64}")


class TraceRecordError(KernelError):
    """A recorded step that is not what docs/formats/trace.md says, or that cannot be read."""


@dataclass(frozen=True)
class TraceRecord:
    """What one party computed. `about` is what it says of it; `values` are by leaf, and may be few or none."""

    about: Mapping[str, Any]
    trace: Trace
    script: TraceFile = field(repr=False)  # without tensors
    file: TraceFile | None = field(default=None, repr=False)  # with them, where they are at hand
    values: Mapping[int, Array] = field(default_factory=dict, repr=False)

    @cached_property
    def places(self) -> list[Place | None]:
        """What each leaf is of; None for the first, which is the script's."""
        return [None, *outline(self.script)]


def write(folder: Path, file: TraceFile, trace: Trace, values: Mapping[int, Array], about: Mapping[str, Any]) -> None:
    """Write the folder's three files; without values the third is left out. Raises TraceRecordError."""
    text = canonical(
        {
            "about": dict(about),
            "chunks": {
                str(leaf): [h.hex() for h in hashes] for leaf, hashes in trace.chunks.items() if len(hashes) > 1
            },
            "format": FORMAT,
            "leaves": list(trace.leaves),
            "root": trace.root,
            "script": file.script,
        }
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trace_file.write(folder / STEP, file)
        (folder / VALUES).unlink(missing_ok=True)
        if values:
            kept = TraceFile(tensors={_value_name(leaf): array for leaf, array in values.items()})
            trace_file.write(folder / VALUES, kept)
        (folder / TRACE).write_text(text + "\n", encoding="ascii")
    except OSError as error:
        raise TraceRecordError(f"{folder}: the trace could not be written: {error.strerror}") from None


def read(path: Path, limits: Limits | None = None) -> TraceRecord:
    """Read a folder, or a trace.json alone, and check that it holds together; none of its files beyond ``limits``.

    Raises KernelError.
    """
    limits = limits or Limits()
    folder = path if path.is_dir() else path.parent
    data = _bytes(folder / TRACE if path.is_dir() else path, limits)
    limits = limits.holding(memory_of_json(data))
    limits.check_memory(0, str(path))
    value = parse_canonical(data.decode("latin-1").rstrip("\n"), str(path))
    if not isinstance(value, dict) or value.keys() != {"about", "chunks", "format", "leaves", "root", "script"}:
        raise TraceRecordError(f"{path}: not a recorded step; `ledger trace` makes one")
    if value["format"] != FORMAT:
        raise TraceRecordError(f"{path}: format {value['format']!r} is not {FORMAT}, which this program reads")
    if not (isinstance(value["script"], str) and isinstance(value["about"], dict)):
        raise TraceRecordError(f"{path}: script is a string, about an object")
    script = trace_file.of_script(value["script"], str(path), limits)
    record = TraceRecord(value["about"], _trace(value, script, str(path)), script)
    return _with_tensors(record, folder, path.is_dir(), limits)


def _trace(value: Mapping[str, Any], script: TraceFile, where: str) -> Trace:
    places, leaves, chunks = outline(script), value["leaves"], value["chunks"]
    if not isinstance(leaves, list) or not isinstance(chunks, dict) or len(leaves) != len(places) + 1:
        raise TraceRecordError(f"{where}: the script has {len(places) + 1} leaves")
    if leaves[0] != script_leaf(script):
        raise TraceRecordError(f"{where}: the first leaf is not the script's")
    hashes: dict[int, tuple[bytes, ...]] = {}
    for number, (place, leaf) in enumerate(zip(places, leaves[1:], strict=True), 1):
        digest = leaf.get("digest") if isinstance(leaf, dict) else None
        if not isinstance(digest, str) or not _HASH.fullmatch(digest) or leaf != place.leaf(digest):
            raise TraceRecordError(f"{where}: leaf {number} is not that of the script")
        if place.view is None:
            continue
        due = -(-place.view.size * DTYPES[place.view.dtype].itemsize // CHUNK_BYTES)
        given = [digest] if due == 1 else chunks.get(str(number))
        if not isinstance(given, list) or len(given) != due or not all(_is_hash(text) for text in given):
            raise TraceRecordError(f"{where}: leaf {number} has {due} chunks")
        hashes[number] = tuple(bytes.fromhex(text) for text in given)
        if tree_root(hashes[number]).hex() != digest:
            raise TraceRecordError(f"{where}: the chunks of leaf {number} do not give its digest")
    if chunks.keys() != {str(number) for number, found in hashes.items() if len(found) > 1}:
        raise TraceRecordError(f"{where}: chunks are given for leaves of several, and for no others")
    trace = Trace(leaves, hashes, {}, {})
    if trace.root != value["root"]:
        raise TraceRecordError(f"{where}: the leaves give root {trace.root}, not {value['root']}")
    return trace


def _with_tensors(record: TraceRecord, folder: Path, whole: bool, limits: Limits) -> TraceRecord:
    """Add inputs and values where they lie beside the trace; each must be what the leaves say."""
    file, values = None, {}
    if whole and (folder / STEP).exists():
        file = trace_file.read(folder / STEP, limits)
        limits = limits.holding(sum(array.nbytes for array in file.tensors.values()))
        if file.script != record.script.script:
            raise TraceRecordError(f"{folder / STEP}: its script is not that of {TRACE}")
        for leaf, place in enumerate(record.places):
            if place is not None and place.tensor:
                _check(file.tensors.get(place.tensor), record, leaf, f"{folder / STEP}: tensor {place.tensor}")
    if whole and (folder / VALUES).exists():
        for name, array in trace_file.read(folder / VALUES, limits).tensors.items():
            leaf = _leaf_of(name)
            if leaf not in record.trace.chunks:
                raise TraceRecordError(f"{folder / VALUES}: {name} is no operator's output")
            _check(array, record, leaf, f"{folder / VALUES}: {name}")
            values[leaf] = array
    return TraceRecord(record.about, record.trace, record.script, file, values)


def _check(array: Array | None, record: TraceRecord, leaf: int, what: str) -> None:
    if array is None or tree_root(chunk_hashes(array)).hex() != record.trace.leaves[leaf]["digest"]:
        raise TraceRecordError(f"{what} is not what the trace says")


def _value_name(leaf: int) -> str:
    return f"leaf/{leaf:06d}"


def _leaf_of(name: str) -> int:
    match = re.fullmatch(r"leaf/([0-9]{6,9})", name)
    return int(match[1]) if match else -1


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _bytes(path: Path, limits: Limits) -> bytes:
    try:
        return read_given(path, limits)
    except OSError as error:
        raise TraceRecordError(f"{path}: {(error.strerror or str(error)).lower()}; `ledger trace` makes one") from None


def operand_name(place: Place) -> str:
    """The name that the operator's declaration gives to the operand."""
    return OPERATORS[place.op].operands[place.operand].name
