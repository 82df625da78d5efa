"""What docs/your-own-model.md shows is done here: its files are written, its commands typed, its refusal provoked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bitwitness.kernels import nn
from bitwitness.ledger.cli import main
from bitwitness.ledger.project import Project

from .conftest import make_project

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-model.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = make_project(tmp_path / "project", data="pystdlib")  # named as that of the README's first run
    monkeypatch.chdir(made.root)
    (source,) = blocks("python")
    (made.root / "my_model.py").write_text(source)
    (made.root / "own.toml").write_text(blocks("toml")[0])
    return made


def test_the_walk_through(project: Project) -> None:
    train, *later = (shlex.split(line)[1:] for line in re.findall(r"^    (ledger .*)$", PAGE, re.MULTILINE))
    assert main(train) == 0
    (project.root / "my_model.py").unlink()  # an auditor or a consumer has no use for it
    assert [(words[0], main(words)) for words in later] == [("audit", 0), ("model", 0), ("verify", 0)]


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
