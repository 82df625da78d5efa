"""One process at a time works in a folder: an operating-system lock, which goes with whoever holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import BitwitnessError


@contextmanager
def held(folder: Path, busy: BitwitnessError) -> Iterator[None]:
    """Hold a folder that is there. Raises `busy` at once where somebody else holds it, and OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield
    finally:
        os.close(descriptor)
