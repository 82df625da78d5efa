"""The referee, called: the standalone program that the wheel brings beside the compiled module.

    judge.judge(Path("dispute.safetensors"), threads=2).right        ["auditor"]

`make referee` builds the same program from kernels/referee and kernels/csrc, and any C++20 compiler does
(docs/formats/trace.md); whoever would not trust the one of the wheel names theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.kernels import _native
from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.tracing import trace_file
from bitwitness.kernels.tracing.trace_limits import Limits


class NoReferee(KernelError):
    """There is no referee program to run."""


@dataclass(frozen=True)
class Judgement:
    """What the referee said. `facts` are its lines in order, `status` its exit status."""

    status: int
    facts: tuple[Mapping[str, Any], ...]
    claims: Mapping[str, str]  # of the chunk in dispute: party -> hash

    @property
    def chunk(self) -> Mapping[str, Any] | None:
        """The chunk in dispute as it was computed again, None where the file disputes none."""
        return next((fact for fact in self.facts if fact["fact"] == "chunk"), None)

    @property
    def right(self) -> tuple[str, ...]:
        """The parties whose claim is what the referee computed."""
        return tuple(name for name, claim in self.claims.items() if self.chunk and claim == self.chunk["hash"])

    @property
    def wrong(self) -> tuple[str, ...]:
        return tuple(name for name in self.claims if name not in self.right)


def find_referee() -> Path:
    """The program beside the compiled module, else what `make referee` built. Raises NoReferee."""
    beside = Path(_native.__file__).with_name("bin") / "referee"
    built = Path(__file__).resolve().parents[2] / "build" / "referee" / "referee"
    for path in (beside, built):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise NoReferee(
        "the referee program is not here: `make referee` in the sources builds it (any C++20 compiler), "
        "`--program PATH` names one built elsewhere"
    )


def judge(file: Path, *, threads: int, program: Path | None = None, gib: int = 8, tera: int = 100) -> Judgement:
    """Have the referee execute a trace file that takes at most so many GiB of memory and 10^12 multiply-adds.

    Raises NoReferee, TraceFileError, TooMuch, KernelError where it could not.
    """
    claims: dict[str, str] = {}
    try:
        for action in trace_file.read(file, Limits.of(gib, tera, threads)).actions:
            claims |= action.get("claims", {})
    except OSError as error:
        raise KernelError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    command = [str(program or find_referee()), "--json", "--threads", str(threads)]
    command += ["--memory", str(gib), "--work", str(tera), str(file.absolute())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoReferee(f"{command[0]}: {(error.strerror or str(error)).lower()}") from None
    if done.returncode not in (0, 1):
        raise KernelError(done.stderr.strip() or f"the referee ended with status {done.returncode}")
    return Judgement(done.returncode, facts_of(done.stdout, command[0]), claims)


def facts_of(said: str, program: str) -> tuple[Mapping[str, Any], ...]:
    """What a program said, line by line. Raises KernelError where that is not what the referee says."""
    try:
        facts = tuple(json.loads(line) for line in said.splitlines())
    except (ValueError, RecursionError):
        facts = (None,)
    for fact in facts:
        if not isinstance(fact, dict) or not isinstance(fact.get("fact"), str):
            raise KernelError(f"{program} does not speak as the referee does: is it one?")
        if fact["fact"] == "chunk" and not isinstance(fact.get("hash"), str):
            raise KernelError(f"{program} names no hash of the chunk: is it the referee?")
    return facts
