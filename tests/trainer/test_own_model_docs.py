"""What docs/your-own-model.md shows is done here: its files are written, its commands typed, its refusal provoked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from bitwitness.kernels import nn
from bitwitness.ledger.cli import main
from bitwitness.ledger.project import Project
from bitwitness.registry import load_verified

from .conftest import make_project

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-model.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = make_project(tmp_path / "project", data="pystdlib")  # named as that of the README's first run
    monkeypatch.chdir(made.root)
    source, _ = blocks("python")
    (made.root / "my_model.py").write_text(source)
    (made.root / "own.toml").write_text(blocks("toml")[0])
    return made


def test_the_walk_through(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, *later = (shlex.split(line)[1:] for line in re.findall(r"^    (ledger .*)$", PAGE, re.MULTILINE))
    assert main(train) == 0
    source = (project.root / "my_model.py").read_text()
    (project.root / "my_model.py").unlink()  # an auditor has no use for it
    said: dict[str, str] = {}
    for words in later:
        assert main(words) == 0, words
        said[words[0]] = capsys.readouterr().out
    assert said["verify"].rstrip().endswith("verified") and "1 auditor" in said["coverage"]
    shown = blocks("console")[0]
    for line in (
        "  first difference: operator ",
        "    module    blocks.",
        "  the referee says: auditor right",
        "1 of 1 faults",
    ):
        assert line in said["drill"] and line in shown
    (project.root / "my_model.py").write_text(source)
    monkeypatch.syspath_prepend(project.root)
    scope: dict[str, Any] = {}
    exec(blocks("python")[1], scope)
    assert torch.equal(scope["model"].head.weight, load_verified("own-out", "trust.toml")["tokens.weight"])


def test_the_long_form(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = blocks("toml")
    (project.root / "own.toml").write_text(short.replace('model = "my_model.py:MyModel"\n', "") + "\n" + long)
    assert main(["train", "own.toml"]) == 0
    result, run, weights = capsys.readouterr().out.splitlines()
    assert result.startswith("own completed at step 4, loss ")
    assert run.startswith("run ") and weights.startswith("weights ")


def test_the_refusal(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    source = project.root / "my_model.py"
    source.write_text(source.read_text().replace("return self.head(self.norm(x))", "return self.head(torch.sin(x))"))
    assert main(["train", "own.toml"]) == 2
    (shown,) = blocks("text")
    assert capsys.readouterr().err.strip().replace(str(project.root) + "/", "") == " ".join(shown.split())


def test_every_module_is_named() -> None:
    modules = {
        name for name in nn.__all__ if isinstance(getattr(nn, name), type) and hasattr(getattr(nn, name), "forward")
    }
    assert modules == {name for name in re.findall(r"`(\w+)`", PAGE) if name in nn.__all__}
