"""Files that a person names: read with a limit, failures in one line."""

from __future__ import annotations

from pathlib import Path

from .errors import BitwitnessError
from .regular_file import open_regular


def read_file(path: Path, limit: int) -> bytes:
    """The file's bytes, at most `limit`. Raises BitwitnessError."""
    try:
        with open_regular(path) as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # the latter: a zero byte in the path
        raise BitwitnessError(f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None
    if len(data) > limit:
        raise BitwitnessError(f"{path}: larger than {limit} bytes")
    return data


def write_file(path: Path, text: str) -> None:
    """Write text with newlines as they are. Raises BitwitnessError."""
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BitwitnessError(f"{path}: {(error.strerror or str(error)).lower()}") from None
