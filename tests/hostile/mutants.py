"""Everything that may stand in a JSON or TOML document instead of what belongs there, one place at a time.

Each value is replaced by values of every type and by extreme ones; each key is left out, said twice, or joined by a
stranger. Of items that look alike only the first is changed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]
Seen = set[str]
"""What was changed already, in another document of the same format."""
Write = Callable[[Any], str]


class Raw(str):
    """Text that stands in the document as it is."""


class Pairs(list[tuple[str, Any]]):
    """An object whose keys may stand there twice."""


_LONG = "x" * 5000
_CONTROL = r'"a\u0000\n\r\u001b[2J\u2028b"'
_BOTH = (
    *("[]", "[[]]", "{}", '""', "true", "-1", "0", "1.5", "1e400", str(2**53 - 1), str(2**63), "1" + "0" * 400),
    *("9" * 5000, f'"{_LONG}"', _CONTROL, "[" * 40 + "]" * 40, f'"{"0" * 64}"'),
)
JSON_EDGES = (*_BOTH, "null", '"\\ud800"', "NaN", '{"a":[]}')
TOML_EDGES = (*_BOTH, "nan", "1979-05-27T07:32:00Z", "{a = {}}")
DEEP = "[" * 100_000 + "]" * 100_000
_KEYS = ("unknown", _LONG, "a\x00\n\x1b[2Jb", "é")


def of_json(specimen: bytes, seen: Seen) -> Iterator[bytes]:
    """Mutants of a JSON document, canonical where the specimen is (but for what no canonical JSON can say)."""
    yield from _mutants(json.loads(specimen), _json, JSON_EDGES, seen)


def of_toml(specimen: bytes, seen: Seen) -> Iterator[bytes]:
    """Mutants of a TOML document; tables become inline ones."""
    value = tomllib.loads(specimen.decode())
    assert tomllib.loads(_toml(value)) == value
    yield from _mutants(value, _toml, TOML_EDGES, seen)


def of_lines(specimen: bytes, seen: Seen) -> Iterator[bytes]:
    """Mutants of a text that is read line by line: a line is left out, said twice, long, or has an extreme number."""
    lines = specimen.split(b"\n")
    others = (b"", b" ", b"\x00", b"\xff", b"x" * 5000, b"9" * 5000, b"-1", "é—".encode(), b"\r", b"{}")
    for number, line in enumerate(lines):
        words = line.split(b" ")
        changed = [[], [line, line], *([other] for other in others)]
        changed += [[b" ".join([*words[:at], other, *words[at + 1 :]])] for at in range(len(words)) for other in others]
        for instead in changed:
            yield b"\n".join([*lines[:number], *instead, *lines[number + 1 :]])


def _mutants(value: Any, write: Write, edges: tuple[str, ...], seen: Seen) -> Iterator[bytes]:
    whole = write(value).encode()
    yield from (b"", whole[:-1], whole + b" ", whole + b"x", b"\xef\xbb\xbf" + whole, b"\xff" + whole, DEEP.encode())
    for path in _places(value, seen):
        for edge in edges:
            yield _encoded(write(_replaced(value, path, Raw(edge))))
        found = _at(value, path)
        if isinstance(found, dict):
            for changed in _other_keys(found):
                yield _encoded(write(_replaced(value, path, changed)))
        if isinstance(found, list) and found:
            for items in (found + found[-1:], found[1:], found[::-1]):
                yield _encoded(write(_replaced(value, path, items)))


def _other_keys(found: dict[str, Any]) -> Iterator[Any]:
    for key in found:
        yield {name: item for name, item in found.items() if name != key}
        yield Pairs([*found.items(), (key, found[key])])
        yield Pairs([(key, Raw("[]")), *found.items()])
    for key in _KEYS:
        yield {**found, key: 1}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any, seen: Seen, path: Path = (), place: str = "") -> Iterator[Path]:
    """Every place in a value, of items that look alike only the first."""
    looks = f"{place}:{sorted(value)}" if isinstance(value, dict) else f"{place}:{type(value).__name__}"
    if looks not in seen:
        seen.add(looks)
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places(item, seen, (*path, key), f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _places(item, seen, (*path, number), f"{place}[]")


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    part, *below = path
    item = _replaced(value[part], tuple(below), new)
    if isinstance(value, dict):
        return {**value, part: item}
    return [*value[:part], item, *value[int(part) + 1 :]]


def _json(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, (dict, Pairs)):
        pairs = sorted(value.items()) if isinstance(value, dict) else sorted(value, key=lambda pair: pair[0])
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_json(item)}" for key, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _toml(value: Any) -> str:
    pairs = value.items() if isinstance(value, dict) else value if isinstance(value, Pairs) else None
    if pairs is None:  # another document altogether
        return str(value)
    return "".join(f"{json.dumps(key)} = {_inline(item)}\n" for key, item in pairs)


def _inline(value: Any) -> str:
    if isinstance(value, (dict, Pairs)):
        pairs = value.items() if isinstance(value, dict) else value
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in pairs) + "}"
    if isinstance(value, list) and not isinstance(value, Raw):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return str(value) if isinstance(value, Raw) else json.dumps(value)
