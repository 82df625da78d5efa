"""The peak resident memory of this process. Not ru_maxrss: a process begins with its parent's (getrusage(2))."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """VmHWM of /proc/self/status (proc(5)), which belongs to the memory map that exec made."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM; peaks are measured on Linux")
