"""A small declarative schema for signed JSON: types with one check and one line of documentation each.

Only what entries.py needs. A check is called with a value and raises Wrong; the path to the value is put together on
the way out, so that what is right costs little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from .. import jcs
from ..errors import EntryError, JsonError
from ..jcs import MAX_INTEGER
from ..merkle import EMPTY_ROOT

_EMPTY = EMPTY_ROOT.hex()


class Wrong(Exception):
    """A value is not of its type. `path` grows from the value outwards."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def inside(self, part: str) -> Wrong:
        """The same error seen from one level further out; `part` is ".name" or "[number]"."""
        self.path = part + self.path
        return self


def fail(path: str, reason: str) -> NoReturn:
    """Raise EntryError at `path`."""
    raise EntryError(reason, path)


@dataclass(frozen=True)
class Type:
    """A named check. `text` is what the documentation says, `parts` are the fields below it.

    `form` is a regular expression: canonical JSON that it matches is of this type. It need not match all that is; where
    it is None it matches nothing.
    """

    text: str
    check: Callable[[Any], None]
    parts: tuple[Field, ...] = ()
    form: str | None = None

    def validate(self, value: Any, path: str) -> None:
        """Check `value`; raise EntryError with the path to what is wrong in it, beginning with `path`."""
        try:
            self.check(value)
        except Wrong as wrong:
            raise EntryError(wrong.reason, path + wrong.path) from None


@dataclass(frozen=True)
class Field:
    """One field of an object. With `when` = (field, value) it is required exactly then and forbidden
    otherwise.
    """

    name: str
    type: Type
    optional: bool = False
    when: tuple[str, str] | None = None
    note: str = ""


def _pattern(text: str, expression: str, *, plain: bool = True) -> Type:
    """A string; `plain` unless it may hold what JSON escapes, or the expression looks at its end."""
    matches = re.compile(expression).fullmatch

    def check(value: Any) -> None:
        if type(value) is not str or not matches(value):
            raise Wrong(f"{_show(value)} is not {text}")

    return Type(text, check, form=f'"(?:{expression})"' if plain else None)


_NATURAL = "[1-9][0-9]{0,14}"  # all of them below 2^53


def integer(low: int = 0, high: int = MAX_INTEGER) -> Type:
    """An integer from `low` to `high`, at most 2^53-1."""
    text = "integer" if low == 0 else f"integer ≥ {low}"

    def check(value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise Wrong(f"{_show(value)} is not an integer from {low} to {high}")

    form = _NATURAL if low == 1 else f"(?:0|{_NATURAL})"
    return Type(text, check, form=form if low in (0, 1) and high == MAX_INTEGER else None)


def enum(*values: str) -> Type:
    allowed = frozenset(values)
    text = " or ".join(f'"{value}"' for value in values)

    def check(value: Any) -> None:
        if type(value) is not str or value not in allowed:
            raise Wrong(f"{_show(value)} is not {text}")

    return Type(text, check, form=f'"(?:{"|".join(map(re.escape, values))})"')


_NO_HEX = str.maketrans("", "", "0123456789abcdef")


def _check_hash(value: Any) -> None:
    # Written out, as in commitment(): a step has ten of them.
    if type(value) is not str or len(value) != 64 or value.translate(_NO_HEX):
        raise Wrong(f"{_show(value)} is not 64 hex digits")


HASH = Type("64 hex digits", _check_hash, form='"[0-9a-f]{64}"')
U64 = _pattern("u64, 16 hex digits", "[0-9a-f]{16}")
HOST = _pattern("random, 16 hex digits", "[0-9a-f]{16}")
F32 = _pattern(
    "f32 bits, 8 hex digits",
    "(?!7f[89a-f][0-9a-f]{5}|ff[89a-f][0-9a-f]{5})[0-9a-f]{8}|7f800000|ff800000|7fc00000",
)
F64 = _pattern(
    "f64 bits, 16 hex digits",
    "(?!7ff[0-9a-f]{13}|fff[0-9a-f]{13})[0-9a-f]{16}|7ff0{13}|fff0{13}|7ff80{12}",
)
SIGNATURE = _pattern("signature, 128 hex digits", "[0-9a-f]{128}")
BLS_SIGNATURE = _pattern("BLS12-381 signature, 96 or 192 hex digits", "[0-9a-f]{96}|[0-9a-f]{192}")
NAME = _pattern("name: [A-Za-z0-9][A-Za-z0-9._-]{0,99}", "[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LABEL = _pattern("text: 1 to 200 printable ASCII characters", "[ -~]{1,200}", plain=False)
ORIGIN = _pattern("log origin: 1 to 200 printable ASCII characters, no space or +", "[!-*,-~]{1,200}", plain=False)
CODE = _pattern("code: [a-z][a-z0-9-]{0,63}", "[a-z][a-z0-9-]{0,63}")
FILE = _pattern(
    "file name: segments of [A-Za-z0-9_-][A-Za-z0-9._-]* joined by /, at most 200",
    r"(?=.{1,200}\Z)[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*",
    plain=False,
)
ARITHMETIC = _pattern("arith/N", "arith/[1-9][0-9]{0,5}")
VERSION = _pattern("decimal number without leading zeros", "[1-9][0-9]{0,5}")
COUNT = integer()
POSITIVE = integer(1)


def _check_time(value: Any) -> None:
    if type(value) is str and _TIME.fullmatch(value):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return
    raise Wrong(f"{_show(value)} is not a time like 2026-01-02T03:04:05Z")


_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_DAYS = "(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"  # of every year
TIME = Type(
    "UTC time, 2026-01-02T03:04:05Z",
    _check_time,
    form=f'"[1-9][0-9]{{3}}-(?:{_DAYS})T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z"',
)


def commitment(kind: str) -> Type:
    """{"type", "size", "root"} of one type."""

    def check(value: Any) -> None:
        if type(value) is not dict or len(value) != 3:
            raise Wrong('not {"type","size","root"}')
        try:
            stated, size, root = value["type"], value["size"], value["root"]
        except KeyError:
            raise Wrong('not {"type","size","root"}') from None
        if stated != kind:
            raise Wrong(f"the commitment's type is {_show(stated)}, not {kind}")
        if type(size) is not int or not 0 <= size <= MAX_INTEGER:
            raise Wrong(f"{_show(size)} is not an integer from 0 to {MAX_INTEGER}", ".size")
        if type(root) is not str or len(root) != 64 or root.translate(_NO_HEX):
            raise Wrong(f"{_show(root)} is not 64 hex digits", ".root")
        if size == 0 and root != _EMPTY:
            raise Wrong("the root of an empty tree is SHA-256 of nothing")

    form = rf'\{{"root":{HASH.form},"size":{_NATURAL},"type":"{re.escape(kind)}"\}}'
    return Type(f"commitment `{kind}`", check, form=form)


def record(*fields: Field) -> Type:
    """An object with exactly these fields."""
    names = frozenset(field.name for field in fields)
    always = frozenset(field.name for field in fields if not field.optional and field.when is None)
    conditional = tuple(field for field in fields if field.when is not None)
    checks: Mapping[str, Callable[[Any], None]] = {field.name: field.type.check for field in fields}
    needed = len(always) if names == always else -1

    def check(value: Any) -> None:
        if type(value) is dict and len(value) == needed:  # as most are: nothing can be missing where nothing is unknown
            try:
                for name, item in value.items():
                    checks[name](item)
                return
            except (KeyError, Wrong):
                pass
        explain(value)

    def explain(value: Any) -> None:
        if type(value) is not dict:
            raise Wrong("not an object")
        keys = value.keys()
        if not always <= keys:
            raise Wrong(f"the field {min(always - keys)!r} is missing")
        if not keys <= names:
            raise Wrong(f"unknown field {min(keys - names)!r}")
        try:
            for name, item in value.items():
                checks[name](item)
        except Wrong as wrong:
            raise wrong.inside(f".{name}") from None
        for field in conditional:
            key, wanted = field.when  # type: ignore[misc]
            if value.get(key) == wanted:
                if field.name not in keys:
                    raise Wrong(f"the field {field.name!r} is missing, which {key} {wanted!r} needs")
            elif field.name in keys:
                raise Wrong(f"the field {field.name!r} belongs to {key} {wanted!r} only")

    return Type("object", check, fields, None if conditional else _record_form(fields))


def _record_form(fields: Sequence[Field]) -> str | None:
    """Of an object with these fields; without those optional ones that have no form."""
    parts = [field for field in sorted(fields, key=lambda field: field.name) if field.type.form or not field.optional]
    if any(field.type.form is None for field in parts) or all(field.optional for field in parts):
        return None
    form, first = "", True  # up to the first that is always there, a comma follows each; then one stands before each
    for field in parts:
        part = f'"{re.escape(field.name)}":{field.type.form}'
        part = f"{part}," if first and field.optional else part if first else f",{part}"
        form += f"(?:{part})?" if field.optional else part
        first = first and field.optional
    return rf"\{{{form}\}}"


def items(item: Type, *, low: int = 0, high: int = 512) -> Type:
    """A list of `low` to `high` items."""
    text = f"list of {low} to {high}: {item.text}"

    def check(value: Any) -> None:
        if type(value) is not list or not low <= len(value) <= high:
            raise Wrong(f"not a list of {low} to {high} items")
        for number, element in enumerate(value):
            try:
                item.check(element)
            except Wrong as wrong:
                raise wrong.inside(f"[{number}]") from None

    return Type(text, check, item.parts)


def mapping(item: Type, *, low: int = 0, high: int = 32) -> Type:
    """An object from field names to values of one type."""
    key = re.compile("[A-Za-z][A-Za-z0-9._-]{0,63}")

    def check(value: Any) -> None:
        if type(value) is not dict or not low <= len(value) <= high:
            raise Wrong(f"not an object of {low} to {high} fields")
        for name, element in value.items():
            if not key.fullmatch(name):
                raise Wrong(f"the field name {name!r} is not [A-Za-z][A-Za-z0-9._-]{{0,63}}")
            try:
                item.check(element)
            except Wrong as wrong:
                raise wrong.inside(f".{name}") from None

    part = f'"{key.pattern}":{item.form}'
    form = None if item.form is None or not low else rf"\{{{part}(?:,{part}){{{low - 1},{high - 1}}}\}}"
    return Type(f"object of {low} to {high} fields, each {item.text}", check, form=form)


def _check_free(value: Any) -> None:
    if type(value) is not dict:
        raise Wrong("not an object")
    try:
        jcs.check(value, "", jcs.MAX_DEPTH - 2)  # it stands in a predicate, and that in a statement
    except JsonError as error:
        path, colon, reason = error.reason.partition(": ")
        raise (Wrong(reason, path) if colon else Wrong(error.reason)) from None


FREE = Type("object of the writer's choosing (floats as f64 hex)", _check_free)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
