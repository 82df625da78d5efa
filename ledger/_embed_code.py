"""Writes the code manifest at build: python _embed_code.py SOURCE_ROOT OUTPUT.

CMake runs this before the package can be imported, so it uses the standard library only. The manifest lists
every source file of the four packages and of the build, as [{"path", "sha256"}] in byte order of the POSIX
paths.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("kernels", "ledger", "registry", "trainer")
BUILD_FILES = ("CMakeLists.txt", "pyproject.toml")
SUFFIXES = frozenset({".py", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".cmake", ".css", ".html", ".js", ".svg"})


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """(POSIX path below `root`, file) of every source file, in byte order; no caches, nothing hidden or
    built.
    """
    found = {name: root / name for name in BUILD_FILES if (root / name).is_file()}
    for package in PACKAGES:
        for file in (root / package).rglob("*"):
            path = file.relative_to(root)
            if any(part.startswith((".", "__pycache__")) for part in path.parts) or not file.is_file():
                continue
            if file.suffix in SUFFIXES or file.name == "CMakeLists.txt":
                found[path.as_posix()] = file
    yield from sorted(found.items(), key=lambda item: item[0].encode("utf-8"))


def sha256(file: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main(root: str, output: str) -> None:
    manifest = [{"path": path, "sha256": sha256(file)} for path, file in source_files(Path(root))]
    Path(output).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
