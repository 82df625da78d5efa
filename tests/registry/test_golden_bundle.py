"""A bundle that was once published verifies for ever.

--update-goldens leaves tests/golden/model-1 as it is; it is made anew only if it was removed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bitwitness.registry.checks import exit_code
from bitwitness.registry.policy import load_policy
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine

from . import project_fixture

GOLDEN = Path(__file__).parents[1] / "golden" / "model-1"


def test_a_bundle_of_version_1(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if request.config.getoption("--update-goldens") and not GOLDEN.exists():
        made = project_fixture.make(tmp_path / "project")
        folder = register(made.project, "golden", "small", license="Apache-2.0").path
        GOLDEN.mkdir(parents=True)
        shutil.copytree(folder, GOLDEN / "golden")
        shutil.copy(made.policy, GOLDEN / "trust.toml")
    checks = examine(GOLDEN / "golden", load_policy(GOLDEN / "trust.toml")).checks
    assert exit_code(checks) == 0, checks
