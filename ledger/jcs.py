"""Canonical JSON for everything that is hashed or signed: RFC 8785, restricted (docs/formats/json.md).

Signed JSON holds objects, arrays, strings, booleans and integers below 2^53; no floats, no null. Object keys
are ASCII, so that sorting by code point and by UTF-16 unit is the same thing. Binary floats travel as the hex
digits of their bits.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from .errors import JsonError

MAX_INTEGER = 2**53 - 1
MAX_DEPTH = 32

# In this domain the standard library's C encoder writes exactly RFC 8785 (same escapes, same order), six
# times faster than the `rfc8785` package; tests/ledger/test_jcs.py holds the two together.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False, allow_nan=False
)


def _prepared(encoder: json.JSONEncoder) -> Callable[[Any], str]:
    """What `encoder.encode` does, with the C encoder made once: made at each call, it takes a seventh of the time."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # a Python without it
        return encoder.encode
    write = make(
        None,
        encoder.default,
        json.encoder.encode_basestring,
        None,
        encoder.key_separator,
        encoder.item_separator,
        encoder.sort_keys,
        encoder.skipkeys,
        encoder.allow_nan,
    )
    return lambda value: "".join(write(value, 0))


_TEXT = _prepared(_ENCODER)

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_F32_NAN = "7fc00000"
_F64_NAN = "7ff8000000000000"
_NO_HEX = str.maketrans("", "", "0123456789abcdef")


def encode(value: Any) -> bytes:
    """The canonical bytes of `value` (UTF-8).

    Raises JsonError for anything outside the restricted domain, naming the path to it.
    """
    check(value)
    return write(value)


def check(value: Any, path: str = "$", depth: int = MAX_DEPTH) -> None:
    """Raise JsonError unless `value` is in the restricted domain; `path` and `depth` are those left at its place."""
    if not _allowed(value, depth):
        _refuse(value, depth, path)
        raise JsonError("a subclass of a JSON type is not JSON")


def write(value: Any) -> bytes:
    """encode() of a value that is known to be in the domain, having been checked against a schema (_fields.py)."""
    try:
        return _TEXT(value).encode("utf-8")
    except UnicodeEncodeError:
        raise JsonError("a string holds a lone surrogate, which UTF-8 cannot carry") from None


def parse(data: bytes, *, max_bytes: int = 16 * 1024 * 1024) -> Any:
    """The value of canonical JSON bytes; `encode(parse(data)) == data` holds or JsonError is raised.

    Duplicate keys, spaces, other escapes, another key order, floats, null, integers from 2^53, a byte order
    mark and nesting deeper than 32 are all refused. `max_bytes` caps the input before it is read.
    """
    if len(data) > max_bytes:
        raise JsonError(f"{len(data)} bytes are more than the {max_bytes} allowed here")
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 at byte {error.start}") from None
    if nests_deeper(data, MAX_DEPTH):
        raise JsonError(f"nested deeper than {MAX_DEPTH}")
    try:
        value = _DECODER.decode(text)
    except JsonError:
        raise
    except RecursionError:
        raise JsonError(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        reason = str(error).split(":")[0] if not isinstance(error, json.JSONDecodeError) else error.msg
        raise JsonError(f"not JSON: {reason}") from None
    if encode(value) != data:
        _explain(text)
    return value


def value_of(data: bytes) -> Any:
    """The value of ASCII that the form of a schema (_fields.py) matches, so it is in the domain; it is canonical if
    write() gives the same bytes.
    """
    return _DECODER.decode(data.decode("ascii"))


def nests_deeper(data: bytes, depth: int) -> bool:
    """Whether brackets outside strings nest deeper than ``depth``; found without recursion.

    Python's own parser recurses in C. It stops at the recursion limit, which is a setting of the whole process: where
    some library has raised it, a deep text ends the process.
    """
    if data.count(b"[") + data.count(b"{") <= depth:
        return False
    level = 0
    for bracket in _STRINGS.sub(b"", data).translate(None, _NO_BRACKETS):
        level += 1 if bracket in b"[{" else -1
        if level > depth:
            return True
    return False


def keys_once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of others' JSON, for `object_pairs_hook`: which of two values counts is no reader's to choose.

    Raises JsonError.
    """
    seen: dict[str, Any] = {}
    for key, value in items:
        if key in seen:
            raise JsonError(f"the key {key!r} occurs twice in one object")
        seen[key] = value
    return seen


def _explain(text: str) -> NoReturn:
    """Say why bytes differ from their canonical form; duplicate keys deserve a name of their own."""

    json.loads(text, object_pairs_hook=keys_once)
    raise JsonError("not in canonical form (RFC 8785): sorted keys, no spaces, shortest escapes")


def _refuse_float(token: str) -> NoReturn:
    raise JsonError(f"the number {token[:40]} is not an integer; floats are written as the hex of their bits")


_DECODER = json.JSONDecoder(parse_float=_refuse_float, parse_constant=_refuse_float)


def _allowed(value: Any, depth: int) -> bool:
    """Whether canonical JSON may hold `value`; says only yes or no, since nearly all are allowed."""
    kind = type(value)
    if kind is str or kind is bool:
        return True
    if kind is int:
        return bool(-MAX_INTEGER <= value <= MAX_INTEGER)
    if kind is dict:
        if depth == 0:
            return False
        for key, item in value.items():
            if type(key) is not str or not key.isascii():
                return False
            if type(item) is not str and not _allowed(item, depth - 1):
                return False
        return True
    if kind is list or kind is tuple:
        return depth > 0 and all(_allowed(item, depth - 1) for item in value)
    return False


def _refuse(value: Any, depth: int, path: str) -> None:
    """Walk a value that is not allowed and raise JsonError with the path to the reason."""
    if isinstance(value, dict):
        if depth == 0:
            raise JsonError(f"nested deeper than {MAX_DEPTH}")
        for key, item in value.items():
            if type(key) is not str:
                raise JsonError(f"{path}: the key {key!r} is not a string")
            if not key.isascii():
                raise JsonError(f"{path}: the key {key!r} is not ASCII")
            _refuse(item, depth - 1, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        if depth == 0:
            raise JsonError(f"nested deeper than {MAX_DEPTH}")
        for number, item in enumerate(value):
            _refuse(item, depth - 1, f"{path}[{number}]")
    elif value is None:
        raise JsonError(f"{path}: null is not allowed; leave the field out")
    elif isinstance(value, float):
        raise JsonError(f"{path}: a float is not allowed; write its bits with f32_hex or f64_hex")
    elif type(value) is int:
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise JsonError(f"{path}: the integer is not below 2^53; write 64-bit values as hex")
    elif type(value) is not str and type(value) is not bool:
        raise JsonError(f"{path}: a {type(value).__name__} is not JSON")


def f32_hex(value: float) -> str:
    """The 8 hex digits of a binary32 value's bits, most significant first; every NaN is 7fc00000.

    Raises JsonError if `value` is not exactly a binary32 number: rounding is the caller's decision.
    """
    number = float(value)
    if math.isnan(number):
        return _F32_NAN
    try:
        packed = struct.pack(">f", number)
    except OverflowError:
        packed = b""
    if not packed or struct.unpack(">f", packed)[0] != number:
        raise JsonError(f"{number!r} is not a binary32 number; round it first")
    return packed.hex()


def f64_hex(value: float) -> str:
    """The 16 hex digits of a binary64 value's bits, most significant first; every NaN is 7ff8000000000000."""
    number = float(value)
    return _F64_NAN if math.isnan(number) else struct.pack(">d", number).hex()


def f32_from_hex(digits: str) -> float:
    """The value of `f32_hex` digits. Raises JsonError for other lengths, upper case and other NaNs."""
    (value,) = struct.unpack(">f", bytes.fromhex(_digits(digits, 8)))
    if math.isnan(value) and digits != _F32_NAN:
        raise JsonError(f"{digits} is a NaN; the only one written is {_F32_NAN}")
    return float(value)


def f64_from_hex(digits: str) -> float:
    """The value of `f64_hex` digits. Raises JsonError for other lengths, upper case, and other NaNs."""
    (value,) = struct.unpack(">d", bytes.fromhex(_digits(digits, 16)))
    if math.isnan(value) and digits != _F64_NAN:
        raise JsonError(f"{digits} is a NaN; the only one written is {_F64_NAN}")
    return float(value)


def u64_hex(value: int) -> str:
    """16 hex digits of an unsigned 64-bit integer."""
    if not 0 <= value < 2**64:
        raise JsonError(f"{value} is not an unsigned 64-bit integer")
    return f"{value:016x}"


def u64_from_hex(digits: str) -> int:
    """The integer of `u64_hex` digits."""
    return int(_digits(digits, 16), 16)


def is_hex(text: str, length: int) -> bool:
    """Whether `text` is so many lower-case hex digits."""
    return len(text) == length and not text.translate(_NO_HEX)


def _digits(text: str, length: int) -> str:
    if not isinstance(text, str) or not is_hex(text, length):
        raise JsonError(f"{text!r} is not {length} lower-case hex digits")
    return text
