"""Which files --include and --exclude choose.

A pattern without `/` is matched against names: of the file for --include, of the file and of every folder
on its way for --exclude. A pattern with `/` is matched against the path below the source: `*` and `?` stay
inside one name, `**` crosses folders. Letters are compared exactly, on every system.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """Translate one pattern; an unclosed `[` is an ordinary character."""
    out: list[str] = []
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if pattern.startswith("**/", i):
            out.append("(?:[^/]+/)*")
            i += 3
            continue
        if pattern.startswith("**", i):
            out.append(".*")
            i += 2
            continue
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[" and (end := pattern.find("]", i + 2)) > 0:
            body = pattern[i + 1 : end]
            negated = body.startswith("!")
            members = re.sub(r"([\\\[\]^&|~])", r"\\\1", body.removeprefix("!"))
            out.append(f"[{'^/' if negated else ''}{members}]")
            i = end
        else:
            out.append(re.escape(char))
        i += 1
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error:  # such as a range written backwards, [z-a]
        return re.compile(re.escape(pattern))


def _matches(pattern: str, path: str) -> bool:
    subject = path if "/" in pattern else path.rpartition("/")[2]
    return compiled(pattern.removeprefix("/")).fullmatch(subject) is not None


def included(path: str, patterns: Sequence[str]) -> bool:
    """Whether a file, by its path below the source, matches any of the patterns."""
    return any(_matches(pattern, path) for pattern in patterns)


def excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a file or any folder on its way matches any of the patterns."""
    parts = path.split("/")
    return any(_matches(pattern, "/".join(parts[:depth])) for pattern in patterns for depth in range(1, len(parts) + 1))
