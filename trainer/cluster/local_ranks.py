"""Ranks as processes of one machine, which rank 0 starts and ends."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bitwitness.ledger.project import Project

from ..stop import Stop
from .channel import RankError
from .rank_start import Place, Terms, led, listening
from .ranks import Leader

_HOST = "127.0.0.1"
_PATIENCE = 10.0


@dataclass(frozen=True)
class LocalRanks:
    """`ranks` processes with together `threads` threads, of which this one is rank 0."""

    project: Project
    ranks: int
    threads: int
    windows_at_once: int
    timeout: float

    @property
    def here(self) -> int:
        return self.ranks

    def threads_of(self, rank: int) -> int:
        """Its part of the threads, one at least."""
        share, left = divmod(self.threads, self.ranks)
        return max(1, share + (rank < left))

    @contextlib.contextmanager
    def lead(self, terms: Terms, stop: Stop) -> Iterator[Leader]:
        """Start the other ranks and be rank 0. None outlives the block. Raises RankError."""
        with listening(_HOST, 0) as listener:
            port = listener.getsockname()[1]
            place = Place(0, self.ranks, _HOST, port, secrets.token_bytes(32), self.timeout)
            with self._processes(place) as processes:
                try:
                    with led(listener, place, terms, stop, lambda: _look(processes)) as leader:
                        yield leader
                except RankError as error:
                    if (killed := _killed(processes)) is not None:  # who died first is not always who is missed first
                        error.args = (f"{killed}; {error}",)
                    raise

    @contextlib.contextmanager
    def _processes(self, place: Place) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
        processes: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for rank in range(1, self.ranks):
                processes[rank] = process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "bitwitness.trainer.cluster.rank_work"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for rank 0, which finishes the step with the others
                )
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(self._line(place, rank))
                    process.stdin.flush()
            yield processes
            with contextlib.suppress(subprocess.TimeoutExpired):
                _wait(processes)  # they were told that it is over
        finally:
            for process in processes.values():
                if process.stdin is not None:
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                _wait(processes)
            for process in processes.values():
                process.kill()
                process.wait()

    def _line(self, place: Place, rank: int) -> bytes:
        said = {
            "host": place.host,
            "port": place.port,
            "project": str(self.project.root),
            "rank": rank,
            "ranks": self.ranks,
            "secret": base64.b64encode(place.secret).decode(),
            "threads": self.threads_of(rank),
            "timeout": self.timeout,
            "windows_at_once": self.windows_at_once,
        }
        return json.dumps(said).encode() + b"\n"


def _wait(processes: dict[int, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.wait(_PATIENCE)


def _look(processes: dict[int, subprocess.Popen[bytes]]) -> None:
    """Raise RankError for a process that is gone before it came."""
    for rank, process in processes.items():
        if process.poll():
            raise _killed(processes) or RankError(
                rank, f"ended before it began: its exit status is {process.returncode}"
            )


def _killed(processes: dict[int, subprocess.Popen[bytes]]) -> RankError | None:
    for rank, process in processes.items():
        if (process.poll() or 0) < 0:
            return RankError(rank, f"was ended by {signal.Signals(-process.returncode).name}")
    return None
