"""The Merkle trace of a trace file: what every operator wrote, in one root that two parties can bisect.

    file = trace_file.read(path)
    ours = trace.run(file, threads=2)
    at = trace.first_difference(ours, theirs.size, theirs.node)     O(log n) questions to the other party
    ours.leaves[at]                                                 {"run": 3, "call": 17, "op": "matmul_nt", …}

The leaves, the tree and the digests are those of docs/formats/trace.md; the referee computes the same ones in C++.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from bitwitness.kernels import _native
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.ops import OPERATORS
from bitwitness.kernels.program import Buffer, Executor
from bitwitness.kernels.tracing.trace_file import DTYPES, Array, TraceFile, canonical

_MOST_LEAVES = 1 << 22


@dataclass(frozen=True)
class Trace:
    """The leaves in order, the chunk hashes behind those of operators, and what the file's commitments came to."""

    leaves: Sequence[Mapping[str, Any]]
    chunks: Mapping[int, tuple[bytes, ...]]  # by leaf
    committed: Mapping[str, Mapping[str, Any]]  # by label: type, size, root
    slots: Mapping[str, Array] = field(repr=False)  # as they are at the end

    @property
    def size(self) -> int:
        return len(self.leaves)

    @property
    def root(self) -> str:
        return self._levels[-1][0].hex()

    @cached_property
    def _levels(self) -> list[list[bytes]]:
        levels = [[leaf_hash(canonical(leaf).encode("ascii")) for leaf in self.leaves]]
        while len(levels[-1]) > 1:
            levels.append(_pairs(levels[-1]))
        return levels

    def node(self, level: int, index: int) -> bytes:
        """The hash over leaves index·2^level …: 2^level of them, or as many as there are."""
        return self._levels[level][index]


def first_difference(ours: Trace, size: int, node: Callable[[int, int], bytes]) -> int | None:
    """Index of the first leaf in which another party's trace differs, None where the traces are the same.

    `size` and `node` are theirs (Trace.size, Trace.node): one question per level of the tree. Traces of different
    sizes stem from different scripts, and the first leaf says so.
    """
    if size != ours.size:
        return 0
    level = len(ours._levels) - 1
    if node(level, 0) == ours.node(level, 0):
        return None
    index = 0
    for below in reversed(range(level)):
        index *= 2
        # Left first: the first difference is wanted. A last one without a sibling was promoted unchanged.
        if node(below, index) == ours.node(below, index):
            index += 1
            if index >= len(ours._levels[below]):
                raise KernelError("the other party's nodes contradict each other: a node differs, its children do not")
    return index


@dataclass(frozen=True)
class Place:
    """What a leaf is of: a tensor's first load, or an operand that a call of a run writes."""

    action: int  # number of the script's action
    tensor: str = ""
    run: int = -1
    call: int = -1
    operand: int = -1
    op: str = ""
    view: Buffer | None = None

    def leaf(self, digest: str) -> dict[str, Any]:
        if self.view is None:
            return {"digest": digest, "tensor": self.tensor}
        operand = OPERATORS[self.op].operands[self.operand].name
        return {"call": self.call, "digest": digest, "op": self.op, "operand": operand, "run": self.run}


def outline(file: TraceFile) -> list[Place]:
    """The places of a trace's leaves after the first, which is the script's own; they follow from the script.

    Raises KernelError for a script that cannot be executed.
    """
    places: list[Place] = []
    loaded: set[str] = set()
    runs = 0
    try:
        for number, action in enumerate(file.actions):
            if "load" in action and action["tensor"] not in loaded:
                loaded.add(action["tensor"])
                places.append(Place(number, tensor=action["tensor"]))
            elif "run" in action:
                for index, call in enumerate(file.programs[action["run"]].calls):
                    for position, spec in enumerate(OPERATORS[call.op].operands):
                        if spec.direction != "in":
                            view = call.operands[position]
                            places.append(Place(number, "", runs, index, position, call.op, view))
                runs += 1
            if len(places) > _MOST_LEAVES:
                raise KernelError(f"the script has more than {_MOST_LEAVES} leaves")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise KernelError(f"the script is malformed: {error!r}") from error
    return places


def run(file: TraceFile, threads: int) -> Trace:
    """Execute the file here and trace it. Raises KernelError for a file that cannot be executed."""
    return _Run(file, threads).perform()


class _Run:
    def __init__(self, file: TraceFile, threads: int) -> None:
        self.file = file
        self.executors = executors(file, threads)
        self.slots = empty_slots(file)
        self.leaves: list[dict[str, Any]] = [script_leaf(file)]
        self.chunks: dict[int, tuple[bytes, ...]] = {}
        self.committed: dict[str, dict[str, Any]] = {}
        self.runs = 0
        self.loaded: set[str] = set()

    def perform(self) -> Trace:
        try:
            for action in self.file.actions:
                self.act(action)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise KernelError(f"the script is malformed: {error!r}") from error
        return Trace(self.leaves, self.chunks, self.committed, self.slots)

    def act(self, action: Mapping[str, Any]) -> None:
        if "run" in action:
            self.run_program(action["run"], action["with"])
        elif "commit" in action:
            self.commit(action)
        else:
            if "load" in action and action["tensor"] not in self.loaded:
                self.loaded.add(action["tensor"])
                self.leaves.append(input_leaf(self.file, action["tensor"]))
            apply_action(self.file, action, self.slots)

    def run_program(self, index: int, slots: Sequence[str]) -> None:
        program = self.file.programs[index]
        arrays = {b.name: self.slots[s] for b, s in zip(program.external, slots, strict=True)}
        for number, position, hashes in self.executors[index].trace(arrays):
            call = program.calls[number]
            chunks = tuple(hashes[at : at + 32] for at in range(0, len(hashes), 32))
            self.chunks[len(self.leaves)] = chunks
            operand = OPERATORS[call.op].operands[position].name
            digest = tree_root(chunks).hex()
            self.leaves.append({"call": number, "digest": digest, "op": call.op, "operand": operand, "run": self.runs})
        self.runs += 1

    def commit(self, action: Mapping[str, Any]) -> None:
        commitment = self.file.commitments[action["commit"]]
        leaves = []
        for tensor in commitment["tensors"]:
            size = int(np.prod(tensor["shape"], dtype=np.int64))
            part = self.slots[tensor["slot"]].reshape(-1)[tensor["offset"] : tensor["offset"] + size]
            leaf = {
                "bytes": part.nbytes,
                "digest": tensor_digest(part).hex(),
                "dtype": next(name for name, dtype in DTYPES.items() if part.dtype == dtype),
                "name": tensor["name"],
                "shape": tensor["shape"],
            }
            leaves.append(leaf_hash(canonical(leaf).encode("ascii")))
        found = {"root": tree_root(leaves).hex(), "size": len(leaves), "type": commitment["type"]}
        self.committed[action["label"]] = found
        if action.get("expected", found["root"]) != found["root"]:
            raise KernelError(f"{action['label']}: root {found['root']}, expected {action['expected']}")


def executors(file: TraceFile, threads: int) -> list[Executor]:
    """One for each program. Raises KernelError where they take more memory than there is."""
    try:
        return [Executor(program, threads) for program in file.programs]
    except MemoryError as error:
        raise KernelError("the file's programs take more memory than this machine has") from error


def script_leaf(file: TraceFile) -> dict[str, Any]:
    """The first leaf: what was run, in which order."""
    return {"script": hashlib.sha256(file.script.encode("ascii")).hexdigest()}


def input_leaf(file: TraceFile, tensor: str) -> dict[str, Any]:
    """The leaf of a tensor of the file, which stands where it is first loaded."""
    return {"digest": tensor_digest(file.tensors[tensor]).hex(), "tensor": tensor}


def empty_slots(file: TraceFile) -> dict[str, Array]:
    """The memory of a file before its first action, by slot."""
    try:
        return {slot.name: np.zeros(slot.shape, DTYPES[slot.dtype]) for slot in file.slots}
    except MemoryError as error:
        raise KernelError("the file's slots take more memory than this machine has") from error


def apply_action(file: TraceFile, action: Mapping[str, Any], slots: Mapping[str, Array]) -> None:
    """Perform a load or a zero; what only reads changes nothing. Raises KernelError for what is no action."""
    if "load" in action:
        np.copyto(slots[action["load"]], file.tensors[action["tensor"]], casting="no")
    elif "zero" in action:
        slots[action["zero"]].fill(0)
    elif "chunk" not in action and "commit" not in action:
        raise KernelError(f"no action has the keys {', '.join(action)}")


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(00 ‖ data), RFC 6962."""
    return hashlib.sha256(b"\x00" + data).digest()


def _pairs(level: Sequence[bytes]) -> list[bytes]:
    above = [hashlib.sha256(b"\x01" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
    return above + ([level[-1]] if len(level) % 2 else [])


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """RFC 6962 root of leaf hashes, level by level: adjacent pairs, an odd last one promoted."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    level = list(leaves)
    while len(level) > 1:
        level = _pairs(level)
    return level[0]


def chunk_hashes(array: Array) -> tuple[bytes, ...]:
    """The leaf of every 64 KiB chunk of a contiguous float32, int32 or int16 array, NaNs as 7FC00000."""
    hashes = _native.chunk_hashes(array)
    return tuple(hashes[at : at + 32] for at in range(0, len(hashes), 32))


def tensor_digest(array: Array) -> bytes:
    """The RFC 6962 root over the chunks of an array."""
    return tree_root(chunk_hashes(array))
