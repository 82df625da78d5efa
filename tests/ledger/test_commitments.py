"""Commitments: golden values, the definition written out, and what is refused."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from bitwitness.ledger import commitments, jcs, merkle
from bitwitness.ledger.commitments import CHUNK, Commitment
from bitwitness.ledger.errors import CommitmentError

EMPTY = hashlib.sha256(b"").hexdigest()


def pattern(size: int) -> bytes:
    """Bytes that repeat only after a long while."""
    return b"".join(hashlib.sha256(b"%d" % n).digest() for n in range((size + 31) // 32))[:size]


def by_definition(data: bytes) -> str:
    return merkle.root([merkle.leaf_hash(data[i : i + CHUNK]) for i in range(0, len(data), CHUNK)]).hex()


SIZES = (1, 4, 100, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 8 * CHUNK + 5, 40 * CHUNK + 1)


@pytest.mark.parametrize("size", SIZES)
def test_tensor_digest_is_its_definition(size: int, golden: Any) -> None:
    data = pattern(size)
    digest = commitments.tensor_digest(data)
    assert digest == by_definition(data)
    assert merkle.root(commitments.chunk_leaf_hashes(data)).hex() == digest
    golden("ledger-1.json").check(f"tensor_digest of {size} bytes", digest)


def test_tensor_digest_of_any_contiguous_buffer() -> None:
    array = np.arange(100_000, dtype="<f4").reshape(100, 1000)
    expected = by_definition(array.tobytes())
    view = memoryview(array)
    for data in (array, array.tobytes(), bytearray(array.tobytes()), view, torch.from_numpy(array), array.reshape(-1)):
        assert commitments.tensor_digest(data) == expected
    for scalar in (np.array(1.5, dtype=np.float32), torch.tensor(1.5)):
        assert commitments.tensor_digest(scalar) == by_definition(bytes.fromhex("0000c03f"))
    half = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    assert commitments.tensor_digest(half) == by_definition(bytes.fromhex("803f00c0"))
    grad = torch.from_numpy(array.copy()).requires_grad_()
    assert commitments.tensor_digest(grad) == expected


def test_tensor_digest_from_many_threads_at_once() -> None:
    datas = [pattern(CHUNK * 20 + n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(commitments.tensor_digest, datas)) == [by_definition(data) for data in datas]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        np.zeros((4, 4), dtype=np.float32).T[1:],
        np.zeros(4, dtype=">f4"),
        np.zeros(8, dtype=np.float32)[::2],
        torch.zeros(4, 4).t()[:, :2],
        torch.zeros(4, device="meta"),
        torch.zeros(0),
        [1, 2],
        None,
    ],
)
def test_tensor_digest_refuses(data: Any) -> None:
    with pytest.raises(CommitmentError):
        commitments.tensor_digest(data)


def tensors() -> dict[str, commitments.TensorView]:
    return {
        "layers.0.w": ("F32", (2, 3), pattern(24)),
        "layers.0.b": ("BF16", (3,), pattern(6)),
        "a/scalar": ("I64", (), pattern(8)),
        "Z": ("F32", (CHUNK // 4, 33), pattern(33 * CHUNK)),
        "z": ("U8", (1,), b"\x00"),
    }


def test_tensors_are_leaves_in_byte_order(golden: Any) -> None:
    views = tensors()
    names = ["Z", "a/scalar", "layers.0.b", "layers.0.w", "z"]
    leaves = [
        commitments.tensor_leaf(n, views[n][0], views[n][1], len(views[n][2]), by_definition(views[n][2]))
        for n in names
    ]
    commitment = commitments.tensors("weights/1", views)
    assert commitment == commitments.tree("weights/1", leaves)
    assert commitment == Commitment("weights/1", 5, merkle.root([merkle.leaf_hash(leaf) for leaf in leaves]).hex())
    assert [leaf.name for leaf in commitments.tensor_leaves(views)] == names
    assert [leaf.encode() for leaf in commitments.tensor_leaves(views)] == leaves
    golden("ledger-1.json").check("weights/1 leaves", [leaf.decode() for leaf in leaves])
    golden("ledger-1.json").check("weights/1", commitment.to_json())


def test_every_byte_of_every_tensor_is_in_the_root() -> None:
    views = tensors()
    expected = commitments.tensors("weights/1", views)
    for name, (dtype, shape, data) in views.items():
        for position in {0, len(data) // 2, len(data) - 1}:
            changed = bytearray(data)
            changed[position] ^= 1
            assert commitments.tensors("weights/1", {**views, name: (dtype, shape, changed)}) != expected
    for name in views:
        renamed = {(key + "x" if key == name else key): value for key, value in views.items()}
        assert commitments.tensors("weights/1", renamed) != expected
    assert (
        commitments.tensors("weights/1", {**views, "layers.0.w": ("F32", (3, 2), views["layers.0.w"][2])}) != expected
    )
    assert (
        commitments.tensors("weights/1", {**views, "layers.0.w": ("I32", (2, 3), views["layers.0.w"][2])}) != expected
    )


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "size", "reason"),
    [
        ("", "F32", (1,), 4, "name"),
        ("a b", "F32", (1,), 4, "name"),
        ("é", "F32", (1,), 4, "name"),
        ("a\n", "F32", (1,), 4, "name"),
        ("x" * 201, "F32", (1,), 4, "name"),
        ("w", "float32", (1,), 4, "dtype"),
        ("w", "F32", (0,), 0, "dimension"),
        ("w", "F32", (-1,), 4, "dimension"),
        ("w", "F32", (True,), 4, "dimension"),
        ("w", "F32", (2,), 4, "bytes"),
    ],
)
def test_tensor_leaf_refuses(name: str, dtype: str, shape: tuple[int, ...], size: int, reason: str) -> None:
    with pytest.raises(CommitmentError, match=reason):
        commitments.tensors("weights/1", {name: (dtype, shape, bytes(size))})
    with pytest.raises(CommitmentError, match=reason):
        commitments.tensor_leaf(name, dtype, shape, size, "ab" * 32)


def test_tensor_leaf_is_canonical_json() -> None:
    leaf = commitments.tensor_leaf("w", "F32", (2, 3), 24, "ab" * 32)
    assert leaf == b'{"bytes":24,"digest":"' + b"ab" * 32 + b'","dtype":"F32","name":"w","shape":[2,3]}'
    assert commitments.tensor_leaf("w", "F32", (), 4, "ab" * 32).endswith(b'"shape":[]}')
    leaf = commitments.tensor_leaf("a/B._-9", "BF16", [1, 2, 3], 12, "ab" * 32)
    assert jcs.parse(leaf) == {"bytes": 12, "digest": "ab" * 32, "dtype": "BF16", "name": "a/B._-9", "shape": [1, 2, 3]}
    with pytest.raises(CommitmentError, match="hex"):
        commitments.tensor_leaf("w", "F32", (1,), 4, "AB" * 32)


@pytest.mark.parametrize("type", sorted(commitments.TYPES))
def test_golden_trees_of_every_type(type: str, golden: Any) -> None:
    for size in range(6):
        commitment = commitments.tree(type, [b"%d" % n for n in range(size)])
        assert Commitment.from_json(commitment.to_json()) == commitment
        golden("ledger-1.json").check(f"{type} of {size} leaves", commitment.to_json())
    assert commitments.tree(type, []).root == EMPTY


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"type": "weights/1", "size": 1},
        {"type": "weights/1", "size": 1, "root": "ab" * 32, "x": 1},
        {"type": "weights/2", "size": 1, "root": "ab" * 32},
        {"type": "weights/1", "size": -1, "root": "ab" * 32},
        {"type": "weights/1", "size": 1.0, "root": "ab" * 32},
        {"type": "weights/1", "size": True, "root": "ab" * 32},
        {"type": "weights/1", "size": 2**53, "root": "ab" * 32},
        {"type": "weights/1", "size": 1, "root": "AB" * 32},
        {"type": "weights/1", "size": 1, "root": "ab" * 31},
        {"type": "weights/1", "size": 1, "root": "ab" * 32 + "\n"},
        {"type": "weights/1", "size": 1, "root": None},
        {"type": "weights/1", "size": 0, "root": "ab" * 32},
    ],
)
def test_commitment_refuses(value: Any) -> None:
    with pytest.raises(CommitmentError):
        Commitment.from_json(value)


def test_commitment_of_another_type_is_refused() -> None:
    commitment = commitments.tree("weights/1", [b"x"])
    with pytest.raises(CommitmentError, match="expected optimizer/1"):
        Commitment.from_json(commitment.to_json(), type="optimizer/1")


def test_state_digest(golden: Any) -> None:
    weights = commitments.tree("weights/1", [b"w"])
    optimizer = commitments.tree("optimizer/1", [b"m", b"v"])
    control = {"step": 3, "tokens": 600, "cursor": 12}
    digest = commitments.state_digest(control, optimizer, weights)
    parts = {"control": control, "optimizer": optimizer.to_json(), "weights": weights.to_json()}
    assert digest == hashlib.sha256(b"bitwitness/state/v1\x00" + jcs.encode(parts)).hexdigest()
    assert commitments.state_digest(control, optimizer.to_json(), weights.to_json()) == digest
    golden("ledger-1.json").check("state digest", {"parts": parts, "digest": digest})
    seen = {digest}
    for name in control:
        seen.add(commitments.state_digest({**control, name: 0}, optimizer, weights))
    assert len(seen) == 4
    with pytest.raises(CommitmentError, match="expected weights/1"):
        commitments.state_digest(control, optimizer, optimizer)
    with pytest.raises(CommitmentError, match="control"):
        commitments.state_digest({"step": 1}, optimizer, weights)


def test_documents(golden: Any) -> None:
    salt = bytes(range(32))
    digest = commitments.document_digest(b"text", salt)
    assert digest == hashlib.sha256(b"bitwitness/doc/v1\x00" + salt + b"text").hexdigest()
    assert commitments.document_digest(b"text") == commitments.document_digest(b"text", bytes(32)) != digest
    leaf = commitments.document_leaf(start=5, count=4, source=digest, tokens=commitments.document_digest(b"tokens"))
    golden("ledger-1.json").check("document leaf", leaf.decode())
    with pytest.raises(CommitmentError, match="32 bytes"):
        commitments.document_digest(b"text", b"short")
    with pytest.raises(CommitmentError, match="negative"):
        commitments.document_leaf(start=-1, count=4, source=digest, tokens=digest)
    with pytest.raises(CommitmentError, match="hex"):
        commitments.document_leaf(start=0, count=4, source="x", tokens=digest)


def test_file_and_run_leaves(golden: Any) -> None:
    records = commitments.tree("records/1", [b"entry"])
    marks = commitments.tree("marks/1", [commitments.mark_leaf(7, "state", 50)])
    golden("ledger-1.json").check("file leaf", commitments.file_leaf("kernels/ops.py", "ab" * 32).decode())
    golden("ledger-1.json").check("run records leaf", commitments.run_records_leaf("cd" * 32, records, marks).decode())
    with pytest.raises(CommitmentError):
        commitments.file_leaf("x", "ab")
    with pytest.raises(CommitmentError):
        commitments.run_records_leaf("cd" * 32, commitments.tree("ledger/1", []), marks)
    with pytest.raises(CommitmentError):
        commitments.run_records_leaf("cd" * 32, records, records)
    with pytest.raises(CommitmentError, match="not 'step'"):
        commitments.mark_leaf(7, "step", 50)
