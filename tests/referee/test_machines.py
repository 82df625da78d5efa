"""The same bits on every machine: one golden file for all compilers, instruction sets and thread counts.

Twenty-four consecutive steps in each precision, since some errors show late (a libm pow of another system showed at
step 15), and every operator with a sum of 50,304 terms, where errors of order grow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitwitness.kernels.tracing import trace, trace_file

from .builds import BUILDS
from .conftest import Referee


@pytest.fixture(scope="session")
def native(steps_file: Path, bfp_file: Path, operators_file: Path) -> dict[Path, trace.Trace]:
    """What the library's own executor makes of the files."""
    return {path: trace.run(trace_file.read(path), 2) for path in (steps_file, bfp_file, operators_file)}


def operator_digests(leaves: Any) -> dict[str, str]:
    return {f"{leaf['run']:02d} {leaf['op']} {leaf['operand']}": leaf["digest"] for leaf in leaves if "op" in leaf}


def roots(commitments: Any) -> dict[str, str]:
    return {label: found["root"] for label, found in commitments.items()}


def test_native_meets_the_golden_digests(
    golden: Any, native: dict[Path, trace.Trace], steps_file: Path, bfp_file: Path, operators_file: Path
) -> None:
    expected = golden("referee-1.json")
    assert len(roots(native[steps_file].committed)) == 48
    expected.check("steps", roots(native[steps_file].committed))
    expected.check("steps bfp", roots(native[bfp_file].committed))
    expected.check("operators", operator_digests(native[operators_file].leaves))


@pytest.mark.parametrize(("build", "threads"), [(name, n) for name, build in BUILDS.items() for n in build.threads])
def test_referee_meets_the_golden_digests(
    golden: Any,
    native: dict[Path, trace.Trace],
    referee: Referee,
    steps_file: Path,
    bfp_file: Path,
    operators_file: Path,
    build: str,
    threads: int,
) -> None:
    expected = golden("referee-1.json").values
    for path, name in ((steps_file, "steps"), (bfp_file, "steps bfp")):
        verdict = referee(path, "--trace", "--threads", str(threads), build=build)
        assert (verdict.status, verdict.error) == (0, "")
        assert {c["label"]: c["root"] for c in verdict.facts["commitment"]} == expected[name]
        assert {c["verdict"] for c in verdict.facts["commitment"]} == {"as-expected"}
        assert verdict.one("trace") == {"size": native[path].size, "root": native[path].root}
    if threads == 2 or BUILDS[build].compiler == "cmake":  # the long sums at each count on the build that is installed
        verdict = referee(operators_file, "--outputs", "--threads", str(threads), build=build)
        assert operator_digests(verdict.facts["output"]) == expected["operators"]
        assert verdict.one("trace") == {"size": native[operators_file].size, "root": native[operators_file].root}
