"""The commitment to the code that runs, `code/1` (docs/formats/commitments.md).

Compiled sources are those of the build, from the manifest that the build embeds: the sources beside an installed
wheel may be gone, and those of a checkout may have been edited since. Python files and the pages' templates are
hashed as they stand on disk, because that is what runs.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping
from pathlib import Path

from . import _embed_code
from .commitments import Commitment, file_leaf, tree
from .errors import BitwitnessError

MANIFEST = "_code.json"
_READ_WHEN_RUN = (".py", ".css", ".html", ".js", ".svg")


class CodeError(BitwitnessError):
    """The code manifest is missing or damaged."""


@functools.cache
def code_commitment() -> Commitment:
    """The `code/1` commitment of this installation: one leaf per file, in byte order of the paths."""
    return commit(code_files())


def code_files() -> dict[str, str]:
    """POSIX path -> hex SHA-256 of every source file, as the commitment counts them. Raises CodeError."""
    files = {path: digest for path, digest in read_manifest().items() if not path.endswith(_READ_WHEN_RUN)}
    for path, file in _embed_code.source_files(Path(__file__).resolve().parent.parent):
        if path.endswith(_READ_WHEN_RUN):
            files[path] = _embed_code.sha256(file)
    return files


def commit(files: Mapping[str, str]) -> Commitment:
    """The `code/1` commitment of {path: hex SHA-256}."""
    ordered = sorted(files.items(), key=lambda item: item[0].encode("utf-8"))
    return tree("code/1", (file_leaf(path, digest) for path, digest in ordered))


def read_manifest(path: Path | None = None) -> dict[str, str]:
    """The manifest that the build embedded, or the one at `path`. Raises CodeError."""
    file = path or _find_manifest()
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        return {str(row["path"]): str(row["sha256"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CodeError(f"{file}: the code manifest is damaged; install bitwitness again") from None


def _find_manifest() -> Path:
    # An editable install keeps built files apart from the sources, under another part of the namespace.
    for folder in importlib.import_module("bitwitness").__path__:
        file = Path(folder) / "ledger" / MANIFEST
        if file.is_file():
            return file
    raise CodeError("the code manifest is missing; install bitwitness with pip instead of running its folder")
