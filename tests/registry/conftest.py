"""A registered model, made once and copied for every test that changes it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from bitwitness.ledger.project import Project
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.policy import load_policy
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine

from . import project_fixture, trained


@dataclass(frozen=True)
class Registered:
    """A project with model `demo-lm`, version 1."""

    project: Project
    run: str

    @property
    def policy(self) -> Path:
        return self.project.trust_path

    @property
    def folder(self) -> Path:
        return self.project.models_dir / "demo-lm" / "1"

    def verdict(self) -> dict[str, Check]:
        """All checks by name."""
        return {check.name: check for check in examine(self.folder, load_policy(self.policy)).checks}

    def refused(self, name: str) -> str:
        """The reason of check ``name``, which must have found something wrong."""
        checks = self.verdict()
        assert checks[name].ok is False, checks[name]
        assert exit_code(checks.values()) == 1
        assert "\n" not in checks[name].detail
        return checks[name].detail


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("registered") / "project"
    made = project_fixture.make(folder)
    register(made.project, "demo-lm", "small", license="Apache-2.0")
    return folder, made.run


@pytest.fixture
def registered(_template: tuple[Path, str], tmp_path: Path) -> Registered:
    """A fresh copy of a project with one registered model."""
    folder, run = _template
    shutil.copytree(folder, tmp_path / "project")
    return Registered(Project.find(tmp_path / "project"), run)


@pytest.fixture(scope="session")
def _trained_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "project"
    trained.make(folder)
    return folder


@pytest.fixture
def tiny(_trained_template: Path, tmp_path: Path) -> Project:
    """A fresh copy of a project with a trained run and the model `tiny-lm`."""
    shutil.copytree(_trained_template, tmp_path / "tiny")
    return Project.find(tmp_path / "tiny")
