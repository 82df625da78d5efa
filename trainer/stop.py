"""SIGINT and SIGTERM while a run is trained: asked for once, answered between two steps, or at once by who waits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bitwitness.ledger.errors import Stopped


class Stop:
    """Set by the first SIGINT or SIGTERM: the step in hand is finished, signed and stored."""

    number: int | None = None
    _waiting: str | None = None

    @property
    def asked(self) -> bool:
        return self.number is not None

    @contextmanager
    def at_once(self, waiting: str) -> Iterator[None]:
        """While this block waits for others, a signal raises Stopped with this message; so does one from before."""
        self._waiting = waiting
        try:
            if self.number is not None:
                raise Stopped(waiting, self.number)
            yield
        finally:
            self._waiting = None

    def take(self, number: int) -> None:
        """What a signal does. A second SIGINT is a KeyboardInterrupt."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        first, self.number = not self.asked, self.number or number
        if first and self._waiting is not None:
            raise Stopped(self._waiting, number)


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Take both signals for the time being."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.take(number)

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
