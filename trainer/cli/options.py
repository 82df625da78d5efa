"""Options that commands which compute share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ..run import MAX_THREADS

Threads = Annotated[
    int | None, typer.Option(min=1, max=MAX_THREADS, help="Worker threads; not in the bits. All cores if not given.")
]
AtOnce = Annotated[
    int,
    typer.Option("--windows-at-once", min=0, help="Windows computed at a time (memory, not bits); 0: a whole shard."),
]


def cores() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, MAX_THREADS)
