"""Options that commands which compute share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files.plain import plain

from ..run import MAX_THREADS

Threads = Annotated[
    int | None, typer.Option(min=1, max=MAX_THREADS, help="Worker threads; not in the bits. All cores if not given.")
]
AtOnce = Annotated[
    int,
    typer.Option("--windows-at-once", min=0, help="Windows computed at a time (memory, not bits); 0: a whole shard."),
]
RankTimeout = Annotated[
    float, typer.Option(min=1, max=86400, help="Seconds that a rank waits for another's part of a step.")
]


def _cpu(value: str) -> str:
    if value != "cpu":
        raise BitwitnessError(
            f"--device {plain(value)}: this version replays on the CPU, which gives the same bits on any machine; "
            "leave --device out"
        )
    return value


Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu.", callback=_cpu)]


def cores() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, MAX_THREADS)
