"""Audits that were stopped go on where they were, inside a step, to the transcript of one that was not stopped."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.keys import generate
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing import replay_work
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.audit_work import AuditWork
from bitwitness.trainer.auditing.examiner import Examiner
from bitwitness.trainer.auditing.replay_work import ReplayWork
from bitwitness.trainer.auditing.transcript import Transcript
from bitwitness.trainer.history import open_verified_run
from bitwitness.trainer.material import LocalMaterial
from bitwitness.trainer.run import train
from bitwitness.trainer.sample import Unit
from bitwitness.trainer.step import Workspace

from .conftest import small_config

KILLED = """
import os, signal, sys
from bitwitness.ledger.project import Project
from bitwitness.trainer import step
from bitwitness.trainer.auditing import audit, replay_work
replay_work.INTERVAL = 0.0
replay_work._SHARE = 0.0
honest, done = step.Workspace.shard_gradient, []
def shard_gradient(*given):
    done.append(1)
    if len(done) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(*given)
step.Workspace.shard_gradient = shard_gradient
audit.audit(Project.find(sys.argv[1]), "r", samples=9, threads=1)
"""


@pytest.fixture
def trained(project: Project) -> Project:
    train(project, small_config(commit_optimizer_every=2, commit="parts"), threads=2)
    return project


def kill_at(project: Project, shard: int) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", KILLED, str(project.root), str(shard)], cwd=root, capture_output=True)
    assert done.returncode == -9, done.stderr


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the shards that are computed from here on."""
    done: list[int] = []
    honest = Workspace.shard_gradient

    def shard_gradient(self: Workspace, *given: Any) -> Any:
        done.append(1)
        return honest(self, *given)

    monkeypatch.setattr(Workspace, "shard_gradient", shard_gradient)
    return done


def unbroken(project: Project, seed: bytes) -> Any:
    """The transcript of the same audit without a stop."""
    with project.open_ledger() as ledger:
        history = open_verified_run(project, ledger, "r")
    transcript = Transcript(seed, project.signer("auditor").keyid)
    examiner = Examiner(LocalMaterial(project), history, 1, 0, transcript, [])
    chosen = [Unit(0, 0, "init"), Unit(1, 2, "sample"), Unit(3, 4, "sample"), Unit(5, 6, "last")]
    assert all(result.outcome == "match" for result in examiner.examine(chosen, lambda done, total: None))
    return transcript.commit()


@pytest.mark.parametrize("shard", [5, 7])
def test_a_killed_audit_goes_on_to_the_same_transcript(
    trained: Project, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    kill_at(trained, shard)
    computed = counted(monkeypatch)
    report = audit(trained, "r", samples=9, threads=2)
    assert report.resumed and report.result == "match" and report.compared == (1, 2, 3, 4, 5, 6)
    assert len(computed) == 18 - (shard - 1)  # 6 steps of 3 shards; nothing is computed twice
    assert not report.open_intents
    with trained.open_ledger() as ledger:
        assert report.entry is not None
        said = open_envelope(ledger.entry(report.entry)).statement["predicate"]
    assert report.transcript == unbroken(trained, bytes.fromhex(said["seed"]))
    assert not list((trained.root / "audits").iterdir())
    assert not audit(trained, "r", samples=9, threads=2).resumed


def test_what_was_kept_is_checked(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_at(trained, 6)
    (point,) = (trained.root / "audits").glob("*/point-*.safetensors")
    data = bytearray(point.read_bytes())
    data[-5] ^= 1
    point.write_bytes(data)
    computed = counted(monkeypatch)
    report = audit(trained, "r", samples=9, threads=2)
    assert report.resumed and report.result == "match" and len(computed) == 18  # the unit begins anew
    with trained.open_ledger() as ledger:
        assert report.entry is not None
        said = open_envelope(ledger.entry(report.entry)).statement["predicate"]
    assert report.transcript == unbroken(trained, bytes.fromhex(said["seed"]))


@pytest.mark.parametrize("file", ["progress.json", "intent.json"])
def test_a_damaged_folder_costs_time_and_nothing_else(
    trained: Project, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    kill_at(trained, 6)
    (path,) = (trained.root / "audits").glob(f"*/{file}")
    path.write_bytes(path.read_bytes()[:-7])
    report = audit(trained, "r", samples=9, threads=2)
    assert report.result == "match" and report.compared == (1, 2, 3, 4, 5, 6)
    # Without its intent the stopped audit is another one, which stays open.
    assert len(report.open_intents) == (file == "intent.json")


def test_outcomes_that_the_auditor_did_not_sign_are_not_taken_over(trained: Project) -> None:
    """Who can write the folder, but has no key, must not have a match signed that no replay gave."""
    kill_at(trained, 10)
    (path,) = (trained.root / "audits").glob("*/progress.json")
    text, _, signature = path.read_bytes().rpartition(b"\n")
    said = json.loads(text)
    assert said["results"] and said["results"][-1]["outcome"] == "match"
    forged = {"outcome": "inconclusive", "reason": "nobody computed this"}
    changed = {**said, "results": [*said["results"][:-1], {**said["results"][-1], **forged}]}
    other = generate("auditor")
    message = replay_work._DOMAIN + bytes(32) + hashlib.sha256(json.dumps(changed).encode()).digest()
    for seal in (signature, other.sign(message).hex().encode(), b"", b"zz"):
        path.write_bytes(json.dumps(changed).encode() + b"\n" + seal)
        (work,) = AuditWork.unfinished(trained.root / "audits", trained.signer("auditor"))
        assert work.resumed and not work.replay.results and not work.replay.hashes
    assert audit(trained, "r", samples=9, threads=2).result == "match"


def test_intents_that_the_auditor_did_not_sign_are_passed_over(trained: Project) -> None:
    kill_at(trained, 6)
    (path,) = (trained.root / "audits").glob("*/intent.json")
    honest = path.read_bytes()
    (work,) = AuditWork.unfinished(trained.root / "audits", trained.signer("auditor"))
    assert work.intent == honest and not list(AuditWork.unfinished(trained.root / "audits", generate("auditor")))
    envelope = json.loads(honest)
    envelope["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()
    path.write_bytes(jcs.encode(envelope))
    assert not list(AuditWork.unfinished(trained.root / "audits", trained.signer("auditor")))


def test_an_audit_that_goes_on_is_of_the_run_as_it_was(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from bitwitness.trainer import run as running

    honest = running.step
    monkeypatch.setattr(running, "step", lambda *given: _stop_after(4, honest, *given))
    train(project, small_config(), threads=2)
    monkeypatch.undo()
    kill_at(project, 6)
    train(project, small_config(), threads=2, resume=True)
    report = audit(project, "r", samples=9, threads=2)
    assert report.resumed and report.result == "match" and report.total == 4


def _stop_after(last: int, honest: Any, state: Any, *given: Any) -> Any:
    import os
    import signal

    if state.control.step + 1 == last:
        os.kill(os.getpid(), signal.SIGINT)
    return honest(state, *given)


def test_points_are_kept_at_an_interval(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    honest = ReplayWork.keep
    monkeypatch.setattr(ReplayWork, "keep", lambda self, *given: (kept.append(1), honest(self, *given)))
    assert audit(trained, "r", samples=9, threads=2).result == "match" and not kept
    monkeypatch.setattr(replay_work, "INTERVAL", 0.0)
    monkeypatch.setattr(replay_work, "_SHARE", 0.0)
    assert audit(trained, "r", samples=9, threads=2).result == "match"
    assert len(kept) == 6 * 2 + 3  # after each shard but a step's last, and each step but a unit's last


def test_an_audit_of_parts_goes_on_with_the_part_that_comes_next(
    trained: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept of parts is of those parts alone: an audit of other ones, or of whole steps, begins anew."""
    whole = counted(monkeypatch)
    assert audit(trained, "r", steps=(1, 4), part="norm", threads=2).result == "match"
    every = len(whole)
    honest = Workspace.sum_squares

    def stop(number: int) -> None:
        calls: list[int] = []

        def sum_squares(self: Workspace, gradient: Any) -> float:
            calls.append(1)
            if len(calls) == number:
                raise KeyboardInterrupt
            return honest(self, gradient)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Workspace, "sum_squares", sum_squares)
            audit(trained, "r", steps=(1, 4), part="norm", threads=2)

    stop(3)  # one step for the first part, two for the second
    whole.clear()
    report = audit(trained, "r", steps=(1, 4), part="norm", threads=2)
    assert report.resumed and report.result == "match" and [item.part for item in report.units] == ["norm"] * 4
    assert len(whole) == every - 3
    stop(3)
    whole.clear()
    report = audit(trained, "r", steps=(1, 4), threads=2)  # goes on with that intent, and with nothing of the parts
    assert report.resumed and report.result == "match" and len(whole) == 12
