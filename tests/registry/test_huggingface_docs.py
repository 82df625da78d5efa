"""docs/huggingface.md, typed as it stands: every command, every piece of Python, the run file."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from bitwitness.ledger.cli import main

from .trained import make

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$|^((?:    \S[^\n]*\n)+)", re.M | re.S)


def test_the_walk_through_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")
    project = make(tmp_path / "project", run="demo", data="pystdlib")  # named as those of the README's first run
    monkeypatch.chdir(project.root)
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    commands = 0
    for language, text, indented in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "toml":
            (project.root / "tuned.toml").write_text(text)
        elif language == "python":
            exec(compile(text, str(PAGE), "exec"), {})
        for line in indented.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "ledger"
            assert main(arguments) == 0, line
            commands += 1
    assert commands == 17
