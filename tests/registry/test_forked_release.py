"""The release of a run that goes on from another one: its proof shows the line, and holds to it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.cli import main
from bitwitness.ledger.project import Project
from bitwitness.registry import bundle, derive
from bitwitness.registry.register import register
from bitwitness.trainer.audit import audit
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.run import train

from .trained import TABLE


@pytest.fixture(scope="module")
def folder(_trained_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of a run `child` that goes on from step 2 of `tiny`, and is released as `child-lm`."""
    root = tmp_path_factory.mktemp("forked") / "project"
    shutil.copytree(_trained_template, root)
    project = Project.find(root)
    for name, begun in (("middle", "tiny@2"), ("child", "middle@4")):
        table = {**TABLE, "run": {**TABLE["run"], "name": name, "from": begun, "steps": 6}}
        train(project, parse_config(table, where="test"), threads=1)
    audit(project, "child", samples=9, threads=1)
    register(project, "child-lm", "child")
    return project.root


def verify(model: Path, root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["verify", str(model), "--policy", str(root / "trust.toml"), "--json", *arguments])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_the_proof_shows_the_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, checks = verify(folder / "models" / "child-lm" / "1", folder, capsys)
    assert code == 0, [check for check in checks.values() if not check["ok"]]
    assert checks["origin"]["detail"].startswith("the run began from a parent")
    said = checks["release"]["detail"]
    assert "step 6 of run child" in said
    assert said.index("goes on from step 4 of run middle") < said.index("goes on from step 2 of run tiny")
    assert "replayed 2 of 2 steps: match" in checks["audit"]["detail"]
    monkeypatch.chdir(folder)
    assert main(["model", "show", "child-lm/1"]) == 0
    shown = capsys.readouterr().out
    assert "parent: run middle" in shown and "at step 2, began: seeded" in shown


def test_a_merge_of_a_run_and_one_that_it_goes_back_to(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tiny` is both a source and where the other source began: its state there lies on its own line."""
    shutil.copytree(folder, tmp_path / "project")
    project = Project.find(tmp_path / "project")
    made = derive.merge(project, [("tiny-lm/1", 0.5), ("child-lm/1", 0.5)], license="Apache-2.0")
    sources = [f"--source={project.models_dir / name / '1'}" for name in ("tiny-lm", "child-lm")]
    code, checks = verify(made.path, project.root, capsys, *sources)
    assert code == 0, [check for check in checks.values() if not check["ok"]]
    assert "run child" in checks["origin"]["detail"] and "run tiny" not in checks["origin"]["detail"]
    said = checks["release"]["detail"]
    assert (
        said.index("step 6 of run child") < said.index("goes on from step 4 of run middle") < said.index("; and from")
    )
    assert "; and from step 4 of run tiny" in said
    _change(made.path, lambda b: b.update(entries=_drop("state", 2)(b["entries"])))
    code, checks = verify(made.path, project.root, capsys, *sources)
    assert code == 1 and "begins with is not in the bundle" in checks["release"]["detail"]


def _change(model: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = model / bundle.FILE_NAME
    read = jcs.parse(path.read_bytes(), max_bytes=bundle.SIZE_LIMIT)
    change(read)
    path.write_bytes(jcs.encode(read))


def _drop(kind: str, step: int) -> Callable[[list[Any]], list[Any]]:
    def drop(entries: list[Any]) -> list[Any]:
        kept = []
        for item in entries:
            said = json.loads(base64.b64decode(item["entry"]["payload"]))
            predicate = said["predicate"]
            if f"/{kind}/" in said["predicateType"] and predicate["control"]["step"] == step:
                continue
            kept.append(item)
        assert len(kept) < len(entries)
        return kept

    return drop


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.update(entries=_drop("run", 0)(b["entries"])), "that .* goes on from is not in the bundle"),
        (lambda b: b.update(entries=_drop("state", 2)(b["entries"])), "begins with is not in the bundle"),
        (lambda b: b["history"].pop(0), "no proof that"),
    ],
)
def test_a_proof_without_its_line_is_refused(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    says: str,
) -> None:
    model = tmp_path / "1"
    shutil.copytree(folder / "models" / "child-lm" / "1", model)
    _change(model, change)
    code, checks = verify(model, folder, capsys)
    assert code == 1
    assert any(re.search(says, check["detail"]) for check in checks.values() if check["ok"] is False)
