"""From the sources that a user names to the list of files, in path order.

A source is a file, a folder (read with everything below it), a glob pattern, or the word `STDLIB`: the Python
standard library of this machine without its tests and installed packages. Paths are compared as bytes, so the
order does not depend on locale, file system or the order of the arguments.
"""

from __future__ import annotations

import glob
import os
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import SourceUnreadable
from .patterns import excluded, included

TEXT_SUFFIXES = (".txt", ".md", ".py", ".jsonl")
STDLIB = "STDLIB"
# Tests of the standard library hold files that are not UTF-8 on purpose; the others are not part of it.
STDLIB_EXCLUDED = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__")


@dataclass(frozen=True)
class SourceFile:
    """One file: where it is, the path it is known by in the index, and whether bad text in it is an error."""

    location: Path
    label: bytes
    lenient: bool = False


@dataclass
class Selection:
    """The files of all sources in path order, and what was left out on the way."""

    files: list[SourceFile] = field(default_factory=list)
    links_skipped: int = 0


def select(sources: Sequence[str], *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Selection:
    """Find the files of `sources`, each once, sorted by the bytes of their label.

    Without `include`, a folder gives its .txt, .md, .py and .jsonl files; a file named by itself is always
    taken. Names that begin with a dot are passed over in folders. Symbolic links in folders are not followed.
    Raises SourceUnreadable.
    """
    selection = Selection()
    found: dict[str, SourceFile] = {}
    for source in sources:
        try:
            for file in _files_of(source, tuple(include), tuple(exclude), selection):
                real = os.path.realpath(file.location)
                # Of two ways to one file the longer label stays, so the order of the sources has no effect.
                if real not in found or _rank(file) < _rank(found[real]):
                    found[real] = file
        except OSError as error:
            raise SourceUnreadable(f"{source[:200]}: {error.strerror}") from None
    selection.files = sorted(found.values(), key=lambda file: file.label)
    return selection


def _rank(file: SourceFile) -> tuple[int, bytes]:
    return -len(file.label), file.label


def _files_of(
    source: str, include: tuple[str, ...], exclude: tuple[str, ...], selection: Selection
) -> Iterator[SourceFile]:
    if source == STDLIB:
        folder = Path(sysconfig.get_path("stdlib"))
        if not folder.is_dir():
            raise SourceUnreadable(f"STDLIB: this Python has no library folder at {folder}; name a folder of text")
        yield from _walk(folder, STDLIB, include, exclude + STDLIB_EXCLUDED, selection, lenient=True)
        return
    path = Path(source)
    if path.is_dir():
        yield from _walk(path, _label(source), include, exclude, selection)
    elif path.exists():
        yield from _single(path, _label(source), include, exclude)
    elif glob.has_magic(source):
        yield from _glob(source, include, exclude, selection)
    else:
        raise SourceUnreadable(f"{source}: no such file or folder")


def _label(source: str) -> str:
    """The path as typed when relative, without leading ./ and ../; the last name when absolute.

    So the same text gives the same order wherever the folder lies.
    """
    normal = os.path.normpath(source)
    if os.path.isabs(normal):
        return os.path.basename(normal)
    parts = [part for part in normal.split(os.sep) if part not in (".", "..")]
    return "/".join(parts)


def _join(label: str, path: str) -> str:
    return f"{label}/{path}" if label else path


def _chosen(path: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    wanted = included(path, include) if include else path.lower().endswith(TEXT_SUFFIXES)
    return wanted and not excluded(path, exclude)


def _walk(
    folder: Path,
    label: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    selection: Selection,
    *,
    lenient: bool = False,
) -> Iterator[SourceFile]:
    """Yield the chosen regular files below a folder, without recursion, so depth has no limit."""
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(folder / below if below else folder) as scan:
                entries = list(scan)
        except OSError as error:
            raise SourceUnreadable(f"{folder / below}: {error.strerror}") from None
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = _join(below, entry.name)
            if entry.is_symlink():
                selection.links_skipped += _chosen(path, include, exclude)
            elif entry.is_dir(follow_symlinks=False):
                if not excluded(path, exclude):
                    pending.append(path)
            elif entry.is_file(follow_symlinks=False) and _chosen(path, include, exclude):
                yield SourceFile(Path(entry.path), os.fsencode(_join(label, path)), lenient)


def _single(path: Path, label: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> Iterator[SourceFile]:
    if not stat.S_ISREG(path.stat().st_mode):
        raise SourceUnreadable(f"{path}: not a regular file")
    name = label.rpartition("/")[2]
    if (not include or included(name, include)) and not excluded(name, exclude):
        yield SourceFile(path, os.fsencode(label))


def _glob(
    pattern: str, include: tuple[str, ...], exclude: tuple[str, ...], selection: Selection
) -> Iterator[SourceFile]:
    """Yield what a pattern matches; links that lead out of its fixed leading folder are passed over."""
    fixed = Path(pattern)
    while glob.has_magic(str(fixed)):
        fixed = fixed.parent
    base = os.path.realpath(fixed)
    base_label = _label(str(fixed))
    matches = glob.glob(pattern, recursive=True)
    if not matches:
        raise SourceUnreadable(f"{pattern}: matches no file")
    for match in matches:
        path = Path(match)
        real = os.path.realpath(path)
        if os.path.commonpath([base, real]) != base:
            selection.links_skipped += 1
            continue
        label = _join(base_label, os.path.relpath(match, fixed).replace(os.sep, "/"))
        if path.is_dir():
            if not path.is_symlink():
                yield from _walk(path, label, include, exclude, selection)
        elif path.is_file():
            yield from _single(path, label, include, exclude)
