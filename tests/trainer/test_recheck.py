"""Audits that another auditor computes again: what is confirmed, refuted or left open, and what that does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import merkle
from bitwitness.ledger.cli import main
from bitwitness.ledger.entry import entries
from bitwitness.ledger.entry.beacon import sample_seed
from bitwitness.ledger.entry.envelope import open_envelope, seal
from bitwitness.ledger.errors import BitwitnessError, EntryError
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import load_trust
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.trainer.auditing import recheck as module
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.coverage import open_coverage
from bitwitness.trainer.auditing.recheck import recheck
from bitwitness.trainer.auditing.remote_venue import RemoteVenue
from bitwitness.trainer.auditing.venue import LocalVenue
from bitwitness.trainer.run import train
from bitwitness.trainer.state import state_folder

from .conftest import make_project, small_config
from .served import serving, stranger
from .test_forks import monkeypatched_step

Json = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("recheck") / "project")
    train(project, small_config(steps=4), threads=2)
    audit(project, "r", samples=9, threads=2)  # by the project's auditor: the last entry
    return project


@pytest.fixture
def project(made: Project, tmp_path: Path) -> Project:
    shutil.copytree(made.root, tmp_path / "project")
    return Project.find(tmp_path / "project")


@pytest.fixture
def alice(project: Project, tmp_path: Path) -> Signer:
    """Another auditor, whom the project's own policy does not name."""
    return stranger(project, tmp_path / "alice")


def newest_audit(project: Project) -> int:
    with project.open_ledger() as ledger:
        return int(ledger.connection.execute("SELECT max(entry) FROM audits").fetchone()[0])


def predicate(project: Project, index: int) -> Json:
    with project.open_ledger() as ledger:
        found: Json = open_envelope(ledger.entry(index)).statement["predicate"]
    return found


def forge(project: Project, signer: Signer, change: Callable[[Json], None]) -> int:
    """Append an audit that says what the newest one says, but for `change`, under an intent of the signer's own."""
    said = predicate(project, newest_audit(project))
    with project.open_ledger(writable=True) as ledger:
        intent = {
            "run": said["run"], "first": 0, "last": 4, "samples": 9, "beacon": {"kind": "none"}, "size": ledger.size,
            "root": ledger.root().hex(),
            "time": "2026-01-02T03:04:05Z", "signer": signer.keyid,
        }  # fmt: skip
        announced = seal(entries.statement("audit-intent", None, intent), signer)
        leaf = _append(ledger, announced)
        said |= {"intent": leaf.hex(), "seed": sample_seed(leaf).hex(), "signer": signer.keyid}
        change(said)
        index: int = ledger.append([seal(entries.statement("audit", None, said), signer)])[0]
        ledger.sign_checkpoint(project.signer("log"))
    return index


def _append(ledger: Ledger, data: bytes) -> bytes:
    ledger.append([data])
    return merkle.leaf_hash(data)


def test_an_honest_audit_is_confirmed(project: Project, alice: Signer) -> None:
    index = newest_audit(project)
    audited = predicate(project, index)
    assert [unit["start"] for unit in audited["units"]] == [0, 0, 2]
    found = recheck(LocalVenue(project, alice), str(index), threads=1, windows_at_once=1)
    assert (found.result, found.reason, found.steps) == ("confirmed", None, 4)
    said = predicate(project, found.entry or 0)
    assert said["transcript"] == audited["transcript"] and said["signer"] == alice.keyid
    assert verify_ledger(project.ledger_path, load_trust(project.trust_path)).faults == []
    with project.open_ledger() as ledger:
        assert open_coverage(project, ledger, "r").counted == (index,)
        leaf = ledger.leaf_hash(index).hex()
    assert recheck(LocalVenue(project, alice), leaf, threads=1).result == "confirmed"


def test_one_that_went_on_from_an_earlier_state_is_confirmed(project: Project, alice: Signer) -> None:
    """The transcript has more steps where a stored state was missing, and says from where."""
    aside = project.root / "aside"
    state_folder(project.runs_dir / "r", 2).rename(aside)
    report = audit(project, "r", samples=0, threads=1)
    assert [unit.start for unit in report.units] == [0, 0]
    aside.rename(state_folder(project.runs_dir / "r", 2))
    assert recheck(LocalVenue(project, alice), str(report.entry), threads=1).result == "confirmed"
    # The other way round: what started from the stored state is computed from an earlier one, untapped up to it.
    state_folder(project.runs_dir / "r", 2).rename(aside)
    with project.open_ledger() as ledger:
        (first,) = ledger.connection.execute("SELECT min(entry) FROM audits").fetchone()
    assert recheck(LocalVenue(project, alice), str(first), threads=1).result == "confirmed"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda said: None, "transcript is not what the replay gives"),  # copied from the honest one
        (lambda said: said.update(transcript={**said["transcript"], "root": "ab" * 32}), "not what the replay gives"),
        (lambda said: said["units"][2].update(start=1), "no replay of them starts from step 1"),
        (
            lambda said: (
                said["units"][1].update(
                    outcome="mismatch", found={"step": 1, "expected": "ab" * 32, "computed": "cd" * 32}
                ),
                said.update(result="mismatch"),
            ),
            "it says mismatch, the replay match",
        ),
        (lambda said: _accuse(said["units"][1], said), "it says mismatch, the replay match"),
    ],
)
def test_a_forged_audit_is_refuted(project: Project, alice: Signer, change: Callable[[Json], None], says: str) -> None:
    forged = forge(project, alice, change)
    found = recheck(project, str(forged), threads=1)
    assert found.result == "refuted" and says in (found.reason or "")
    with project.open_ledger() as ledger:
        coverage = open_coverage(project, ledger, "r")
    # The project's policy trusts its own auditor by name, so the word of that one counts.
    assert forged not in coverage.counted and coverage.mismatches == ()
    assert (forged, f"entry {found.entry}, another auditor's recheck, refutes it") in coverage.refused


def _accuse(unit: Json, said: Json) -> None:
    """An accusation that says nothing of any replay."""
    del unit["start"]
    unit |= {"outcome": "mismatch", "found": {"step": 1, "expected": "ab" * 32, "computed": "cd" * 32}}
    said["result"] = "mismatch"


def test_who_has_no_say_refutes_nothing(project: Project, alice: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = newest_audit(project)
    monkeypatch.setattr(module._Again, "verdict", lambda self: module._Verdict("refuted", "because"))
    recheck(LocalVenue(project, alice), str(honest), threads=1)
    with project.open_ledger() as ledger:
        assert open_coverage(project, ledger, "r").counted == (honest,)


def test_a_match_where_the_run_lies_is_refuted(tmp_path: Path) -> None:
    project = make_project(tmp_path / "lying")
    with monkeypatched_step(3):
        train(project, small_config(steps=4), threads=1)
    alice = stranger(project, tmp_path / "alice")
    report = audit(project, "r", samples=9, threads=1)
    assert report.result == "mismatch"
    assert recheck(LocalVenue(project, alice), str(report.entry), threads=1).result == "confirmed"

    def all_well(said: Json) -> None:
        said["result"] = "match"
        for unit in said["units"]:
            for name in ("found", "reason"):
                unit.pop(name, None)
            unit["outcome"] = "match"

    found = recheck(project, str(forge(project, alice, all_well)), threads=1)
    assert found.result == "refuted" and "it says match, the replay mismatch at step 3" in (found.reason or "")


def test_what_cannot_be_computed_here_is_inconclusive(
    project: Project, alice: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, venue = str(newest_audit(project)), LocalVenue(project, alice)
    with monkeypatch.context() as patch:
        patch.setattr("bitwitness.trainer.replay.difference", lambda *_: "computed with add 1; this build has add 2")
        found = recheck(venue, index, threads=1)
    assert found.result == "inconclusive" and "this build has add 2" in (found.reason or "")
    with monkeypatch.context() as patch:
        patch.setattr(module, "this_builds", lambda recorded: {**recorded, "digest": "00" * 32})
        assert recheck(venue, index, threads=1).result == "inconclusive"
    with monkeypatch.context() as patch:
        patch.setattr(module, "machine_fault", lambda threads: "this machine computes wrong: add")
        assert recheck(venue, index, threads=1).reason == "this machine computes wrong: add"
    forged = forge(project, alice, lambda said: said["units"][1].pop("start"))
    assert recheck(project, str(forged), threads=1).result == "inconclusive"
    shutil.rmtree(project.data_dir / "text")
    found = recheck(venue, index, threads=1)
    assert found.result == "inconclusive" and "the data is not at hand" in (found.reason or "")


def test_what_is_not_anothers_audit_is_refused(project: Project, alice: Signer) -> None:
    index = newest_audit(project)
    with pytest.raises(BitwitnessError, match="own audit"):
        recheck(project, str(index), threads=1)
    with pytest.raises(BitwitnessError, match=f"entry {index - 1} is of the kind audit-intent"):
        recheck(LocalVenue(project, alice), str(index - 1), threads=1)
    with pytest.raises(BitwitnessError, match="none that is an entry 9999"):
        recheck(LocalVenue(project, alice), "9999", threads=1)
    with pytest.raises(BitwitnessError, match=f"none that is an entry {'f' * 64}"):
        recheck(LocalVenue(project, alice), "f" * 64, threads=1)
    found = recheck(LocalVenue(project, alice), str(index), threads=1)
    own = {**predicate(project, found.entry or 0), "signer": project.signer("auditor").keyid}
    with project.open_ledger(writable=True) as ledger, pytest.raises(EntryError, match="own audit"):
        ledger.append([seal(entries.statement("recheck", None, own), project.signer("auditor"))])


def test_a_stranger_rechecks_over_http(
    project: Project, alice: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = newest_audit(project)
    with serving(project) as url:
        monkeypatch.chdir(tmp_path / "alice")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        words = ["audit", url, "--recheck", str(index), "--policy", "trust.toml", "--key", "alice.pem", "--json"]
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["result"] == "confirmed"
        with Remote(url) as remote:
            venue = RemoteVenue(remote, tmp_path / "w", tmp_path / "alice" / "trust.toml", alice)
            assert recheck(venue, str(index), threads=1).entry == index + 3
    monkeypatch.chdir(project.root)
    assert main(["audit", "--recheck", str(index)]) == 2  # its own
    assert main(["audit", "r", "--recheck", str(index), "--sample", "1", "--steps", "1:2"]) == 2
    assert "goes with a source" in capsys.readouterr().err
