"""Evidence that a log, or a run in it, was forked: one file that convinces whoever trusts the log's key.

docs/formats/fork.md describes the three kinds. A file proves by itself; where it came from does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _base64, jcs, merkle
from ..checkpoint import Checkpoint, open_checkpoint
from ..entry.entries import check
from ..entry.envelope import open_envelope
from ..errors import BitwitnessError, EntryError, FoundWrong, ProofError
from ..handover import Handover, LogLine, handovers_json, log_line, read_handovers
from ..trust import Trust
from ..verify import Check

FORMAT = "bitwitness/fork/1"
MAX_FORK = 4 << 20
_FIELDS = {
    "roots": {"checkpoints"},
    "history": {"checkpoints", "hashes"},
    "run": {"checkpoint", "entries"},
}


class NoFork(FoundWrong):
    """The file is evidence of nothing: malformed, not signed by the log, or of things that go together."""

    exit_code = 2


@dataclass(frozen=True)
class PlacedEntry:
    """An entry, and its inclusion proof under the evidence's checkpoint."""

    index: int
    data: bytes
    hashes: Sequence[bytes]


def two_roots(first: str, second: str, handovers: Sequence[Handover] = ()) -> bytes:
    """Two checkpoints of one size with different roots; `handovers` to the keys that signed them."""
    return _encode("roots", handovers, checkpoints=[first, second])


def two_histories(older: str, newer: str, hashes: Sequence[bytes], handovers: Sequence[Handover] = ()) -> bytes:
    """A checkpoint whose tree does not begin with the tree of an older one; `hashes` as prefix_hashes gives them."""
    return _encode("history", handovers, checkpoints=[older, newer], hashes=[item.hex() for item in hashes])


def two_entries(checkpoint: str, entries: Sequence[PlacedEntry], handovers: Sequence[Handover] = ()) -> bytes:
    """Two entries for one (run, seq) in the tree of one checkpoint."""
    return _encode(
        "run",
        handovers,
        checkpoint=checkpoint,
        entries=[
            {
                "entry": _base64.encode(item.data),
                "hashes": [node.hex() for node in item.hashes],
                "index": item.index,
            }
            for item in entries
        ],
    )


def prefix_hashes(size1: int, size2: int, get_node: merkle.GetNode) -> list[bytes]:
    """The subtrees of the tree of `size2` from which both its root and that of its first `size1` leaves follow.

    It is the consistency proof of RFC 9162, with its first hash written out where the proof leaves it to the reader.
    """
    return [merkle.range_hash(low, high, get_node) for low, high in _prefix_ranges(size1, size2)]


def fold_prefix(size1: int, size2: int, hashes: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The roots of the first `size1` and of all `size2` leaves, from prefix_hashes. Raises ProofError."""
    ranges = _prefix_ranges(size1, size2)
    if len(hashes) != len(ranges) or any(len(item) != merkle.HASH_SIZE for item in hashes):
        raise ProofError(f"from {size1} to {size2} there are {len(ranges)} hashes, not {len(hashes)}")
    old = new = hashes[0]
    for (low, _high), sibling in zip(ranges[1:], hashes[1:], strict=True):
        if low < size1:
            old, new = merkle.node_hash(sibling, old), merkle.node_hash(sibling, new)
        else:
            new = merkle.node_hash(new, sibling)
    return old, new


def verify_fork(data: bytes, trust: Trust) -> list[Check]:
    """Check evidence against the pinned log key: the check `fork` is False (found wrong) if the log is convicted."""
    try:
        return [Check("fork", False, _convict(data, trust))]
    except BitwitnessError as error:
        return [Check("fork", None, f"no evidence of a fork: {error}")]


def looks_like_fork(data: bytes) -> bool:
    """Whether bytes claim to be such evidence, of which nothing is checked."""
    return data.lstrip()[:1] == b"{" and f'"{FORMAT}"'.encode("ascii") in data


def _encode(kind: str, handovers: Sequence[Handover], **fields: Any) -> bytes:
    return jcs.encode({"format": FORMAT, "kind": kind, **fields, **handovers_json(handovers)})


def _convict(data: bytes, trust: Trust) -> str:
    value = jcs.parse(data.removesuffix(b"\n"), max_bytes=MAX_FORK)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise NoFork(f"not {FORMAT}")
    kind = value.get("kind")
    fields = value.keys() - {"format", "kind", "handovers"}
    if not isinstance(kind, str) or kind not in _FIELDS or fields != _FIELDS[kind]:
        raise NoFork("not one of its kinds, or other fields than its kind has")
    line = log_line(trust, read_handovers(value, "fork"))
    if kind == "run":
        return _run(value, line)
    heads = [_head(text, line) for text in _list(value["checkpoints"], 2)]
    older, newer = heads
    if kind == "roots":
        if older.size != newer.size or older.root == newer.root:
            raise NoFork("its checkpoints are not two roots of one size")
        return f"the log {trust.origin} signed two roots for {older.size} entries: {_roots(heads)}"
    if not 0 < older.size < newer.size:
        raise NoFork("its checkpoints are not an older and a newer one")
    old, new = fold_prefix(older.size, newer.size, [_bytes(item) for item in _list(value["hashes"])])
    if new != newer.root or old == older.root:
        raise NoFork("its hashes do not show two histories")
    return (
        f"the log {trust.origin} signed {older.size} entries with root {older.root.hex()}, and {newer.size} entries "
        f"of which the first {older.size} have root {old.hex()}"
    )


def _run(value: dict[str, Any], line: LogLine) -> str:
    head = _head(value["checkpoint"], line)
    places = []
    for item in _list(value["entries"], 2):
        if not isinstance(item, dict) or item.keys() != {"entry", "hashes", "index"} or type(item["index"]) is not int:
            raise NoFork("an entry is not {entry, hashes, index}")
        entry = _base64.decode(item["entry"]) if isinstance(item["entry"], str) else None
        if entry is None:
            raise NoFork("an entry is not standard padded base64")
        hashes = [_bytes(node) for node in _list(item["hashes"])]
        merkle.verify_inclusion(item["index"], head.size, merkle.leaf_hash(entry), hashes, head.root)
        statement = open_envelope(entry).statement
        if not check(statement).chained or "run" not in statement["predicate"]:
            raise EntryError("is in no run", f"entry {item['index']}")
        predicate = statement["predicate"]
        places.append((item["index"], predicate["run"], predicate["seq"]))
    (first, run, seq), (second, *other) = places
    if first == second or other != [run, seq]:
        raise NoFork("its entries are not two of one place in a run")
    return f"entries {first} and {second} of the log {line.origin} are both entry {seq} of run {run}"


def _head(text: object, line: LogLine) -> Checkpoint:
    if not isinstance(text, str):
        raise NoFork("a checkpoint is not text")
    return open_checkpoint(text, line.verifiers, line.origin)[0]


def _list(value: object, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or len(value) > 64 or length not in (None, len(value)):
        raise NoFork("a list has another length than it must have")
    return value


def _bytes(text: object) -> bytes:
    if isinstance(text, str) and len(text) == 2 * merkle.HASH_SIZE:
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise NoFork("a hash is not 64 hex digits")


def _roots(heads: list[Checkpoint]) -> str:
    return " and ".join(head.root.hex() for head in heads)


def _prefix_ranges(size1: int, size2: int) -> list[tuple[int, int]]:
    ranges = merkle.consistency_ranges(size1, size2)
    return ranges if ranges and ranges[0][1] == size1 else [(0, size1), *ranges]
