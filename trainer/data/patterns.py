"""Which files --include and --exclude choose.

A pattern without `/` is matched against names: of the file for --include, of the file and of every folder
on its way for --exclude. A pattern with `/` is matched against the path below the source: `*` and `?` stay
inside one name, `**` crosses folders. Letters are compared exactly, on every system.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

# What one place of a pattern is: a single character (a set of them), or a repetition, which may also match nothing.
_ONE, _STAR, _ANY, _FOLDERS, _IN_FOLDER = range(5)
# Python's matcher tries every way to spread a path over a pattern's stars: quick for few, endless for many.
_MOST_STARS = 2


class _Place(NamedTuple):
    kind: int
    regex: str
    one: re.Pattern[str] | None = None


class Pattern:
    """One compiled pattern. Matching takes time in proportion to the path's length times the pattern's, at worst."""

    def __init__(self, places: list[_Place]) -> None:
        self._places = places
        stars = sum(place.kind != _ONE for place in places)
        self._regex = None if stars > _MOST_STARS else re.compile("".join(p.regex for p in places), re.DOTALL)

    def fullmatch(self, text: str) -> bool:
        """Whether the pattern matches all of `text`."""
        return self._follow(text) if self._regex is None else self._regex.fullmatch(text) is not None

    def _follow(self, text: str) -> bool:
        """All ways at once: the set of places at which the pattern can be after each character."""
        at = self._closed({0})
        for char in text:
            at = self._closed({after for place in at for after in self._after(place, char)})
            if not at:
                return False
        return len(self._places) in at

    def _closed(self, at: set[int]) -> set[int]:
        """With the places that are reached without a character."""
        found = set(at)
        for place in at:
            while place < len(self._places) and self._places[place].kind in (_STAR, _ANY, _FOLDERS):
                place += 2 if self._places[place].kind == _FOLDERS else 1
                found.add(place)
        return found

    def _after(self, place: int, char: str) -> tuple[int, ...]:
        if place == len(self._places):
            return ()
        kind, _regex, one = self._places[place]
        if kind == _ANY:
            return (place,)
        if kind == _FOLDERS:  # the first character of a folder's name
            return () if char == "/" else (place + 1,)
        if kind == _IN_FOLDER:
            return (place - 1,) if char == "/" else (place,)
        if kind == _STAR:
            return () if char == "/" else (place,)
        return (place + 1,) if one is not None and one.fullmatch(char) else ()


def _one(regex: str) -> _Place:
    return _Place(_ONE, regex, re.compile(regex, re.DOTALL))


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Pattern:
    """Translate one pattern; an unclosed `[` is an ordinary character."""
    try:
        return Pattern(_places(pattern))
    except re.error:  # such as a range written backwards, [z-a]
        return Pattern([_one(re.escape(char)) for char in pattern])


def _places(pattern: str) -> list[_Place]:
    out: list[_Place] = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if pattern.startswith("**/", i):
            if not out or out[-1].kind != _IN_FOLDER:
                out += [_Place(_FOLDERS, "(?:[^/]+/)*"), _Place(_IN_FOLDER, "")]
            i += 3
            continue
        if pattern.startswith("**", i):
            if not out or out[-1].kind != _ANY:
                out.append(_Place(_ANY, ".*"))
            i += 2
            continue
        if char == "*":
            if not out or out[-1].kind not in (_STAR, _ANY):
                out.append(_Place(_STAR, "[^/]*"))
        elif char == "?":
            out.append(_one("[^/]"))
        elif char == "[" and (end := pattern.find("]", i + 2)) > 0:
            body = pattern[i + 1 : end]
            negated = body.startswith("!")
            members = re.sub(r"([\\\[\]^&|~])", r"\\\1", body.removeprefix("!"))
            out.append(_one(f"[{'^/' if negated else ''}{members}]"))
            i = end
        else:
            out.append(_one(re.escape(char)))
        i += 1
    return out


def _matches(pattern: str, path: str) -> bool:
    subject = path if "/" in pattern else path.rpartition("/")[2]
    return compiled(pattern.removeprefix("/")).fullmatch(subject)


def included(path: str, patterns: Sequence[str]) -> bool:
    """Whether a file, by its path below the source, matches any of the patterns."""
    return any(_matches(pattern, path) for pattern in patterns)


def excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a file or any folder on its way matches any of the patterns."""
    parts = path.split("/")
    return any(_matches(pattern, "/".join(parts[:depth])) for pattern in patterns for depth in range(1, len(parts) + 1))
