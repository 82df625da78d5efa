"""docs/gate.md and what it hands out do what they say: every command in them is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bitwitness.ledger.cli import main

from .conftest import Registered

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "gate.md").read_text(encoding="utf-8")


def _tools(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which `ledger` is this one, and `pip` writes down what it was asked."""
    folder.mkdir()
    start = "import sys; from bitwitness.ledger.cli import main; sys.exit(main())"
    for name, script in (("ledger", f"exec {sys.executable} -c '{start}' \"$@\""), ("pip", 'echo "$@" > pip.txt')):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **more}


def _run(script: str, cwd: Path, env: dict[str, str], shell: str = "bash") -> int:
    done = subprocess.run([shell, "-e", "-c", script], cwd=cwd, env=env, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode


def test_the_page(registered: Registered, tmp_path: Path) -> None:
    """Every block of shell, in order, in one project; and the Python."""
    commands = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    assert commands.count("ledger ") >= 9 and "ledger verify" not in commands + "".join(
        path.read_text(encoding="utf-8") for path in (DOCS / "gate").iterdir()
    )
    env = _tools(tmp_path / "bin")
    assert _run(commands, registered.project.root, env) == 0
    for name in ("seen.json", "status.json", "verdict.json", "verify.xml", "verify.sarif", "summary.json"):
        assert (registered.project.root / name).stat().st_size > 100, name
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    code += "assert same.keys() == tensors.keys() and len(tensors) > 3"
    subprocess.run([sys.executable, "-c", code], cwd=registered.project.root, env=env, check=True)
    toml = re.search(r"^    \[aliases\]\n    champion = .*$", PAGE, re.MULTILINE)
    assert toml is not None
    with registered.project.config.open("a") as file:
        file.write(re.sub("^    ", "", toml[0], flags=re.MULTILINE))
    assert _run("ledger model alias demo-lm/1 champion --json", registered.project.root, env) == 0


def _ledger_beside(registered: Registered, place: Path) -> None:
    """Something else of the same log that verifies."""
    shutil.copyfile(registered.project.ledger_path, place)
    assert main(["verify", str(place), "--policy", str(registered.policy)]) == 0


def test_the_first_command_passes_models_alone(registered: Registered, tmp_path: Path) -> None:
    (command,) = re.findall(r"^ledger (.*) --policy trust.toml -- models/demo-lm/1$", PAGE, re.MULTILINE)
    _ledger_beside(registered, tmp_path / "model")
    for path, code in ((registered.folder, 0), (tmp_path / "model", 2)):
        assert main([*command.split(), "--policy", str(registered.policy), "--", str(path)]) == code


@pytest.mark.parametrize("model", ["--help", "--version", "ledger.db", "proof"])
def test_the_github_action_passes_models_alone(registered: Registered, tmp_path: Path, model: str) -> None:
    """Neither an option in the model's place, nor a ledger or a proof of the very log."""
    _ledger_beside(registered, tmp_path / "ledger.db")
    project = ["--project", str(registered.project.root)]
    assert main(["prove", "--index", "0", "--out", str(tmp_path / "proof"), *project]) == 0
    assert main(["verify", str(tmp_path / "proof"), "--policy", str(registered.policy)]) == 0
    action = yaml.safe_load((DOCS / "gate" / "action.yml").read_text(encoding="utf-8"))
    given = {"MODEL": model, "POLICY": str(registered.policy), "STATE": "seen.json", "GITHUB_OUTPUT": "output"}
    assert _run(action["runs"]["steps"][-1]["run"], tmp_path, _tools(tmp_path / "bin", **given)) in (1, 2)
    assert not (tmp_path / "seen.json").exists()


@pytest.mark.parametrize("wrong", [False, True])
def test_the_github_action(registered: Registered, tmp_path: Path, wrong: bool) -> None:
    action = yaml.safe_load((DOCS / "gate" / "action.yml").read_text(encoding="utf-8"))
    inputs = {"model": str(registered.folder), "policy": str(registered.policy), "state": "$(touch pwned) seen.json"}
    assert set(action["inputs"]) == set(inputs)
    if wrong:
        (registered.folder / "config.json").write_text("{}")
    env = _tools(tmp_path / "bin", GITHUB_OUTPUT=str(tmp_path / "output"))
    codes = []
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"], "text of an input must not become part of the script"
        given = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], value)
            for name, value in step.get("env", {}).items()
        }
        codes.append(_run(step["run"], tmp_path, {**env, **given}, step["shell"]))
    assert codes == [0, 1 if wrong else 0]
    assert (tmp_path / "pip.txt").read_text().split()[0] == "install"
    assert (tmp_path / "output").read_text() == "summary=verification-summary.json\n"
    for name in ("verification-summary.json", "verification.sarif", "verification.xml"):
        assert (tmp_path / name).exists()
    assert (tmp_path / inputs["state"]).exists() is not wrong and not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("wrong", [False, True])
def test_the_init_container(registered: Registered, tmp_path: Path, wrong: bool) -> None:
    pod = yaml.safe_load((DOCS / "gate" / "init-container.yaml").read_text(encoding="utf-8"))
    (container,) = pod["spec"]["initContainers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    for path in mounts:
        (tmp_path / path[1:]).mkdir()
    for file in registered.folder.iterdir():
        (tmp_path / "incoming" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "policy" / "trust.toml").write_bytes(registered.policy.read_bytes())
    if wrong:
        (tmp_path / "incoming" / "more.py").touch()
    (script,) = container["args"]
    for path in mounts:
        script = re.sub(rf"(?<![\w/]){path}(?=[/\s])", f"{tmp_path}{path}", script)
    env = _tools(tmp_path / "bin")
    done = subprocess.run([*container["command"], script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == (1 if wrong else 0), done.stdout + done.stderr
    assert (tmp_path / "state" / "seen.json").exists() is not wrong


@pytest.mark.parametrize("name", ["provenance.json", "config.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_found_wrong(registered: Registered, name: str) -> None:
    """As the table of exit codes says: 1 for what a folder lacks, 2 for a folder that is not there."""
    (registered.folder / name).unlink()
    assert main(["verify", str(registered.folder), "--policy", str(registered.policy)]) == 1
    assert main(["verify", str(registered.folder / "gone"), "--policy", str(registered.policy)]) == 2
    assert "lacks a file that it must hold" in PAGE
