"""Trace files that all tests of this folder share, and the referee in each of its builds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bitwitness.kernels.tracing import trace_file

from . import files
from .builds import BUILDS, compile_referee, missing


@dataclass(frozen=True)
class Verdict:
    """What the referee said: exit status, facts by kind in order, and its error line."""

    status: int
    facts: dict[str, list[dict[str, Any]]]
    error: str

    def one(self, kind: str) -> dict[str, Any]:
        (fact,) = self.facts[kind]
        return fact


Referee = Callable[..., Verdict]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that asks for the referee waits until it is compiled."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def programs() -> dict[str, Future[Path]]:
    """Every build that this machine can make, under way on two processors."""
    pool = ThreadPoolExecutor(2)
    under_way: dict[object, Future[Path]] = {}
    found = {}
    for name, build in BUILDS.items():
        if not missing(build):
            recipe = (build.compiler, build.flags)
            found[name] = under_way[recipe] = under_way.get(recipe) or pool.submit(compile_referee, build)
    return found


@pytest.fixture(scope="session")
def referee(programs: dict[str, Future[Path]]) -> Referee:
    """referee(file, *options, build=NAME, timeout=s) -> Verdict; skips where the build cannot be made here."""

    def call(file: Path, *options: str, build: str = "cmake, generic", timeout: float = 300) -> Verdict:
        if build not in programs:
            pytest.skip(missing(BUILDS[build]))
        command = [*BUILDS[build].runner, str(programs[build].result()), "--json", *options, str(file)]
        environment = {**os.environ, "BITWITNESS_ISA": BUILDS[build].isa}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=timeout)
        facts: dict[str, list[dict[str, Any]]] = {}
        for line in done.stdout.splitlines():
            fact = json.loads(line)
            facts.setdefault(fact.pop("fact"), []).append(fact)
        return Verdict(done.returncode, facts, done.stderr)

    return call


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="session")
def steps_file(folder: Path) -> Path:
    """Twenty-four consecutive training steps, and the roots that training found after each."""
    trace_file.write(folder / "steps.safetensors", files.steps(24))
    return folder / "steps.safetensors"


@pytest.fixture(scope="session")
def bfp_file(folder: Path) -> Path:
    """The same in block fixed point."""
    trace_file.write(folder / "steps-bfp.safetensors", files.steps(24, "bfp"))
    return folder / "steps-bfp.safetensors"


@pytest.fixture(scope="session")
def operators_file(folder: Path) -> Path:
    """Every operator, once long and once awkward."""
    trace_file.write(folder / "operators.safetensors", files.operators())
    return folder / "operators.safetensors"
