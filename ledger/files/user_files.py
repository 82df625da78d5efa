"""Files that a person names: read with a limit, written whole, failures in one line."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import BitwitnessError
from . import durable
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


def write_file(path: Path, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, whole or not at all: whoever reads what was there meanwhile reads that.

    The file that a link leads to is written, and keeps its mode; a device or pipe is written into. Raises
    BitwitnessError.
    """
    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        real = Path(os.path.realpath(path))
        there = real.stat().st_mode if real.exists() else None
        if there is not None and not stat.S_ISREG(there):
            real.write_bytes(data)
        elif os.access(real.parent, os.W_OK):
            durable.replace(real, data)
            if there is not None:
                real.chmod(stat.S_IMODE(there))
        else:  # a file that may be written in a folder that may not
            real.write_bytes(data)
    except (OSError, ValueError) as error:  # the latter: a zero byte in the path
        raise BitwitnessError(f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None
