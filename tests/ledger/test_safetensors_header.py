"""The strict safetensors reader and the reproducible writer, against the public library and its vectors."""

from __future__ import annotations

import base64
import json
import os
import struct
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from bitwitness.ledger.files.safetensors_header import (
    DTYPE_BITS,
    HEADER_LIMIT,
    SafetensorsError,
    byte_size,
    read_header,
    write_file,
    write_order,
)

_VECTORS = Path(os.environ.get("BITWITNESS_VECTORS", Path(__file__).parents[3] / "shared" / "vectors"))
_MALFORMED = _VECTORS / "safetensors" / "malformed.json"


def _file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _tensor(begin: int, end: int, *, dtype: str = "F32", shape: list[int] | None = None) -> dict[str, object]:
    count = (end - begin) // 4
    return {"dtype": dtype, "shape": [count] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.skipif(not _MALFORMED.exists(), reason="the public safetensors vectors are not on this machine")
def test_public_vectors() -> None:
    cases = json.loads(_MALFORMED.read_text())["upstream"]
    assert len(cases) >= 15
    for case in cases:
        data = base64.b64decode(case["bytes_b64"])
        if case["expect"] == "ok":
            read_header(data)
        else:
            with pytest.raises(SafetensorsError):
                read_header(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too few"),
        (b"\0" * 7, "too few"),
        (struct.pack("<Q", HEADER_LIMIT + 1) + b"{}", "claims 8388609 bytes"),
        (struct.pack("<Q", 100 << 20) + b"{}", "claims 104857600 bytes"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "claims"),
        (struct.pack("<Q", 3) + b"{}", "truncated"),
        (_file(b""), "not JSON"),
        (_file(b"[]"), "not a JSON object"),
        (_file(b"\xff"), "not UTF-8"),
        (_file(b"\xef\xbb\xbf{}"), "not JSON"),
        (_file(b"{} {}"), "not JSON"),
        (_file(b"[" * 100_000), "nested too deeply"),
        (_file(b'{"a":' * 100_000), "nested too deeply"),
        (_file(b'{"a":NaN}'), "NaN"),
        (_file(b'{"a":1.0}'), "only integers"),
        (_file(b'{"a":-1}'), "not a size"),
        (_file(b'{"a":-0}'), "not a size"),
        (_file(b'{"a":' + b"9" * 5000 + b"}"), "not a size"),
        (_file(b'{"__metadata__":{},"__metadata__":{}}'), "'__metadata__' twice"),
        (_file(b'{"__metadata__":{"x":"1","x":"2"}}'), "'x' twice"),
        (_file(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4), "twice"),
        (_file(b'{"__metadata__":{"x":"\\ud800"}}'), "surrogate"),
        (_file({"__metadata__": {"x": 1}}), "not a string"),
        (_file({"__metadata__": []}), "not an object"),
        (_file({"": _tensor(0, 4)}, b"\0" * 4), "tensor name"),
        (_file({"a b": _tensor(0, 4)}, b"\0" * 4), "tensor name"),
        (_file({"a\n": _tensor(0, 4)}, b"\0" * 4), "tensor name"),
        (_file({"é": _tensor(0, 4)}, b"\0" * 4), "tensor name"),
        (_file({"a" * 201: _tensor(0, 4)}, b"\0" * 4), "tensor name"),
        (_file({"a": 1}), "exactly dtype"),
        (_file({"a": {"dtype": "F32", "shape": [1]}}), "exactly dtype"),
        (_file({"a": {**_tensor(0, 4), "extra": 1}}, b"\0" * 4), "exactly dtype"),
        (_file({"a": _tensor(0, 4, dtype="F33")}, b"\0" * 4), "unknown dtype"),
        (_file({"a": {**_tensor(0, 4), "dtype": ["F32"]}}, b"\0" * 4), "unknown dtype"),
        (_file({"a": _tensor(0, 4, shape=[True])}, b"\0" * 4), "list of at most"),  # type: ignore[list-item]
        (_file({"a": _tensor(0, 4, shape=[1] * 33)}, b"\0" * 4), "list of at most"),
        (_file({"a": {**_tensor(0, 4), "shape": "1"}}, b"\0" * 4), "list of at most"),
        (_file({"a": {**_tensor(0, 4), "data_offsets": [0, 4, 4]}}, b"\0" * 4), "pair"),
        (_file({"a": {**_tensor(0, 4), "data_offsets": [4, 0]}}, b"\0" * 4), "ends before"),
        (_file({"a": _tensor(0, 4, shape=[2])}, b"\0" * 4), "needs 8"),
        (_file({"a": _tensor(0, 4, shape=[2**63, 2**63])}, b"\0" * 4), "needs"),
        (_file({"a": _tensor(0, 1, dtype="F4", shape=[1])}, b"\0"), "whole number"),
        (_file({"a": _tensor(0, 4), "b": _tensor(0, 4)}, b"\0" * 8), "overlaps"),
        (_file({"a": _tensor(0, 8), "b": _tensor(4, 12)}, b"\0" * 12), "overlaps"),
        (_file({"a": _tensor(0, 4), "b": _tensor(8, 12)}, b"\0" * 12), "hole"),
        (_file({"a": _tensor(4, 8)}, b"\0" * 8), "hole"),
        (_file({"a": _tensor(0, 4)}, b"\0" * 3), "truncated"),
        (_file({"a": _tensor(0, 4)}, b"\0" * 5), "belong to no tensor"),
        (_file({}, b"\0"), "belong to no tensor"),
    ],
)  # fmt: skip
def test_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(SafetensorsError, match=reason) as caught:
        read_header(data, "x.safetensors")
    assert str(caught.value).startswith("x.safetensors: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_public_library_accepts_what_we_must_refuse() -> None:
    one = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = b"{" + one + b"," + one.replace(b"F32", b"I32") + b"}"
    data = _file(header, b"\0" * 4)
    safetensors.deserialize(data)
    with pytest.raises(SafetensorsError, match="'a' twice"):
        read_header(data)


def test_every_truncation_is_refused() -> None:
    data = save({"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)})
    table = read_header(data)
    assert [(e.name, e.dtype, e.shape, e.nbytes) for e in table.tensors] == [
        ("b", "I64", (2,), 16),
        ("a", "F32", (2, 3), 24),
    ]
    for length in range(len(data)):
        with pytest.raises(SafetensorsError):
            read_header(data[:length])


_SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@given(
    tensors=st.dictionaries(
        st.from_regex(r"[A-Za-z0-9._/-]{1,12}", fullmatch=True),
        st.tuples(
            st.sampled_from([d for d, bits in DTYPE_BITS.items() if bits % 8 == 0 and "FNUZ" not in d]),
            _SHAPES,
        ),
        max_size=6,
    ),
    metadata=st.sampled_from([None, {"format": "pt"}]),
)
def test_writer_matches_the_public_library(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, tuple[str, tuple[int, ...]]],
    metadata: dict[str, str] | None,
) -> None:
    path = tmp_path_factory.mktemp("safetensors") / "x.safetensors"
    filled = {
        name: (dtype, shape, memoryview(os.urandom(byte_size(dtype, shape))))
        for name, (dtype, shape) in tensors.items()
    }
    write_file(path, filled, metadata)
    written = path.read_bytes()
    table = read_header(written)
    assert table.metadata == (metadata or {})
    assert [e.name for e in table.tensors] == write_order({n: d for n, (d, _) in tensors.items()})
    for entry in table.tensors:
        assert (entry.dtype, entry.shape) == tensors[entry.name]
        assert written[entry.begin : entry.end] == filled[entry.name][2]
    assert table.data_start % 8 == 0
    public = dict(safetensors.deserialize(written))
    assert {name: (info["dtype"], tuple(info["shape"])) for name, info in public.items()} == tensors
    if {dtype for dtype, _ in tensors.values()} <= _TORCH.keys():
        as_torch = {
            name: torch.frombuffer(bytearray(data), dtype=_TORCH[dtype]).reshape(shape)
            for name, (dtype, shape, data) in filled.items()
        }
        assert save(as_torch, metadata) == written


_TORCH = {
    "F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16,
    "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def test_writer_refuses_what_the_reader_would(tmp_path: Path) -> None:
    four = memoryview(b"\0" * 4)
    for name in ("", "a b", "__metadata__", "a" * 201):
        with pytest.raises(SafetensorsError, match="tensor name"):
            write_file(tmp_path / "x", {name: ("F32", (1,), four)})
    with pytest.raises(SafetensorsError, match="do not fill"):
        write_file(tmp_path / "x", {"a": ("F32", (2,), four)})
    assert not (tmp_path / "x").exists()
    write_file(tmp_path / "x", {"a": ("F32", (1,), four)})
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "x", {"a": ("F32", (1,), four)})


_VALID = save({"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)})


@given(
    changes=st.lists(st.tuples(st.integers(0, len(_VALID) - 1), st.integers(0, 255)), min_size=1, max_size=3),
    cut=st.integers(0, len(_VALID)),
)
def test_what_we_accept_the_public_library_accepts(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(_VALID)
    for position, value in changes:
        data[position] = value
    for candidate in (bytes(data), bytes(data[:cut])):
        try:
            table = read_header(candidate)
        except SafetensorsError:
            continue
        public = dict(safetensors.deserialize(candidate))
        assert {entry.name: (entry.dtype, entry.shape) for entry in table.tensors} == {
            name: (info["dtype"], tuple(info["shape"])) for name, info in public.items()
        }
        for entry in table.tensors:
            assert candidate[entry.begin : entry.end] == public[entry.name]["data"]
