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
    compiler: str  # or cmake, which chooses one, and compiles every instruction set of this machine into one program
    flags: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()  # what executes it where this machine cannot
    needs: str = ""  # a flag of /proc/cpuinfo that it must have
    isa: str = ""  # BITWITNESS_ISA
    threads: tuple[int, ...] = (1, 2, 3)


SANITIZED = "gcc -O1, generic, sanitized"
BUILDS: Mapping[str, Build] = MappingProxyType(
    {
        "cmake, AVX-512": Build("cmake", needs="avx512_vnni", isa="avx512"),
        "cmake, AVX2": Build("cmake", needs="fma", isa="avx2"),
        "cmake, generic": Build("cmake", isa="generic"),
        SANITIZED: Build("g++", ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")),
        "clang -O3, AVX2": Build("clang++", ("-O3", "-mavx2", "-mfma"), needs="fma"),
        "clang -O1, generic": Build("clang++", ("-O1",)),
        "gcc -O1, AVX2": Build("g++", ("-O1", "-mavx2", "-mfma"), needs="fma", threads=(2,)),
        "aarch64 gcc -O1": Build("aarch64-linux-gnu-g++", ("-O1", "-static"), ("qemu-aarch64",), threads=(2,)),
        "aarch64 gcc -O3": Build("aarch64-linux-gnu-g++", ("-O3", "-static"), ("qemu-aarch64",)),
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
    sha = hashlib.sha256(repr((build.compiler, build.flags)).encode())
    for path in sorted([*CSRC.rglob("*"), *REFEREE.rglob("*")]):
        if path.is_file():
            sha.update(path.read_bytes())
    folder = ROOT / "build" / "referee-tests" / sha.hexdigest()[:16]
    program = folder / "referee"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "unfinished"
    if build.compiler == "cmake":
        run("cmake", "-S", REFEREE, "-B", folder / "cmake")
        run("cmake", "--build", folder / "cmake", "--parallel", "2")
        (folder / "cmake" / "referee").rename(unfinished)
    else:
        sources = [CSRC / f"{name}.cpp" for name in ENGINE] + [*CSRC.glob("ops/*.cpp"), *REFEREE.glob("*.cpp")]
        run(build.compiler, *build.flags, f"@{REFEREE / 'flags'}", *sources, "-o", unfinished)
    unfinished.rename(program)
    return program


def run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
