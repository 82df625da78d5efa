"""`ledger audit --history` with what else the command takes: files, announced samples, beacons, parts, what is next."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.replay_export import export_run
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.trainer.ancestry import line_coverage
from bitwitness.trainer.auditing import ancestry_audit
from bitwitness.trainer.auditing.ancestry_audit import audit_ancestry
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.beacons import BeaconPending
from bitwitness.trainer.auditing.remote_venue import RemoteVenue
from bitwitness.trainer.auditing.screen import Screened
from bitwitness.trainer.auditing.venue import LocalVenue, WaitsForLog
from bitwitness.trainer.record_check import Fault
from bitwitness.trainer.run import train

from .conftest import make_project, small_config
from .served import serving, stranger
from .test_forks import child_config, history

BOUNDARY = ["match"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run `r` of 6 steps, and `child`, which goes on from its step 4 to step 8; both commit to parts."""
    project = make_project(tmp_path_factory.mktemp("forks") / "project")
    train(project, small_config(commit="parts"), threads=2)
    train(project, child_config(eval_every=0, commit="parts"), threads=2)
    return project


@pytest.fixture
def project(made: Project, tmp_path: Path) -> Project:
    shutil.copytree(made.root, tmp_path / "theirs")
    return Project.find(tmp_path / "theirs")


def publish(project: Project, folder: Path) -> None:
    with project.open_ledger() as ledger:
        for name in ("r", "child"):
            export_run(project, ledger, name, folder)
        export_tiles(ledger, folder)


def trusting(policy: Path, auditor: Signer) -> None:
    """Let a policy trust an auditor by name, besides those that it has."""
    text = policy.read_text()
    assert text.count("self_chosen_auditors = [") == 1
    policy.write_text(text.replace("self_chosen_auditors = [", f'self_chosen_auditors = ["{auditor.keyid}", '))


def entries(path: Path) -> list[tuple[str, str]]:
    """Kind and run of the entries in a file that is handed over."""
    found = []
    for line in path.read_bytes().splitlines():
        statement = open_envelope(line).statement
        found.append((statement["predicateType"].rsplit("/", 2)[1], statement["predicate"]["run"]))
    return found


def intents(project: Project) -> list[int]:
    return [
        entry.index for name in ("r", "child") for entry in history(project, name).about if entry.kind == "audit-intent"
    ]


def test_an_export_is_audited_across_the_boundary_by_file(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file holds the intents of all runs, then all results."""
    alice, folder, out = stranger(project, tmp_path / "alice"), tmp_path / "public", tmp_path / "alice.jsonl"
    r, child = history(project, "r").run, history(project, "child").run
    publish(project, folder)

    def venue(remote: Remote) -> RemoteVenue:
        return RemoteVenue(remote, tmp_path / "work", tmp_path / "alice" / "trust.toml", alice, out=out)

    with Remote(str(folder)) as remote:
        for _again in range(2):
            with pytest.raises(WaitsForLog, match="the intents of 2 runs are in"):
                audit_ancestry(venue(remote), "child", samples=1, threads=1)
            assert entries(out) == [("audit-intent", r), ("audit-intent", child)]
        announced = out.read_bytes()
        out.write_bytes(announced.splitlines()[0] + b"\n")
        assert main(["--project", str(project.root), "append", str(out)]) == 0
        publish(project, folder)
        out.write_bytes(announced)
        with pytest.raises(WaitsForLog):  # one of them is in the log: nothing is replayed before all are
            audit_ancestry(venue(remote), "child", samples=1, threads=1)
        assert out.read_bytes() == announced
        assert main(["--project", str(project.root), "append", str(out)]) == 0
        publish(project, folder)
        with pytest.MonkeyPatch.context() as patch:  # stopped after the first run: nothing is lost, nor handed over
            honest = ancestry_audit.audit
            done: list[str] = []

            def stops(*arguments: Any, **options: Any) -> Any:
                if done:
                    raise KeyboardInterrupt
                done.append("r")
                return honest(*arguments, **options)

            patch.setattr(ancestry_audit, "audit", stops)
            with pytest.raises(KeyboardInterrupt):
                audit_ancestry(venue(remote), "child", samples=1, threads=1)
        assert out.read_bytes() == announced
        line = audit_ancestry(venue(remote), "child", samples=1, threads=1)
        assert line.result == "match" and [report.entry for report in line.reports] == [None, None]
        assert line.reports[0].resumed and [boundary.outcome for boundary in line.boundaries] == BOUNDARY
        assert entries(out) == [("audit", r), ("audit", child)]
        with pytest.raises(BitwitnessError, match="holds an audit that the log does not have yet"):
            audit_ancestry(venue(remote), "child", samples=1, threads=1)
        assert main(["--project", str(project.root), "append", str(out)]) == 0
        publish(project, folder)
        # Steps chosen by hand are drawn from nothing: one call, one file.
        line = audit_ancestry(venue(remote), "child", steps=(3, 6), threads=1)
        assert line.result == "match"
        kinds = [("audit-intent", r), ("audit", r), ("audit-intent", child), ("audit", child)]
        assert sorted(entries(out)) == sorted(kinds)
    assert main(["--project", str(project.root), "append", str(out)]) == 0
    trusting(project.trust_path, alice)
    with project.open_ledger() as ledger:
        assert line_coverage(project, ledger, "child").covered == 8


def test_a_server_takes_the_audits_of_a_line(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trusting(tmp_path / "alice" / "trust.toml", stranger(project, tmp_path / "alice"))
    monkeypatch.chdir(tmp_path / "alice")
    with serving(project) as url:
        asked = ["audit", url, "child", "--history", "--policy", "trust.toml", "--key", "alice.pem", "--work", "w"]
        assert main([*asked, "--plan", "--uncovered", "--json"]) == 0
        assert [run["steps"] for run in json.loads(capsys.readouterr().out)["runs"]] == [2]
        assert main([*asked, "--sample", "1", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert [boundary["outcome"] for boundary in answer["boundaries"]] == BOUNDARY
        assert [run["resumed"] for run in answer["runs"]] == [False, False]
        assert main([*asked, "--uncovered"]) == 2
        assert "covered every step of run child, and of those that it goes on from" in capsys.readouterr().err


def test_what_is_next_in_the_whole_line(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    assert audit(project, "child", steps=(5, 8), threads=1).result == "match"
    assert main(["coverage", "child"]) == 0
    assert "steps up to 4 are in run r, or before it: ledger coverage child --history" in capsys.readouterr().out
    assert main(["coverage", "child", "--history", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["covered"]) == (8, {"0": 4, "1": 4})
    assert [(run["name"], run["steps"]) for run in told["runs"]] == [("r", 4), ("child", 4)]
    assert [(turn["first"], turn["last"]) for turn in told["next"]] == [(1, 2), (3, 4)]
    for steps in ([1, 2], [3, 4]):
        assert main(["audit", "child", "--history", "--uncovered", "--json"]) == 0
        (report,) = json.loads(capsys.readouterr().out)["runs"]
        assert report["name"] == "r" and [item["step"] for item in report["steps"]] == steps
    assert main(["coverage", "child", "--history"]) == 0
    said = capsys.readouterr().out
    assert "all 2 runs as one history: 8 of 8 steps covered" in said and "1 ████" not in said
    assert main(["coverage", "r", "--history"]) == 0  # a run without a parent is its whole history
    assert "run r: 6 steps" in capsys.readouterr().out


def test_announced_audits_of_several_runs_are_gone_on_with(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every run gets its intent, all name one beacon, and one command goes on with all of them."""
    named: list[Any] = []

    def pending(ledger: Any, run: str, intent: int, beacon: Any, *_rest: Any) -> Any:
        named.append(beacon)
        raise BeaconPending([intent], run, "round 7 of quicknet, due", "", "--round FILE")

    beacon = {"kind": "round", "round": 7, "source": "quicknet"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitwitness.trainer.auditing.audit.obtain", pending)
        patch.setattr(ancestry_audit, "choose", lambda *_: beacon)
        with pytest.raises(BeaconPending) as caught:
            audit_ancestry(LocalVenue(project), "child", samples=1, beacon="quicknet", threads=1)
    announced = intents(project)
    assert named == [beacon, beacon] and list(caught.value.intents) == announced and len(announced) == 2
    how = "`ledger audit child --history --round FILE --intent {} --intent {}`".format(*announced)
    assert str(caught.value).endswith(f"of run child wait for their beacon: round 7 of quicknet, due; then {how}")
    monkeypatch.chdir(project.root)
    asked = ["audit", "child", "--history", "--sample", "1"]
    given = [part for index in announced for part in ("--intent", str(index))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitwitness.trainer.auditing.audit.obtain", pending)
        assert main([*asked, *given]) == 2
        assert "wait for their beacon" in capsys.readouterr().err
    assert intents(project) == announced  # none was announced anew
    assert main([*asked, *given, "--plan", "--json"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["r", "child"]
    assert main([*asked, "--intent", str(announced[0] - 1)]) == 2
    assert "no open audit-intent of this auditor for one of the runs r, child" in capsys.readouterr().err


def stop_in(patch: pytest.MonkeyPatch, run: str) -> None:
    """Let a line of audits be stopped as it begins with the replay of this run."""
    honest = ancestry_audit.audit

    def stops(venue: Any, name: str, **options: Any) -> Any:
        if name == run:
            raise KeyboardInterrupt
        return honest(venue, name, **options)

    patch.setattr(ancestry_audit, "audit", stops)


def stopped_line(project: Project, run: str, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_in(patch, run)
        audit_ancestry(LocalVenue(project), "child", threads=1, **options)


def audits(project: Project) -> dict[str, list[int]]:
    """The entries of the audits of both runs."""
    about = {name: history(project, name).about for name in ("r", "child")}
    return {name: [entry.index for entry in found if entry.kind == "audit"] for name, found in about.items()}


@pytest.mark.parametrize("asked", [{"samples": 1}, {"steps": (3, 6)}, {"steps": (4, 5), "part": "shard:1"}])
def test_a_stopped_line_of_audits_goes_on_where_it_was(project: Project, asked: Any) -> None:
    venue, child = LocalVenue(project), history(project, "child").run
    whole = audit_ancestry(venue, "child", threads=1, **asked)  # an older result is not of the line that is stopped
    assert [report.signed_before for report in whole.reports] == [False, False]
    stopped_line(project, child, **asked)
    # What a kill before the parent's folder was removed would leave, too: it is not believed.
    (done,) = [entry for entry in history(project, "r").about if entry.index == audits(project)["r"][-1]]
    with project.open_ledger() as ledger:
        (intent,) = (e for e in history(project, "r").about if e.leaf_hash.hex() == done.predicate["intent"])
        left = venue.work / intent.leaf_hash.hex()[:32]
        left.mkdir()
        (left / "intent.json").write_bytes(ledger.entry(intent.index))
    before = intents(project)
    line = audit_ancestry(venue, "child", threads=1, **asked)
    assert intents(project) == before and {name: len(found) for name, found in audits(project).items()} == {
        "r": 2,
        "child": 2,
    }
    first, second = line.reports
    assert (first.signed_before, first.entry) == (True, done.index) and first.open_intents == ()
    assert (second.signed_before, second.resumed) == (False, True)
    assert not list(venue.work.iterdir())
    # It is told as it was told of the line that was not stopped.
    other = whole.reports[0]
    assert (first.result, first.count, first.total) == (other.result, other.count, other.total)
    assert [unit.outcome for unit in first.units] == [unit.outcome for unit in other.units]
    assert first.caught() == other.caught() and line.boundaries == whole.boundaries
    if "part" not in asked and "steps" in asked:
        assert (first.units, first.compared) == (other.units, other.compared)
    # Nothing is open now: the next one is another line of audits.
    again = audit_ancestry(venue, "child", threads=1, **asked)
    assert [report.signed_before or report.resumed for report in again.reports] == [False, False]


def test_a_stopped_line_is_told_as_such(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    command = ["audit", "child", "--history", "--sample", "1"]
    for screened in ([], ["--screen"]):
        with pytest.MonkeyPatch.context() as patch:
            stop_in(patch, history(project, "child").run)
            assert main([*command, *screened]) == 130
        assert "give the same command again, it goes on where it was" in capsys.readouterr().err
        (entry,) = audits(project)["r"][-1:]
        assert main([*command, *screened]) == 0
        told = capsys.readouterr()
        assert "the audit of r was signed before the stop, and was not made again" in told.err
        assert f"(self-chosen); entry {entry}" in told.out and "boundary r@4 → child: match" in told.out
        assert told.out.count("all within what AdamW allows") == (2 if screened else 0)
    # Intents that were given are known by their entries, whatever else was signed.
    open_before = intents(project)
    stopped_line(project, history(project, "child").run, samples=2)
    announced = [index for index in intents(project) if index not in open_before]
    given = [part for index in announced for part in ("--intent", str(index))]
    assert main(["audit", "child", "--history", *given, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["name"], run["signed_before"]) for run in runs] == [("r", True), ("child", False)]
    assert main(["audit", "child", "--history", *given]) == 2
    assert f"entry {announced[0]} is no open audit-intent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"steps": (1, 4)}, True),
        ({"steps": (1, 3)}, False),
        ({"steps": (1, 4), "part": "norm"}, False),
        ({"samples": 0, "until": 4}, False),
        ({"samples": 9, "until": 4}, False),
    ],
)
def test_only_the_same_request_counts_as_done(project: Project, other: Any, same: bool) -> None:
    """Whatever else this auditor signed of the parent, while the child's audit is open, is not what was asked for."""
    venue, asked = LocalVenue(project), {"steps": (1, 6)}
    stopped_line(project, history(project, "r").run, **asked)
    for folder in venue.work.iterdir():  # of the parent's audit nothing is left but its intent
        if open_envelope((folder / "intent.json").read_bytes()).statement["predicate"]["last"] == 4:
            shutil.rmtree(folder)
    assert audit(project, "r", threads=1, **other).result == "match"
    line = audit_ancestry(venue, "child", threads=1, **asked)
    assert [report.signed_before for report in line.reports] == [same, False]
    assert [report.resumed for report in line.reports] == [False, True]


def test_what_a_screen_shows_and_the_signed_audit_does_not_is_audited(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_line(project, history(project, "child").run, samples=0)
    fault = Fault(2, "screen", "a weight moved too far", "aa" * 32, "bb" * 32)
    monkeypatch.setattr(ancestry_audit, "screen_again", lambda *_: Screened(3, 3, (fault,)))
    line = audit_ancestry(LocalVenue(project), "child", samples=0, screen=True, threads=1)
    assert [report.signed_before for report in line.reports] == [False, False] and len(audits(project)["r"]) == 2


def test_parts_on_both_sides_of_a_boundary(project: Project) -> None:
    line = audit_ancestry(LocalVenue(project), "child", steps=(4, 5), part="shard:1", threads=1)
    assert line.result == "match" and line.boundaries == ()
    units = [(report.name, item.unit.first, item.part) for report in line.reports for item in report.units]
    assert units == [("r", 4, "shard:1"), ("child", 5, "shard:1")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--eval", "all"], "--eval is of one run; leave out --history"),
        (["--part", "norm"], "one part is audited of steps that you name: give --steps A:B, too"),
        (["--steps", "4:5", "--part", "shard:99"], "--part shard:99: the steps of run r have"),
        (["--steps", "9:12"], "steps 9:12 are not in the line of run child, which has steps 0 to 8"),
        (["--steps", "3:12"], "steps 3:12 are not in the line of run child, which has steps 0 to 8"),
        (["--uncovered", "--steps", "1:2"], "--uncovered chooses the steps; it goes with no --steps"),
        (["--steps", "1:2", "--beacon", "quicknet"], "steps chosen by hand go with no beacon"),
        (["--recheck", "3"], "--recheck goes with a source"),
    ],
)
def test_what_does_not_go_with_history_is_one_line(
    made: Project, options: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made.root)
    before = made.ledger_path.read_bytes()
    assert main(["audit", "child", "--history", *options]) == 2
    told = capsys.readouterr().err.strip()
    assert says in told and "\n" not in told
    assert made.ledger_path.read_bytes() == before


@pytest.mark.parametrize("command", [["audit", "r"], ["trace", "r", "--step", "1"]])
def test_a_replay_is_on_the_cpu(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--device", "cuda:0"]) == 2
    said = "--device cuda:0: this version replays on the CPU, which gives the same bits on any machine"
    assert said in capsys.readouterr().err


def test_several_intents_are_of_several_runs(
    made: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made.root)
    assert main(["audit", "r", "--intent", "5", "--intent", "6"]) == 2
    assert "several --intent are of the several runs of --history" in capsys.readouterr().err
