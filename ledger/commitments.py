"""Tree commitments over tensors, documents and states (docs/formats/commitments.md).

A commitment is always {"type", "size", "root"}: a bare RFC 6962 root proves several positions, so the size is
signed with it, and the type keeps trees of different things apart.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from . import jcs, merkle
from .errors import CommitmentError
from .files.hash_pool import submit

CHUNK = 64 * 1024
TENSOR_NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}\Z")

# Bytes per element, names as safetensors spells them.
DTYPES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

# What the leaves of each type are.
TYPES: Mapping[str, str] = {
    "weights/1": "one tensor leaf per parameter, in byte order of the names",
    "optimizer/1": "one tensor leaf per moment (m/NAME, v/NAME), in byte order of the names",
    "dataset/1": "one document leaf per document, in path order",
    "code/1": "one source-file leaf per file, in byte order of the paths",
    "history/1": "the bytes of a run's entries, in order",
    "gradient/1": "one tensor leaf per parameter, in byte order of the names",
    "parts/1": "the leaves and nodes of a step's gradient fold, norm, clip, losses and counts",
    "transcript/1": "HMAC-SHA-256 digests of an audit's taps",
    "ledger/1": "the bytes of all entries of a ledger, in order",
    "runs/1": "one run-records leaf per run, in byte order of the run ids",
    "records/1": "the bytes of a run's audit-intent, audit and eval entries, in ledger order",
    "marks/1": "one mark leaf per stored state, resume, fork and release of a run, in ledger order",
}

_HASH = re.compile(r"[0-9a-f]{64}\Z")
_BATCH = 1024 * 1024
_INLINE = 512 * 1024


@dataclass(frozen=True, slots=True)
class Commitment:
    """A typed Merkle root: `root` is 64 hex digits, `size` the number of leaves."""

    type: str
    size: int
    root: str

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or self.type not in TYPES:
            raise CommitmentError(f"unknown type {self.type!r}")
        if type(self.size) is not int or not 0 <= self.size <= jcs.MAX_INTEGER:
            raise CommitmentError(f"the size {self.size!r} is not an integer from 0 to 2^53-1")
        if not isinstance(self.root, str) or not _HASH.match(self.root):
            raise CommitmentError(f"the root {self.root!r} is not 64 lower-case hex digits")
        if self.size == 0 and self.root != merkle.EMPTY_ROOT.hex():
            raise CommitmentError("the root of an empty tree is SHA-256 of nothing")

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "size": self.size, "root": self.root}

    @classmethod
    def from_json(cls, value: Any, *, type: str | None = None) -> Commitment:
        """Read {"type", "size", "root"} strictly; with `type`, refuse every other one."""
        if not isinstance(value, dict) or value.keys() != {"type", "size", "root"}:
            raise CommitmentError('a commitment is {"type", "size", "root"} and nothing else')
        commitment = cls(value["type"], value["size"], value["root"])
        if type is not None and commitment.type != type:
            raise CommitmentError(f"the type is {commitment.type}, expected {type}")
        return commitment

    @property
    def root_bytes(self) -> bytes:
        return bytes.fromhex(self.root)


def tree(type: str, leaves: Iterable[bytes]) -> Commitment:
    """Commit to `leaves` (leaf data, not hashes) in the order given."""
    return from_leaf_hashes(type, [merkle.leaf_hash(leaf) for leaf in leaves])


def from_leaf_hashes(type: str, hashes: Sequence[bytes]) -> Commitment:
    """Commit to leaves whose hashes are known."""
    return Commitment(type, len(hashes), merkle.root(hashes).hex())


# Tensors --------------------------------------------------------------------------------------------------

TensorView = tuple[str, tuple[int, ...], Any]
"""(dtype as safetensors spells it, shape, C-contiguous buffer: memoryview, numpy array or CPU torch tensor).
"""

ChunkHasher = Callable[[Sequence[memoryview]], list[list[bytes]]]
"""Gives the leaf hashes of every buffer's 64 KiB chunks, SHA-256(00 ‖ chunk)."""


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """What a tree says about one tensor; `digest` is its tensor_digest in hex."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str

    def encode(self) -> bytes:
        return tensor_leaf(self.name, self.dtype, self.shape, self.nbytes, self.digest)


def byte_view(data: Any) -> memoryview:
    """The bytes of a C-contiguous buffer, without a copy: bytes, memoryview, numpy array, CPU torch tensor.

    Raises CommitmentError for a strided or big-endian buffer, and one that is not in this machine's memory.
    """
    source = data
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    if torch is not None and isinstance(data, torch.Tensor):
        if data.device.type != "cpu" or not data.is_contiguous():
            raise CommitmentError("the tensor is not C-contiguous in CPU memory; hash a contiguous copy")
        source = data.detach().reshape(-1).view(torch.uint8).numpy()  # numpy has no bfloat16
    try:
        view = memoryview(source)
    except (TypeError, ValueError):
        raise CommitmentError(f"a {type(data).__name__} has no buffer to hash") from None
    if not view.c_contiguous:
        raise CommitmentError("the tensor is not C-contiguous; hash a contiguous copy")
    if view.itemsize > 1 and (view.format.startswith((">", "!")) or sys.byteorder != "little"):
        raise CommitmentError("the tensor is not little-endian")
    return view.cast("B")


def chunk_leaf_hashes(data: Any) -> list[bytes]:
    """The leaf hashes of a buffer's 64 KiB chunks (the last may be shorter), on up to four threads."""
    return _hash_all([byte_view(data)])[0]


def tensor_digest(data: Any) -> str:
    """Hex RFC 6962 root over the 64 KiB chunks of a tensor's row-major little-endian bytes."""
    view = byte_view(data)
    if not view.nbytes:
        raise CommitmentError("an empty tensor cannot be committed: every dimension is at least 1")
    return merkle.root(_hash_all([view])[0]).hex()


def tensor_leaf(name: str, dtype: str, shape: Sequence[int], nbytes: int, digest: str) -> bytes:
    """The leaf of one tensor: JCS {"bytes","digest","dtype","name","shape"}.

    Raises CommitmentError for a bad name, dtype, shape or digest, or a byte count that they do not give.
    """
    _check_tensor(name, dtype, shape, nbytes)
    if not _HASH.match(digest):
        raise CommitmentError(f"the digest {digest!r} is not 64 lower-case hex digits", name)
    # Canonical JSON, written out: checked names, dtypes and digests need no escapes. A step has hundreds of these.
    dimensions = ",".join(str(int(n)) for n in shape)
    return (
        f'{{"bytes":{int(nbytes)},"digest":"{digest}","dtype":"{dtype}","name":"{name}","shape":[{dimensions}]}}'
    ).encode("ascii")


def tensor_leaves(views: Mapping[str, TensorView], hash_chunks: ChunkHasher | None = None) -> list[TensorLeaf]:
    """Hash every tensor; leaves come in byte order of the names."""
    names = sorted(views)  # names are ASCII, so code point order is byte order
    buffers = []
    for name in names:
        dtype, shape, data = views[name]
        view = byte_view(data)
        _check_tensor(name, dtype, shape, view.nbytes)
        buffers.append(view)
    return [
        TensorLeaf(name, views[name][0], tuple(int(n) for n in views[name][1]), view.nbytes, merkle.root(h).hex())
        for name, view, h in zip(names, buffers, (hash_chunks or _hash_all)(buffers), strict=True)
    ]


def tensors(type: str, views: Mapping[str, TensorView], hash_chunks: ChunkHasher | None = None) -> Commitment:
    """Commit to named tensors (`weights/1`, `optimizer/1`); `hash_chunks` may be faster than hashlib."""
    return tree(type, (leaf.encode() for leaf in tensor_leaves(views, hash_chunks)))


def _check_tensor(name: str, dtype: str, shape: Sequence[int], nbytes: int) -> None:
    if not isinstance(name, str) or not TENSOR_NAME.match(name):
        raise CommitmentError(f"the tensor name {name!r} does not match [A-Za-z0-9._/-]{{1,200}}", "tensor")
    if dtype not in DTYPES:
        raise CommitmentError(f"the dtype {dtype!r} is not one of {', '.join(DTYPES)}", name)
    if any(isinstance(n, bool) or int(n) != n or n < 1 for n in shape):
        raise CommitmentError(f"the shape {list(shape)} has a dimension below 1", name)
    if math.prod(int(n) for n in shape) * DTYPES[dtype] != nbytes:
        raise CommitmentError(f"{nbytes} bytes do not make a {dtype} tensor of shape {list(shape)}", name)


def _hash_chunks(view: memoryview, first: int, last: int) -> list[bytes]:
    hashes = []
    for start in range(first * CHUNK, last * CHUNK, CHUNK):
        digest = hashlib.sha256(b"\x00")
        digest.update(view[start : start + CHUNK])
        hashes.append(digest.digest())
    return hashes


def _hash_batch(pieces: list[tuple[memoryview, int, int]]) -> list[list[bytes]]:
    return [_hash_chunks(view, first, last) for view, first, last in pieces]


def _hash_all(views: Sequence[memoryview]) -> list[list[bytes]]:
    """Chunk leaf hashes of every view. Threads share out batches of about 1 MiB, whatever the tensors'
    sizes.
    """
    counts = [(view.nbytes + CHUNK - 1) // CHUNK for view in views]
    if sum(view.nbytes for view in views) <= _INLINE:
        return [_hash_chunks(view, 0, count) for view, count in zip(views, counts, strict=True)]
    per_batch = _BATCH // CHUNK
    batches: list[list[tuple[memoryview, int, int]]] = [[]]
    owners: list[list[int]] = [[]]
    room = per_batch
    for owner, (view, count) in enumerate(zip(views, counts, strict=True)):
        first = 0
        while first < count:
            last = min(count, first + room)
            batches[-1].append((view, first, last))
            owners[-1].append(owner)
            room -= last - first
            first = last
            if room == 0:
                batches.append([])
                owners.append([])
                room = per_batch
    futures: list[Future[list[list[bytes]]]] = [submit(_hash_batch, batch) for batch in batches]
    hashes: list[list[bytes]] = [[] for _ in views]
    for future, owner_list in zip(futures, owners, strict=True):
        for owner, piece in zip(owner_list, future.result(), strict=True):
            hashes[owner].extend(piece)
    return hashes


# Documents and states -------------------------------------------------------------------------------------

ZERO_SALT = bytes(32)


def document_digest(data: bytes | memoryview, salt: bytes = ZERO_SALT) -> str:
    """Hex SHA-256("bitwitness/doc/v1" ‖ 00 ‖ salt ‖ data): of a document's source bytes, or of its token
    bytes.

    `salt` has 32 bytes: zeros for public data, random per document for private data.
    """
    if len(salt) != 32:
        raise CommitmentError(f"a salt has 32 bytes, not {len(salt)}", "document")
    digest = hashlib.sha256(b"bitwitness/doc/v1\x00" + salt)
    digest.update(data)
    return digest.hexdigest()


def document_leaf(*, count: int, source: str, start: int, tokens: str) -> bytes:
    """The leaf of one document: JCS {"count","source","start","tokens"}.

    `start` and `count` place its tokens in the dataset's token stream; `source` and `tokens` are
    document_digests under one salt.
    """
    for name, digest in (("source", source), ("tokens", tokens)):
        if not _HASH.match(digest):
            raise CommitmentError(f"{name} {digest!r} is not 64 lower-case hex digits", "document")
    if min(count, start) < 0:
        raise CommitmentError("count and start are not negative", "document")
    return jcs.encode({"count": count, "source": source, "start": start, "tokens": tokens})


def file_leaf(path: str, sha256: str) -> bytes:
    """The leaf of one source file of `code/1`: JCS {"path","sha256"}, the path with forward slashes."""
    if not _HASH.match(sha256):
        raise CommitmentError(f"the digest {sha256!r} is not 64 lower-case hex digits", path)
    return jcs.encode({"path": path, "sha256": sha256})


MARKS = ("state", "resume", "fork", "release")


def mark_leaf(entry: int, kind: str, step: int) -> bytes:
    """The leaf of one entry in `marks/1`: JCS {"entry","kind","step"}; `entry` is its index in the ledger."""
    if kind not in MARKS:
        raise CommitmentError(f"a mark is one of {', '.join(MARKS)}, not {kind!r}", "marks")
    return jcs.encode({"entry": entry, "kind": kind, "step": step})


def run_records_leaf(run: str, records: Commitment, marks: Commitment) -> bytes:
    """The leaf of one run in `runs/1`: JCS {"marks","records","run"}."""
    if not _HASH.match(run) or (records.type, marks.type) != ("records/1", "marks/1"):
        raise CommitmentError("a run's leaf holds its id, a records/1 and a marks/1 commitment", "runs")
    return jcs.encode({"marks": marks.to_json(), "records": records.to_json(), "run": run})


def state_digest(
    control: Mapping[str, int],
    optimizer: Commitment | Mapping[str, Any] | None,
    weights: Commitment | Mapping[str, Any],
) -> str:
    """Hex SHA-256("bitwitness/state/v1" ‖ 00 ‖ JCS{control, optimizer, weights}).

    `control` is {"step","tokens","cursor"}; with the genesis this is all that the next step depends on.
    `optimizer` is None, and then absent, at the steps where a run thins it (config commit_optimizer_every).
    """
    if control.keys() != {"step", "tokens", "cursor"}:
        raise CommitmentError('control is {"step", "tokens", "cursor"} and nothing else', "state")
    jcs.check(dict(control), "control")
    parts: dict[str, Any] = {"control": dict(control), "weights": _as_json(weights, "weights/1")}
    if optimizer is not None:
        parts["optimizer"] = _as_json(optimizer, "optimizer/1")
    return digest_of_checked(parts)


def digest_of_checked(parts: Mapping[str, Any]) -> str:
    """state_digest() of {control, optimizer, weights}, or without `optimizer`, whose form a schema has checked."""
    control, optimizer, weights = parts["control"], parts.get("optimizer"), parts["weights"]
    # Canonical JSON, written out: numbers, and hex digits that need no escapes. Each step has one.
    text = f'{{"control":{{"cursor":{control["cursor"]:d},"step":{control["step"]:d},"tokens":{control["tokens"]:d}}},'
    if optimizer is not None:
        text += f'"optimizer":{{"root":"{optimizer["root"]}","size":{optimizer["size"]},"type":"optimizer/1"}},'
    text += f'"weights":{{"root":"{weights["root"]}","size":{weights["size"]},"type":"weights/1"}}}}'
    return _domain_hash("bitwitness/state/v1", text.encode("ascii"))


def _as_json(value: Commitment | Mapping[str, Any], type: str) -> dict[str, Any]:
    commitment = value if isinstance(value, Commitment) else Commitment.from_json(dict(value))
    if commitment.type != type:
        raise CommitmentError(f"the type is {commitment.type}, expected {type}", "state")
    return commitment.to_json()


@functools.cache
def _prefix(domain: str) -> bytes:
    return domain.encode("ascii") + b"\x00"


def _domain_hash(domain: str, data: bytes) -> str:
    return hashlib.sha256(_prefix(domain) + data).hexdigest()
