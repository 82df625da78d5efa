"""One small thread pool for hashing; hashlib releases the GIL, so threads really share out large buffers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MAX_THREADS = 4
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def submit(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run `function` on the pool, which is made on first use: importing starts no threads."""
    global _pool
    with _lock:
        if _pool is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            _pool = ThreadPoolExecutor(max(1, min(_MAX_THREADS, cores)), thread_name_prefix="bitwitness-hash")
        return _pool.submit(function, *args, **kwargs)


def _forget() -> None:
    """A forked child has the object but none of its threads, and perhaps a held lock."""
    global _pool, _lock
    _pool = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
