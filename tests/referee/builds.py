"""The referee, compiled as other machines would have it: other compilers, optimisation levels, instruction sets.

Each is one command, the one that docs/formats/trace.md gives. What was built is kept under build/referee-tests by the
digest of sources and command, so that only a change compiles again.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "kernels" / "csrc"
REFEREE = ROOT / "kernels" / "referee"
ENGINE = ("digest", "executor", "library", "signature", "thread_pool")


@dataclass(frozen=True)
class Build:
    compiler: str
    flags: tuple[str, ...]
    runner: tuple[str, ...] = ()  # what executes it where this machine cannot
    needs: str = ""  # a flag of /proc/cpuinfo that it must have


SANITIZED = "gcc -O1, generic, sanitized"
BUILDS: Mapping[str, Build] = MappingProxyType(
    {
        "gcc -O3, AVX2": Build("g++", ("-O3", "-mavx2", "-mfma"), needs="fma"),
        "gcc -O3, generic": Build("g++", ("-O3",)),
        SANITIZED: Build("g++", ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")),
        "clang -O3, AVX2": Build("clang++", ("-O3", "-mavx2", "-mfma"), needs="fma"),
        "clang -O1, generic": Build("clang++", ("-O1",)),
        "aarch64 gcc -O3": Build("aarch64-linux-gnu-g++", ("-O3", "-static"), ("qemu-aarch64",)),
        "aarch64 gcc -O1": Build("aarch64-linux-gnu-g++", ("-O1", "-static"), ("qemu-aarch64",)),
    }
)


def missing(build: Build) -> str:
    """What this machine lacks to compile and run it; empty where nothing."""
    for program in (build.compiler, *build.runner):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: clang, g++-aarch64-linux-gnu, qemu-user)"
    if not REFEREE.is_dir():
        return "the C++ sources are not here"
    cpu = Path("/proc/cpuinfo")
    if build.needs and (
        not cpu.exists() or build.needs not in cpu.read_text(encoding="ascii", errors="replace").split()
    ):
        return f"this processor has no {build.needs}"
    return ""


def compile_referee(build: Build) -> Path:
    """The program, compiled unless it is there already. Raises CalledProcessError where it does not compile."""
    sources = [CSRC / f"{name}.cpp" for name in ENGINE] + sorted(CSRC.glob("ops/*.cpp")) + sorted(REFEREE.glob("*.cpp"))
    command = [build.compiler, *build.flags, f"@{REFEREE / 'flags'}", *map(str, sources)]
    sha = hashlib.sha256(repr((build.compiler, build.flags)).encode())
    for path in [REFEREE / "flags", *sources, *sorted(CSRC.rglob("*.h")), *sorted(REFEREE.glob("*.h"))]:
        sha.update(path.read_bytes())
    program = ROOT / "build" / "referee-tests" / sha.hexdigest()[:16] / "referee"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(".unfinished")
        subprocess.run([*command, "-o", str(unfinished)], check=True, capture_output=True, text=True)
        unfinished.rename(program)
    return program
