"""Where a user's file is run: what it prints is no result, and what it sets, starts or ends is not this program's.

A command's stdout holds its result and nothing else, so that what a file prints goes where notes go, by whatever way:
`print`, the descriptor itself, or a program that it starts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, NoReturn

OWN = "bitwitness_own_model"
"""The user's file in sys.modules, while it runs."""


@contextmanager
def apart() -> Iterator[None]:
    """Inside, the user's file may run. Afterwards torch, the current folder and stdout are what they were."""
    import torch

    dtype, folder = torch.get_default_dtype(), os.getcwd()
    try:
        with redirect_stdout(sys.stderr), _descriptor_to_notes(), _staying(), _threads_that_end():
            yield
    finally:
        sys.modules.pop(OWN, None)
        os.chdir(folder)
        torch.set_default_dtype(dtype)
        torch.set_flush_denormal(False)  # of this thread, which rounds the scalars of every step


@contextmanager
def _descriptor_to_notes() -> Iterator[None]:
    """What is written to descriptor 1, here or by programs that are started here, goes to stderr."""
    real = sys.__stdout__
    if real is not None and not real.closed:
        real.flush()
    try:
        kept = os.dup(1)
    except OSError:  # closed: whatever the user's file opens may be it
        yield
        return
    try:
        os.dup2(2, 1)
    except OSError:
        os.close(kept)
        yield
        return
    try:
        yield
    finally:
        if real is not None and not real.closed:
            with suppress(OSError):
                real.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _staying() -> Iterator[None]:
    """os._exit would end the command without a word; of a process that the file forks it is the way to end."""
    leave, process = os._exit, os.getpid()

    def leaving(status: int) -> NoReturn:
        if os.getpid() == process:
            raise SystemExit(status)
        leave(status)

    os._exit = leaving
    try:
        yield
    finally:
        os._exit = leave


@contextmanager
def _threads_that_end() -> Iterator[None]:
    """A thread that the file starts and leaves running must not keep the command from ending."""
    kind: Any = threading.Thread
    start = kind.start

    def started(thread: threading.Thread) -> None:
        thread.daemon = True
        start(thread)

    kind.start = started
    try:
        yield
    finally:
        kind.start = start
