"""SIGINT and SIGTERM while a run is trained: asked for once, answered between two steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Set by the first SIGINT or SIGTERM: the step in hand is finished, signed and stored."""

    number: int | None = None

    @property
    def asked(self) -> bool:
        return self.number is not None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Take both signals for the time being. A second SIGINT is a KeyboardInterrupt."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.number = stop.number or number

    try:
        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs the thread decides when it stops
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
