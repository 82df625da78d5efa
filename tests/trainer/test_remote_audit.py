"""Audits of somebody else's run: over HTTP from `ledger serve`, from an export, from a bucket."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.replay_export import export_run
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.remote_venue import NotSent, RemoteVenue, WaitsForLog
from bitwitness.trainer.run import train

from .conftest import make_project, small_config
from .own_models import TINY
from .served import serving, stranger
from .test_user_model import own_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("trained") / "project")
    train(project, small_config(), threads=2)
    return project


@pytest.fixture
def project(trained: Project, tmp_path: Path) -> Project:
    shutil.copytree(trained.root, tmp_path / "theirs")
    return Project.find(tmp_path / "theirs")


@pytest.fixture
def alice(project: Project, tmp_path: Path) -> Signer:
    return stranger(project, tmp_path / "alice")


@pytest.fixture
def url(project: Project, alice: Signer) -> Iterator[str]:
    with serving(project) as address:
        yield address


def venue(remote: Remote, tmp_path: Path, signer: Signer, out: Path | None = None) -> RemoteVenue:
    return RemoteVenue(remote, tmp_path / "work", tmp_path / "alice" / "trust.toml", signer, out=out)


def test_a_stranger_audits_over_http(project: Project, alice: Signer, url: str, tmp_path: Path) -> None:
    with Remote(url) as remote:
        report = audit(venue(remote, tmp_path, alice), "r", samples=1, threads=1)
    assert report.result == "match", [unit.detail for unit in report.units]
    assert len(report.compared) == 4
    with project.open_ledger() as ledger:
        assert report.entry == ledger.size - 1
        said = open_envelope(ledger.entry(report.entry)).statement["predicate"]
        assert said["signer"] == alice.keyid and said["result"] == "match"
        intent = ledger.find(bytes.fromhex(said["intent"]))
        assert intent == report.entry - 1
    # The same bits as an audit at home would commit to, and only what was needed is here.
    kept = tmp_path / "work"
    assert not list(kept.rglob("paths.bin")) and not list(kept.rglob("*.pem"))


def test_a_stranger_audits_one_part(tmp_path: Path) -> None:
    """From a server and from an export; who has only the parts of the neighbouring step covers nothing."""
    theirs = make_project(tmp_path / "theirs")
    train(theirs, small_config(steps=2, commit="parts"), threads=2)
    bob = stranger(theirs, tmp_path / "alice")
    with serving(theirs) as address, Remote(address) as remote:
        for name in ("shard:1", "norm"):
            report = audit(venue(remote, tmp_path, bob), "r", steps=(2, 2), part=name, threads=1)
            assert [(item.part, item.outcome) for item in report.units] == [(name, "match")]
    with theirs.open_ledger() as ledger:
        export_tiles(ledger, tmp_path / "bucket")
        export_run(theirs, ledger, "r", tmp_path / "bucket")
    (one, two) = sorted((tmp_path / "bucket" / "replay" / "parts").rglob("*.json"))
    for content, outcome in ((two.read_bytes(), "match"), (one.read_bytes(), "unavailable"), (None, "unavailable")):
        two.unlink()
        if content is not None:
            two.write_bytes(content)
        shutil.rmtree(tmp_path / "work")
        with Remote(str(tmp_path / "bucket")) as remote:
            there = venue(remote, tmp_path, bob, tmp_path / f"{outcome}-{content is None}.jsonl")
            report = audit(there, "r", steps=(2, 2), part="shard:0", threads=1)
        assert [item.outcome for item in report.units] == [outcome], report.units


def test_a_stranger_audits_one_part_of_a_model_of_the_trainers_own(tmp_path: Path) -> None:
    """Which parts there are, the captured program says, which is fetched."""
    theirs = make_project(tmp_path / "theirs")
    (theirs.root / "tiny.py").write_text(TINY)
    train(theirs, own_config("tiny.py:Tiny", {"layers": 1}, steps=2, commit="parts"), threads=2)
    bob = stranger(theirs, tmp_path / "alice")
    with serving(theirs) as address, Remote(address) as remote:
        there = venue(remote, tmp_path, bob)
        for name in ("shard:1", "update:blocks.0.attn.q_proj.weight"):
            report = audit(there, "r", steps=(2, 2), part=name, threads=1)
            assert [(item.part, item.outcome) for item in report.units] == [(name, "match")]
        with pytest.raises(BitwitnessError, match=r"--part update:blocks\.7"):
            audit(there, "r", steps=(2, 2), part="update:blocks.7", threads=1)
        assert audit(there, "r", uncovered=True, threads=1).result == "match"


def test_the_command_of_a_stranger(
    project: Project, alice: Signer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "alice")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["audit", url, "--policy", "trust.toml", "--key", "alice.pem", "--sample", "1"]) == 0
    assert main(["audit", url, "r", "--policy", "trust.toml", "--key", "alice.pem", "--steps", "1:2"]) == 0


def test_a_plan_tells_the_cost_and_does_nothing(
    project: Project, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path / "alice")
    with project.open_ledger() as ledger:
        size = ledger.size
    asked = ["audit", url, "--policy", "trust.toml", "--key", "alice.pem", "--work", "w", "--plan", "--threads", "1"]
    assert main([*asked, "--steps", "5:6", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["units"], told["exact"], told["entries"]) == (2, 1, True, size)
    stored = project.runs_dir / "r" / "states" / "step-00000004"
    assert 0.9 < told["states_bytes"] / sum(file.stat().st_size for file in stored.iterdir()) <= 1.0
    tokens = sum(file.stat().st_size for file in project.data_dir.rglob("tokens-*.bin"))
    assert 0 < told["data_bytes"] <= tokens + 2**20
    assert told["fetch_bytes"] == told["states_bytes"] + told["data_bytes"]
    assert told["memory_bytes"] > told["states_bytes"] and told["seconds"] > 0
    assert main([*asked, "--sample", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["replay", "fetch", "memory", "time"]
    assert "at most 6 steps of run r in 3 units" in lines[0]
    assert not list((tmp_path / "alice" / "w").rglob("*.safetensors"))
    with project.open_ledger() as ledger:
        assert ledger.size == size
    monkeypatch.chdir(project.root)
    assert main(["audit", "r", "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fetch_bytes"] == 0


def test_an_export_is_audited_by_file(
    project: Project, alice: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "public", tmp_path / "audit.jsonl"

    def publish() -> None:
        with project.open_ledger() as ledger:
            export_run(project, ledger, "r", folder)
            export_tiles(ledger, folder)

    publish()
    with Remote(str(folder)) as remote:
        there = venue(remote, tmp_path, alice, out)
        with pytest.raises(WaitsForLog):
            audit(there, "r", samples=1, threads=1)
        announced = out.read_bytes()
        with pytest.raises(WaitsForLog):
            audit(there, "r", samples=1, threads=1)
        assert out.read_bytes() == announced  # an intent that waits is never drawn anew
        assert main(["--project", str(project.root), "append", str(out)]) == 0
        publish()
        report = audit(venue(remote, tmp_path, alice, out), "r", samples=1, threads=1)
        assert report.result == "match" and report.entry is None
        assert main(["--project", str(project.root), "append", str(out)]) == 0
        with project.open_ledger() as ledger:
            said = open_envelope(ledger.entry(ledger.size - 1)).statement["predicate"]
        assert (said["signer"], said["result"]) == (alice.keyid, "match")
        # Steps chosen by hand are drawn from nothing: both entries go in one file.
        report = audit(venue(remote, tmp_path, alice, tmp_path / "both.jsonl"), "r", steps=(3, 4), threads=1)
        assert report.result == "match" and len((tmp_path / "both.jsonl").read_bytes().splitlines()) == 2
        # What was taken before one that does not hold is in the log, and is said to be.
        both = tmp_path / "both.jsonl"
        intent, result = both.read_bytes().splitlines()
        (tmp_path / "three.jsonl").write_bytes(b"\n".join([intent, result[:-1], result]))
        capsys.readouterr()
        assert main(["--project", str(project.root), "append", str(tmp_path / "three.jsonl")]) == 1
        with project.open_ledger() as ledger:
            size = ledger.size
        assert capsys.readouterr().out == f"entry {size - 1}: audit-intent\n1 of 3 entries appended\n"
        assert main(["--project", str(project.root), "append", "--json", str(tmp_path / "three.jsonl")]) == 1
        assert json.loads(capsys.readouterr().out) == [{"entry": size - 1, "kind": "audit-intent", "new": False}]
        assert main(["--project", str(project.root), "append", str(both)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"entry {size - 1}: audit-intent, in the log already"
        assert lines[1:] == [f"entry {size}: audit", "1 of 2 entries appended"]


def test_a_server_that_takes_nothing_says_so(project: Project, alice: Signer, tmp_path: Path) -> None:
    with serving(project, accept=False) as url, Remote(url) as remote, pytest.raises(NotSent, match="403"):
        audit(venue(remote, tmp_path, alice), "r", threads=1)


def test_a_key_that_is_not_enrolled_is_refused(project: Project, url: str, tmp_path: Path) -> None:
    mallory = stranger(project, tmp_path / "mallory", enrolled=False)
    with project.open_ledger() as ledger:
        size = ledger.size
    with Remote(url) as remote, pytest.raises(NotSent, match=r"not enrolled.*the intent is kept"):
        audit(venue(remote, tmp_path, mallory), "r", threads=1)
    with project.open_ledger() as ledger:
        assert ledger.size == size
