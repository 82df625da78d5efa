"""Who connects and has not said yet who it is: looked at, all at once, and waited for by nobody.

A rank says who it is as soon as it is connected. A port is open to others, too: what is silent, slow or no rank at all
must not keep the ranks from coming.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .channel import Channel, RankError, greeted

LOOK = 0.1
"""Seconds between two looks at what else there is, where nobody comes."""
_PATIENCE, _HURRY = 10.0, 1.0
_MOST = 256
_FIRST_LIMIT = 4096
_PAUSE = 0.01


@dataclass
class _Stranger:
    sock: socket.socket
    host: str
    since: float
    channel: Channel | None = None


class Arrivals:
    """The connections that a listener takes, until each has said who it is. Closes those that have not."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self._listener, self._secret = listener, secret
        self._strangers: list[_Stranger] = []
        self.turned_away = ""
        """The host that was turned away last, and why."""

    def __enter__(self) -> Arrivals:
        self._listener.setblocking(False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for stranger in self._strangers:
            stranger.sock.close()

    def look(self) -> Iterator[tuple[Channel, dict[str, Any], str]]:
        """Who has said by now who it is: its connection, what it said, and its host. Waits for LOOK seconds at most.

        Each of them has the secret. Whatever else there is, is turned away and ends no one's waiting.
        """
        full = len(self._strangers) >= _MOST
        waiting = self._wait(full)
        new = self._accept()
        came = []
        for stranger in list(self._strangers):
            try:
                said = self._hear(stranger)
                late = time.monotonic() - stranger.since > (_HURRY if full else _PATIENCE)
                if said is None and late:
                    raise RankError(None, "has not said who it is")
            except RankError as error:
                self.turned_away = f"{stranger.host} was turned away: {error}"
                stranger.sock.close()
                self._strangers.remove(stranger)
                continue
            if said is not None and stranger.channel is not None:
                self._strangers.remove(stranger)
                came.append((stranger.channel, said, stranger.host))
        if waiting and not came and not new:
            time.sleep(_PAUSE)  # half a message is there, and stays there until it is whole
        yield from came

    def _wait(self, full: bool) -> bool:
        """Until something comes; whether something did."""
        with selectors.DefaultSelector() as selector:
            if not full:
                selector.register(self._listener, selectors.EVENT_READ)
            for stranger in self._strangers:
                selector.register(stranger.sock, selectors.EVENT_READ)
            return bool(selector.select(LOOK))

    def _accept(self) -> bool:
        before = len(self._strangers)
        with suppress(BlockingIOError, ConnectionError):
            while len(self._strangers) < _MOST:
                sock, (host, *_) = self._listener.accept()
                self._strangers.append(_Stranger(sock, str(host), time.monotonic()))
        return len(self._strangers) > before

    def _hear(self, stranger: _Stranger) -> dict[str, Any] | None:
        if stranger.channel is None and greeted(stranger.sock):
            stranger.channel = Channel(stranger.sock, self._secret, timeout=_HURRY)
        if stranger.channel is None or not stranger.channel.has_message(_FIRST_LIMIT):
            return None
        return stranger.channel.hear()
