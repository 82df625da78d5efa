"""`ledger model` and `ledger verify DIR`: output, exit codes, one clear line for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main

from .conftest import Registered


def _json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", [["verify"], ["model", "verify"]])
def test_verify(registered: Registered, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    arguments = [*command, str(registered.folder), "--policy", str(registered.policy)]
    assert main([*arguments, "--json"]) == 0
    answer = _json(capsys)
    assert answer["verified"] is True and answer["kind"] == "model"
    assert all({"name", "ok", "detail", "category"} <= check.keys() for check in answer["checks"])
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "weights:" in out and "self-asserted" in out and out.rstrip().endswith("verified")

    path = registered.folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main([*arguments, "--json"]) == 1
    answer = _json(capsys)
    assert answer["verified"] is False
    wrong = {check["name"]: check["detail"] for check in answer["checks"] if check["ok"] is False}
    assert set(wrong) == {"files", "weights"}
    assert "model.norm.weight" in wrong["weights"]
    assert main(arguments) == 1


def test_a_required_check_that_cannot_be_made_is_exit_2(
    registered: Registered, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "trust.toml"
    text = registered.policy.read_text()
    policy.write_text(text.replace('key = "bitwitness.invalid', 'key = "elsewhere.invalid'))
    for command in (["verify"], ["model", "verify"]):
        assert main([*command, str(registered.folder), "--policy", str(policy), "--json"]) == 2
        assert _json(capsys)["verified"] is False


def test_register_list_show(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    project = ["--project", str(registered.project.root)]
    assert main([*project, "model", "register", "demo-lm", "--run", "small", "--step", "2", "--json"]) == 0
    made = _json(capsys)
    assert (made["model"], made["version"], made["step"]) == ("demo-lm", 2, 2)
    assert main(["model", "register", "demo-lm", "--run", registered.run, *project]) == 0
    assert capsys.readouterr().out.startswith("demo-lm/3: step 4, weights ")
    assert main([*project, "model", "list", "--json"]) == 0
    assert [(row["model"], row["version"]) for row in _json(capsys)] == [("demo-lm", 1), ("demo-lm", 2), ("demo-lm", 3)]
    assert main([*project, "model", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main([*project, "model", "show", "demo-lm/1", "--json"]) == 0
    assert _json(capsys)["lineages"][0]["run"]["name"] == "small"
    assert main([*project, "model", "show", "demo-lm"]) == 0
    assert "└── run small" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["model", "register", "a/b", "--run", "small"], 2),
        (["model", "register", "x", "--run", "nobody"], 2),
        (["model", "register", "x", "--run", "small", "--step", "3"], 2),
        (["model", "register", "x", "--run", "small", "--license", "a\nb"], 2),
        (["model", "register", "x"], 2),
        (["model", "show", "nobody"], 2),
        (["model", "verify", "nowhere"], 2),
        (["verify", "nowhere"], 2),
        (["model", "verify", ".", "--policy", "nowhere.toml"], 2),
        (["model", "nothing"], 2),
    ],
)
def test_bad_input_is_one_clear_line(
    registered: Registered, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert main(["--project", str(registered.project.root), *arguments]) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.count("error: ") == 1 or "Usage: " in err


def test_outside_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["model", "list"], ["model", "show", "x"], ["model", "register", "x", "--run", "y"]):
        assert main(arguments) == 2
        assert "ledger init" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["register", "list", "show", "verify", "alias", "deprecate", "revoke", "refresh", "diff"]
)
def test_every_help_has_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main(["model", command, "--help"]) == 0
    assert f"Example: ledger model {command}" in capsys.readouterr().out
