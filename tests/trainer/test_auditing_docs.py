"""What docs/auditing.md tells an owner and a stranger to type is typed here, each in his own folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.run import train

from .conftest import make_project, small_config
from .served import serving

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"


def commands() -> list[list[str]]:
    lines = re.findall(r"^    (ledger .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def test_the_walk_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, alice = tmp_path / "owner", tmp_path / "alice"
    project = make_project(owner)
    train(project, small_config(name="demo"), threads=2)
    train(project, small_config(name="tuned", **{"from": "demo@4"}), threads=2)
    theirs = audit(project, "demo", samples=0, threads=2).entry
    alice.mkdir()
    (alice / "trust.toml").write_bytes(project.trust_path.read_bytes())
    for name, at, there in (("public", alice, owner), ("alice.pub", owner, alice), ("alice.jsonl", owner, alice)):
        (at / name).symlink_to(there / name)  # stands for sending it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    typed = commands()
    assert typed[0][0] == "serve" and "--accept-audits" in typed[0]
    with serving(project) as url:
        for words in typed[1:]:
            mine = words[0] in ("audit", "trace") or words[:2] == ["key", "generate"]
            monkeypatch.chdir(alice if mine else owner)
            due = 2 if words[0] == "audit" and "--out" in words else 0  # the intent waits for the log's owner
            assert main([{"URL": url, "ENTRY": str(theirs)}.get(word, word) for word in words]) == due, words
        by_file = next(words for words in typed if words[0] == "audit" and "--out" in words)
        monkeypatch.chdir(alice)
        assert main(by_file) == 0
        monkeypatch.chdir(owner)
        assert main(["append", "alice.jsonl"]) == 0
    with project.open_ledger() as ledger:
        kinds = [open_envelope(data).statement["predicateType"].split("/")[-2] for _index, data in ledger.entries()]
    assert kinds.count("audit-intent") == kinds.count("audit") == 5
    assert kinds.count("recheck") == 1
