"""The safetensors container, read strictly and written reproducibly.

A file is an 8-byte little-endian header length N, N bytes of JSON, and the tensors' raw little-endian bytes
(https://github.com/huggingface/safetensors, section Format). The public readers take the last of two equal
keys and accept any name; whoever signs a tensor by name cannot. So this reader refuses, before anything is
allocated from what the file claims:

- a header longer than the file or than 8 MiB (the public limit is 100 MB, which no real header comes near),
- JSON with duplicate keys at any depth, numbers that are not plain non-negative integers, lone surrogates,
- tensor names outside ``[A-Za-z0-9._/-]{1,200}``, the alphabet of ``weights/1`` (docs/formats),
- byte ranges that overlap, leave holes, leave the file, or differ from shape times dtype.

Nothing is copied: a table points into the caller's buffer, and the caller owns that buffer.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .. import jcs
from ..errors import FormatError
from . import durable

HEADER_LIMIT = 8 << 20
_PREFIX = struct.Struct("<Q")
PREFIX = _PREFIX.size
_NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}")
_METADATA = "__metadata__"
_RANK_LIMIT = 32

# Bits per element, spelled as the format spells them.
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip

# The public library sorts by this order of its own enumeration, last first, so that wide types stay aligned.
_ALIGNMENT_ORDER = (
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8",
    "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
    "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
)  # fmt: skip


class SafetensorsError(FormatError):
    """A file that is not well-formed safetensors, or that this strict reader refuses."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: ``begin`` and ``end`` are byte positions in the whole file, not in its data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """The checked table of a file: ``tensors`` in the order of their bytes, which begin at ``data_start``."""

    tensors: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    data_start: int

    def __getitem__(self, name: str) -> TensorEntry:
        for entry in self.tensors:
            if entry.name == name:
                return entry
        raise KeyError(name)


def read_header(data: bytes | bytearray | memoryview, source: str = "safetensors") -> Header:
    """Check a whole file held in memory and return its table; raises SafetensorsError (module docstring)."""
    view = memoryview(data).cast("B")
    start = data_start(bytes(view[:PREFIX]), view.nbytes, source)
    return read_table(bytes(view[PREFIX:start]), view.nbytes, source)


def data_start(prefix: bytes, size: int, source: str = "safetensors") -> int:
    """Where the tensors of a file of ``size`` bytes begin, by its first PREFIX bytes. Raises SafetensorsError."""
    if size < PREFIX:
        _refuse(source, f"{size} bytes are too few for a safetensors file")
    (length,) = _PREFIX.unpack(prefix)
    if length > HEADER_LIMIT:
        _refuse(source, f"the header claims {length} bytes; at most {HEADER_LIMIT} are accepted")
    if PREFIX + length > size:
        _refuse(source, f"the header claims {length} bytes but the file has only {size}: it is truncated")
    return PREFIX + int(length)


def read_table(text: bytes, size: int, source: str = "safetensors") -> Header:
    """Check the JSON between the first PREFIX bytes and the tensors of a file of ``size`` bytes.

    Raises SafetensorsError.
    """
    start = PREFIX + len(text)
    fields = _json_object(text, source)
    metadata = _metadata(fields.pop(_METADATA, {}), source)
    entries = [_tensor(name, value, start, source) for name, value in fields.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    position = start
    for entry in entries:
        if entry.begin != position:
            kind = "overlaps the one before it" if entry.begin < position else "leaves a hole before it"
            _refuse(source, f"tensor {entry.name}: its byte range {kind}")
        position = entry.end
    if position > size:
        _refuse(source, f"the tensors need {position} bytes but the file has only {size}: it is truncated")
    if position < size:
        _refuse(source, f"{size - position} bytes after the last tensor belong to no tensor")
    return Header(tuple(entries), metadata, start)


def encode_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None) -> bytes:
    """The one header written for these (dtype, shape): length, JSON, spaces up to 8-byte alignment.

    Tensors lie as the public library lays them: widest dtype first, then by name. With at most one metadata
    key the public library writes the same bytes (its own order of several keys is random; ours is sorted).
    """
    fields: dict[str, Any] = {}
    if metadata:
        fields[_METADATA] = dict(sorted(metadata.items()))
    position = 0
    for name in write_order({name: dtype for name, (dtype, _) in tensors.items()}):
        dtype, shape = tensors[name]
        end = position + byte_size(dtype, shape)
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _PREFIX.pack(len(text)) + text


def write_order(dtypes: Mapping[str, str]) -> list[str]:
    """Names in the order in which their bytes follow each other in a file that this package writes."""
    ranks = {dtype: rank for rank, dtype in enumerate(_ALIGNMENT_ORDER)}
    return sorted(dtypes, key=lambda name: (-ranks[dtypes[name]], name.encode()))


def byte_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; raises ValueError for an unknown dtype or a size that is not whole bytes."""
    if dtype not in DTYPE_BITS:
        raise ValueError(f"unknown dtype {dtype}")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8:
        raise ValueError(f"shape {list(shape)} of {dtype} is not a whole number of bytes")
    return bits // 8


def write_file(
    path: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...], memoryview]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write ``name -> (dtype, shape, row-major little-endian bytes)`` to a new file and sync it to disk.

    The bytes depend only on the arguments. ``path`` must not exist (FileExistsError): write under a temporary
    name and rename. Raises OSError, of a full disk for one; the file is then gone.
    """
    for name, (dtype, shape, data) in tensors.items():
        if not _NAME.fullmatch(name) or name == _METADATA:
            raise SafetensorsError(str(path), f"tensor name {name!r} cannot be written")
        if byte_size(dtype, shape) != data.nbytes:
            raise SafetensorsError(str(path), f"tensor {name}: {data.nbytes} bytes do not fill its shape")
    header = encode_header({name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()}, metadata)
    order = write_order({name: dtype for name, (dtype, _, _) in tensors.items()})
    durable.write_new(path, itertools.chain((header,), (tensors[name][2] for name in order)))


def _refuse(source: str, reason: str) -> NoReturn:
    raise SafetensorsError(source, reason)


def _json_object(text: bytes, source: str) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            _refuse(source, f"the header has the key {twice[:80]!a} twice")
        return result

    def integer(digits: str) -> int:
        # 2^63 has 19 digits; longer ones are refused before Python turns them into a big integer.
        if digits.startswith("-") or len(digits) > 20:
            _refuse(source, f"the header has the number {digits[:40]}, not a size or position")
        return int(digits)

    def number(digits: str) -> NoReturn:
        _refuse(source, f"the header has the number {digits[:40]}; only integers belong there")

    if jcs.nests_deeper(text, jcs.MAX_DEPTH):
        _refuse(source, "the header is nested too deeply")
    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=pairs,
            parse_int=integer,
            parse_float=number,
            parse_constant=number,
        )
    except UnicodeDecodeError:
        _refuse(source, "the header is not UTF-8")
    except RecursionError:
        _refuse(source, "the header is nested too deeply")
    except ValueError as error:
        _refuse(source, f"the header is not JSON ({error})")
    if not isinstance(value, dict):
        _refuse(source, "the header is not a JSON object")
    return value


def _metadata(value: Any, source: str) -> dict[str, str]:
    if not isinstance(value, dict):
        _refuse(source, f"{_METADATA} is not an object")
    for key, text in value.items():
        if not isinstance(text, str):
            _refuse(source, f"{_METADATA}: the value of {key[:80]!a} is not a string")
        if not _is_unicode(key) or not _is_unicode(text):
            _refuse(source, f"{_METADATA}: {key[:80]!a} holds half of a surrogate pair")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tensor(name: str, value: Any, start: int, source: str) -> TensorEntry:
    if not _NAME.fullmatch(name):
        _refuse(source, f"tensor name {name[:80]!a} is not made of 1 to 200 of A-Z a-z 0-9 . _ / -")
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse(source, f"tensor {name}: it needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _refuse(source, f"tensor {name}: unknown dtype {str(dtype)[:40]!a}")
    if not _is_integers(shape) or len(shape) > _RANK_LIMIT:
        _refuse(source, f"tensor {name}: its shape is not a list of at most {_RANK_LIMIT} integers")
    if not _is_integers(offsets) or len(offsets) != 2:
        _refuse(source, f"tensor {name}: data_offsets is not a pair of integers")
    begin, end = offsets
    if end < begin:
        _refuse(source, f"tensor {name}: data_offsets ends before it begins")
    try:
        expected = byte_size(dtype, tuple(shape))
    except ValueError as error:
        _refuse(source, f"tensor {name}: {error}")
    if end - begin != expected:
        _refuse(source, f"tensor {name}: {end - begin} bytes given, {dtype} {shape} needs {expected}")
    return TensorEntry(name, dtype, tuple(shape), start + begin, start + end)


def _is_integers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)
