"""Faults at system calls: a forked child does something, and strace kills it, or refuses it a call, at the n-th one.

Only what the child does after it was forked is counted: nothing of the interpreter's start.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bitwitness.ledger.errors import BitwitnessError

WRITING = (
    *("write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync", "msync", "sync_file_range"),
    *(
        "ftruncate",
        "truncate",
        "fallocate",
        "openat",
        "open",
        "creat",
        "mkdir",
        "mkdirat",
        "unlink",
        "unlinkat",
        "rmdir",
    ),
    *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "sendfile", "copy_file_range"),
    *("chmod", "fchmod", "fchmodat", "chown", "fchown", "fchownat", "utimensat"),
)
"""What changes a file, its name or its mode, or waits until that is on the disk. Opening may create."""
READING = {
    *(
        "read",
        "pread64",
        "preadv",
        "preadv2",
        "readv",
        "lseek",
        "close",
        "fstat",
        "stat",
        "lstat",
        "newfstatat",
        "statx",
    ),
    *("access", "faccessat", "faccessat2", "readlink", "readlinkat", "getdents64", "getcwd", "getxattr", "listxattr"),
    *("fcntl", "flock", "ioctl", "dup", "dup2", "dup3", "poll", "ppoll", "select", "pselect6", "pipe2", "fadvise64"),
    *("statfs", "fstatfs", "mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "mincore", "membarrier"),
    *("futex", "set_robust_list", "rseq", "prctl", "sched_yield", "sched_getaffinity", "clock_gettime", "gettimeofday"),
    *("clock_nanosleep", "nanosleep", "times", "getrusage", "sysinfo", "uname", "prlimit64", "getrandom", "umask"),
    *("getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "rt_sigaction", "rt_sigprocmask"),
    *("rt_sigreturn", "sigaltstack", "restart_syscall", "exit", "exit_group"),
}
RENAMING = ("rename", "renameat", "renameat2")
_PTRACER, _ANYBODY = 0x59616D61, ctypes.c_ulong(-1)


@dataclass(frozen=True)
class Outcome:
    """How the child ended, and what it said. `code` is 0, 1 for an error of the package, -9 if it was killed."""

    code: int
    said: str
    error: str


def run(act: Callable[[], None], *options: str) -> Outcome:
    """Do something in a child that strace follows with these options."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as error:
        waiting, go = os.pipe()
        child = os.fork()
        if child == 0:
            _be_the_child(act, waiting, said.fileno(), error.fileno())
        strace = subprocess.Popen(
            ["strace", "-f", *options, "-p", str(child)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert strace.stderr is not None
        first = strace.stderr.readline()
        os.write(go, b"!")
        _pid, status = os.waitpid(child, 0)
        os.close(go), os.close(waiting)
        rest = strace.communicate(timeout=20)[1]
        if "attached" not in first:
            pytest.skip(f"strace may not trace processes here: {first}{rest}")
        said.seek(0), error.seek(0)
        return Outcome(os.waitstatus_to_exitcode(status), said.read().decode(), error.read().decode())


def _be_the_child(act: Callable[[], None], waiting: int, said: int, error: int) -> None:
    code = 3
    try:
        os.dup2(said, 1), os.dup2(error, 2)
        ctypes.CDLL(None).prctl(_PTRACER, _ANYBODY, 0, 0, 0)  # where only a parent may trace (Yama)
        os.read(waiting, 1)
        act()
        code = 0
    except BitwitnessError as known:
        os.write(2, str(known).encode())
        code = 1
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def calls(act: Callable[[], None], trace: Path) -> Counter[str]:
    """How often each system call is made when nothing goes wrong. Each is known to write, or not to."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian: apt-get install strace)")
    done = run(act, "-o", str(trace))
    assert done.code == 0 and done.said.endswith("closed\n"), done
    found = Counter(re.findall(r"^(?:\d+ +)?(\w+)\(", trace.read_text(), re.MULTILINE))
    assert found.keys() <= {*WRITING, *READING}, f"unknown system calls: {sorted(found.keys() - {*WRITING, *READING})}"
    return Counter({call: number for call, number in found.items() if call in WRITING})


def inject(act: Callable[[], None], fault: str, call: str, number: int) -> Outcome:
    """`fault` is signal=KILL or error=EIO; at the `number`-th call of that name."""
    return run(act, "-o", os.devnull, "-e", f"inject={call}:{fault}:when={number}")


_WRITE = re.compile(r"(?:pwrite64|write|writev|pwritev|ftruncate)\(\d+<([^>]+)>")
_SYNC = re.compile(r"(?:fsync|fdatasync)\(\d+<([^>]+)>")
_NAME = re.compile(r"(?:rename|renameat|renameat2)\(.*\"([^\"]+)\"(?:, \w+)?\) = 0")
_SAID = re.compile(r"write\(1<[^>]*>(?:\(deleted\))?, \"([a-z]+ \d+)")


def unsynced(act: Callable[[], None], trace: Path, folder: Path) -> dict[str, set[str]]:
    """What was said, and the files below the folder that were then written or renamed, but not yet synced.

    Not counted is what holds no data: shared memory, and the lock file.
    """
    done = run(act, "-y", "-s", "64", "-o", str(trace))
    assert done.code == 0, done
    said: dict[str, set[str]] = {}
    waiting: set[str] = set()
    for line in trace.read_text().splitlines():
        if found := _SAID.search(line):
            said[found[1]] = set(waiting)
        elif (found := _WRITE.search(line)) and found[1].startswith(str(folder)):
            if not found[1].endswith(("-shm", ".lock")):
                waiting.add(found[1])
        elif found := _SYNC.search(line):
            waiting.discard(found[1])
        elif found := _NAME.search(line):
            waiting.add(str(Path(found[1]).parent))
    return said
