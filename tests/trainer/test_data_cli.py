"""`ledger data …` on real files in a real project: output, JSON, exit codes, one line for bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.project import Project
from bitwitness.trainer.cli.data import data as group
from bitwitness.trainer.data import Dataset


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for variable in ("BITWITNESS_PROJECT", "BITWITNESS_PASSPHRASE"):
        monkeypatch.delenv(variable, raising=False)
    made = Project.create(tmp_path / "project")
    folder = made.root / "text"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02d}.txt").write_text(f"text number {number}\n" * (1 + number % 4))
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(5)))
    monkeypatch.chdir(made.root)
    return made


def test_build_and_show(project: Project, ledger: Any) -> None:
    built = ledger("data", "build", "text", "--name", "t", "--license", "CC0-1.0")
    assert built.code == 0, built.err
    assert "t: " in built.out and "t.held-out: " in built.out and "documents" in built.out
    shown = ledger("data", "show", "--json").json
    assert [fields["name"] for fields in shown] == ["t", "t.held-out"]
    assert all(fields["recorded"] for fields in shown)
    assert sum(fields["documents"] for fields in shown) == 35
    one = ledger("data", "show", "t", "--check", "--json").json
    assert one["checked"] is True and one["license"] == "CC0-1.0" and one["dataset"]["type"] == "dataset/1"
    assert "root" in ledger("data", "show", "t").out
    with project.open_ledger() as opened:
        assert opened.find(bytes.fromhex(one["entry"])) is not None


def test_build_json(project: Project, ledger: Any) -> None:
    built = ledger("data", "build", "text", "--name", "t", "--held-out", "0", "--max-bytes", "1K", "--json")
    (fields,) = built.json["datasets"]
    assert fields["recorded"] is True and fields["bytes"] <= 1024
    assert built.json["notes"] == ["stopped at --max-bytes 1K"] and "note: stopped" in built.err


def test_the_demo_command(project: Project, ledger: Any) -> None:
    built = ledger("data", "build", "STDLIB", "--include", "*.py", "--max-bytes", "4M", "--name", "pystdlib", "--json")
    assert built.code == 0, built.err
    train, held = built.json["datasets"]
    assert train["bytes"] + held["bytes"] <= 4 << 20
    assert train["bytes"] > 3 << 20 and held["bytes"] > 1000


def test_find(project: Project, ledger: Any) -> None:
    ledger("data", "build", "text", "--name", "t", "--held-out", "0")
    found = ledger("data", "find", "number 7", "--json").json["documents"]
    assert [each["path"] for each in found] == ["text/07.txt"]
    assert found[0]["offsets"] == [5 + 14 * n for n in range(4)]
    assert ledger("data", "find", "line 3").out.startswith("t  text/lines.jsonl:4  6 bytes  at byte 0")
    by_path = ledger("data", "find", "--document", "text/0*.txt", "--json").json["documents"]
    assert len(by_path) == 10
    few = ledger("data", "find", "--document", "text/lines.jsonl", "--limit", "2", "--json")
    assert len(few.json["documents"]) == 2 and few.json["more"] is True
    assert len(ledger("data", "find", "--document", "text/lines.jsonl", "--limit", "2").out.splitlines()) == 2
    exactly = ledger("data", "find", "--document", "text/lines.jsonl", "--limit", "5", "--json")
    assert len(exactly.json["documents"]) == 5 and exactly.json["more"] is False
    nothing = ledger("data", "find", "no such text", "--name", "t")
    assert nothing.code == 0 and nothing.out == "" and "no document" in nothing.err


def test_a_text_that_is_everywhere_is_not_told_to_the_last_byte(project: Project, ledger: Any) -> None:
    (project.root / "many.txt").write_text("x" * 51)
    ledger("data", "build", "many.txt", "--name", "m", "--held-out", "0")
    line = ledger("data", "find", "x", "--name", "m").out
    assert line.rstrip().endswith(", 48, 49, …")


def test_a_locked_ledger_loses_nothing(project: Project, ledger: Any) -> None:
    with project.open_ledger(writable=True):
        built = ledger("data", "build", "text", "--name", "t", "--json")
    assert built.code == 0 and "not recorded in the ledger yet" in built.err
    assert not any(fields["recorded"] for fields in built.json["datasets"])
    assert "not in the ledger yet" in ledger("data", "show").out
    Dataset.open(project.data_dir, "t").check_all()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def test_bad_input_is_one_line_and_exit_2(project: Project, ledger: Any) -> None:
    (project.root / "empty").mkdir()
    (project.root / "bad.txt").write_bytes(b"ok\xff")
    (project.root / "bad.jsonl").write_text('{"text": "ok"}\n{"text": 1}\n')
    assert ledger("data", "build", "text", "--name", "taken").code == 0
    cases: list[tuple[list[str], str]] = [
        (["build", "nowhere", "--name", "n"], "nowhere: no such file"),
        (["build", "empty", "--name", "n"], "no text files"),
        (["build", "bad.txt", "--name", "n"], "bad.txt: not UTF-8 text (byte 2)"),
        (["build", "bad.jsonl", "--name", "n"], "bad.jsonl, line 2"),
        (["build", "text", "--name", "taken"], "already"),
        (["build", "text", "--name", "a/b"], "name"),
        (["build", "text", "--name", "n", "--max-bytes", "many"], "'many' is not a size"),
        (["build", "text", "--name", "n", "--held-out", "2"], "--held-out 2"),
        (["build", "text", "--name", "n", "--tokenizer", "none.json"], "none.json"),
        (["show", "unknown"], "no dataset unknown"),
        (["where", "--run", "unknown", "--step", "1"], "unknown"),
        (["find"], "TEXT or --document"),
        (["find", "x", "--document", "y"], "TEXT or --document"),
    ]
    for arguments, expected in cases:
        outcome = ledger("data", *arguments)
        assert outcome.code == 2, (arguments, outcome.err)
        assert expected in outcome.err and "Traceback" not in outcome.err
        assert outcome.out == "" and len(outcome.err.strip().splitlines()) == 1, outcome.err
    assert sorted(os.listdir(project.data_dir)) == ["taken"]


def test_damage_is_exit_1(project: Project, ledger: Any) -> None:
    ledger("data", "build", "text", "--name", "t")
    flip(project.data_dir / "t" / "tokens-00000.bin", 40)
    outcome = ledger("data", "show", "t", "--check")
    assert outcome.code == 1 and "tokens-00000.bin differs" in outcome.err


def test_every_command_has_an_example() -> None:
    for command in group.registered_commands:
        assert command.callback is not None and command.callback.__doc__ is not None
        assert "Example: ledger data " in command.callback.__doc__
