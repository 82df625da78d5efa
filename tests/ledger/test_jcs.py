"""Canonical JSON: equal to the `rfc8785` package on its domain, strict on the way in."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from bitwitness.ledger import jcs
from bitwitness.ledger.errors import JsonError

ASCII = st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=12)
SCALARS = st.booleans() | st.integers(-jcs.MAX_INTEGER, jcs.MAX_INTEGER) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(ASCII, inner, max_size=5), max_leaves=20
)


@given(VALUES)
def test_equals_the_rfc8785_package_and_comes_back(value: Any) -> None:
    data = jcs.encode(value)
    assert data == rfc8785.dumps(value)
    assert jcs.parse(data) == value


def test_public_vectors(vectors: Path) -> None:
    """The package passes all of RFC 8785's vectors; what we sign is the part without floats and null."""
    for source in sorted((vectors / "jcs" / "input").iterdir()):
        expected = (vectors / "jcs" / "output" / source.name).read_bytes()
        value = json.loads(source.read_bytes())
        assert rfc8785.dumps(value) == expected
        ours = _without_floats_and_null(value)
        assert jcs.encode(ours) == rfc8785.dumps(ours)
        assert jcs.parse(jcs.encode(ours)) == ours


def _without_floats_and_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_floats_and_null(v) for k, v in value.items() if k.isascii() and v is not None}
    if isinstance(value, list):
        return [_without_floats_and_null(item) for item in value if item is not None]
    return str(value) if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": 1.5}, "float"),
        ({"a": [None]}, "null"),
        ({"a": 2**53}, "below 2.53"),
        ({"a": -(2**53)}, "below 2.53"),
        ({"é": 1}, "ASCII"),
        ({1: 1}, "not a string"),
        ({"a": b"x"}, "bytes"),
        ("\ud800", "surrogate"),
        (math.nan, "float"),
    ],
)
def test_encode_refuses(value: Any, reason: str) -> None:
    with pytest.raises(JsonError, match=reason):
        jcs.encode(value)


@pytest.mark.parametrize("value", ["\u04cc", {"k" * 5000 + "\n": None}, {"a\nb": {"c" * 900: {"d" * 900: 1.5}}}])
def test_a_reason_is_one_line_however_long_the_keys_are(value: Any) -> None:
    if isinstance(value, str):
        value = {"k" * 5000 + value: 1}
    with pytest.raises(JsonError) as error:
        jcs.encode(value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    assert str(error.value).endswith(("is not ASCII", "leave the field out", "f64_hex"))


def test_depth_is_capped_both_ways() -> None:
    value: Any = 1
    for _ in range(jcs.MAX_DEPTH):
        value = [value]
    assert jcs.parse(jcs.encode(value)) == value
    with pytest.raises(JsonError, match="deeper"):
        jcs.encode([value])
    with pytest.raises(JsonError, match="deeper"):
        jcs.parse(b"[" * 33 + b"1" + b"]" * 33)
    with pytest.raises(JsonError):
        jcs.parse(b"[" * 500_000 + b"]" * 500_000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1,"a":1}', "twice"),
        (b'{"x":{"a":1,"a":2}}', "twice"),
        (b'{"b":1,"a":2}', "canonical"),
        (b'{"a": 1}', "canonical"),
        (b'{"a":1}\n', "canonical"),
        (b"\xef\xbb\xbf{}", "JSON"),
        (b'"\\u0041"', "canonical"),
        (b'"\\/"', "canonical"),
        (b'"\\u000A"', "canonical"),
        (b"1.0", "integer"),
        (b"1e3", "integer"),
        (b"-0", "canonical"),
        (b"01", "JSON"),
        (b"9007199254740992", "below 2.53"),
        (b"1" * 5000, "JSON|2.53"),
        (b"NaN", "integer"),
        (b"Infinity", "integer"),
        (b"null", "null"),
        (b'"\\ud800"', "surrogate"),
        (b'"\xff"', "UTF-8"),
        (b'{"a":1', "JSON"),
        (b"", "JSON"),
        (b'"a\tb"', "JSON"),
    ],
)
def test_parse_refuses(data: bytes, reason: str) -> None:
    with pytest.raises(JsonError, match=reason):
        jcs.parse(data)


@pytest.mark.parametrize("depth", [*range(jcs.MAX_DEPTH), jcs.MAX_DEPTH + 5])
def test_a_key_that_stands_twice_is_refused_at_every_depth(depth: int) -> None:
    for before, after in ((b'{"a":', b"}"), (b"[", b"]")):
        around = [before * depth, after * depth]
        with pytest.raises(JsonError, match="twice" if depth < jcs.MAX_DEPTH else "deeper"):
            jcs.parse(around[0] + b'{"x":1,"x":1}' + around[1])
        if depth < jcs.MAX_DEPTH:
            jcs.parse(around[0] + b'{"x":1,"y":1}' + around[1])


def test_depth_is_counted_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's parser recurses in C, under a limit that others may have raised."""
    for data, depth in ((b"[]", 1), (b'{"a":[{}]}', 3), (b'["[[[[",[]]', 2), (b'["\\"[[[",{}]', 2), (b"[[],[],[]]", 2)):
        assert jcs.nests_deeper(data, depth - 1) and not jcs.nests_deeper(data, depth), data
    monkeypatch.setattr(jcs, "_DECODER", None)
    with pytest.raises(JsonError, match="deeper"):
        jcs.parse(b"[" * (jcs.MAX_DEPTH + 1) + b"]" * (jcs.MAX_DEPTH + 1))


def test_parse_caps_bytes() -> None:
    with pytest.raises(JsonError, match="11 bytes"):
        jcs.parse(b'"123456789"', max_bytes=10)


@given(st.binary(max_size=40))
def test_parse_returns_only_canonical_values(data: bytes) -> None:
    try:
        value = jcs.parse(data)
    except JsonError:
        return
    assert jcs.encode(value) == data


def test_every_byte_of_a_document_matters() -> None:
    data = jcs.encode({"a": [1, True, "x\n"], "b": {"c": "ü"}})
    value = jcs.parse(data)
    for position in range(len(data)):
        for other in range(256):
            changed = data[:position] + bytes([other]) + data[position + 1 :]
            if changed == data:
                continue
            with contextlib.suppress(JsonError):
                assert jcs.parse(changed) != value


@given(st.floats(width=32))
def test_f32_hex_is_the_bits(value: float) -> None:
    digits = jcs.f32_hex(value)
    if math.isnan(value):
        assert digits == "7fc00000"
    else:
        assert digits == struct.pack(">f", value).hex()
        assert struct.pack(">f", jcs.f32_from_hex(digits)).hex() == digits


@given(st.floats())
def test_f64_hex_is_the_bits(value: float) -> None:
    digits = jcs.f64_hex(value)
    if math.isnan(value):
        assert digits == "7ff8000000000000"
    else:
        assert struct.pack(">d", jcs.f64_from_hex(digits)).hex() == digits


def test_f32_hex_never_rounds() -> None:
    for value in (0.1, 1e300, 1.0 + 2.0**-30):
        with pytest.raises(JsonError, match="binary32"):
            jcs.f32_hex(value)


@pytest.mark.parametrize(
    "digits", ["7fc00001", "ffc00000", "7FC00000", "3f80000", "3f8000000", "+3f80000", "３f800000"]
)
def test_f32_from_hex_refuses(digits: str) -> None:
    with pytest.raises(JsonError):
        jcs.f32_from_hex(digits)


def test_f64_from_hex_refuses_other_nans() -> None:
    with pytest.raises(JsonError):
        jcs.f64_from_hex("fff8000000000000")


@given(st.integers(0, 2**64 - 1))
def test_u64_hex(value: int) -> None:
    assert jcs.u64_from_hex(jcs.u64_hex(value)) == value


def test_u64_hex_refuses() -> None:
    for value in (-1, 2**64):
        with pytest.raises(JsonError):
            jcs.u64_hex(value)
