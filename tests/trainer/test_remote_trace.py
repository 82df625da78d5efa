"""Traces of a run that lies elsewhere: fetched and checked as an audit does, bisected, and judged."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from bitwitness.kernels.tracing import trace_record
from bitwitness.ledger.cli import main
from bitwitness.ledger.exchange.replay_export import export_run
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.remote_venue import RemotePlace
from bitwitness.trainer.drills import drill as drilled
from bitwitness.trainer.drills.drill import drill
from bitwitness.trainer.state import state_folder
from bitwitness.trainer.traces.step_trace import trace_step

from .served import serving, stranger

Call = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def liar(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, int]:
    """A run whose trainer computed an operator of one step wrong, and that step; his own trace is in traces/trainer."""
    folder = tmp_path_factory.mktemp("liar")
    project, name = drilled.small_run(folder / "honest", 2)
    (result,) = drill(project, name, folder / "copies", kinds=("gradient",), seed=3, samples=9, threads=2)
    assert result.good
    return Project.find(folder / "copies" / "gradient"), result.step


@pytest.fixture
def project(liar: tuple[Project, int], tmp_path: Path) -> Project:
    shutil.copytree(liar[0].root, tmp_path / "theirs")
    return Project.find(tmp_path / "theirs")


@pytest.fixture
def alice(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's folder, in which the test stands."""
    stranger(project, tmp_path / "alice")
    monkeypatch.chdir(tmp_path / "alice")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "alice"


@pytest.fixture
def ledger(capsys: pytest.CaptureFixture[str]) -> Call:
    """ledger(words…) -> (exit status, all that was printed)."""

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(list(words))
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


def publish(project: Project, folder: Path) -> None:
    with project.open_ledger() as log:
        export_run(project, log, "small", folder)
        export_tiles(log, folder)


def test_from_the_audit_of_a_served_run_to_who_is_right(
    project: Project, liar: tuple[Project, int], alice: Path, ledger: Call
) -> None:
    """One command for each step of docs/disputes.md; the second one is what the audit says comes next."""
    with serving(project) as url:
        words = ["audit", url, "small", "--policy", "trust.toml", "--key", "alice.pem", "--sample", "9"]
        code, out = ledger(*words)
        assert code == 1
        found = re.search(r"next +ledger (trace .*), and the trainer's of the same step", out)
        assert found is not None, out
        typed = shlex.split(found[1])
        assert typed == ["trace", url, "small", "--policy", "trust.toml", "--step", str(liar[1])]
        (alice / "alice.pem").unlink()  # a trace signs nothing
        with project.open_ledger() as log:
            size = log.size
        code, out = ledger(*typed, "--out", "ours")
        assert code == 1 and "differs from the ledger in" in out
        with project.open_ledger() as log:
            assert log.size == size
    # The same trace as at home, to the bit; and the trainer's is another one.
    here = trace_step(project, "small", liar[1], threads=1)
    assert trace_record.read(Path("ours")).trace.root == here.trace.root
    theirs = str(project.root / "traces" / "trainer")
    code, out = ledger("bisect", "ours", theirs, "--names", "auditor,trainer")
    assert code == 1 and "operator" in out and Path("ours/dispute.safetensors").is_file()
    code, out = ledger("referee", "ours/dispute.safetensors")
    assert code == 0 and "auditor is right\ntrainer is wrong" in out


def test_an_exported_run_is_traced_by_folder(
    project: Project, liar: tuple[Project, int], alice: Path, tmp_path: Path, ledger: Call
) -> None:
    folder = tmp_path / "public"
    publish(project, folder)
    honest = liar[1] - 1
    code, out = ledger("trace", str(folder), "--step", str(honest), "--policy", "trust.toml", "--json")
    assert code == 0, out
    said = json.loads(out[: out.rindex("}") + 1])
    assert said["differences"] == {}
    with project.open_ledger() as log:
        run = log.find_run("small")
    assert run is not None and said["folder"] == f"traces/small-{run[:16]}/step-{honest:08d}"
    here = trace_step(project, "small", honest, threads=2)
    assert said["root"] == here.trace.root
    assert ledger("referee", f"{said['folder']}/step.safetensors")[0] == 0
    # Only one stored state was fetched, and it was held against the ledger: a damaged one is passed over.
    with Remote(str(folder)) as remote:
        place = RemotePlace(remote, tmp_path / "work", Path("trust.toml"))
        assert trace_step(place, "small", honest, threads=1).trace.root == here.trace.root
        fetched = [path for path in (tmp_path / "work").rglob("step-*") if path.is_dir()]
        assert len(fetched) == 1
        number = int(fetched[0].name.removeprefix("step-"))
        weights = folder / "replay" / "states" / run / str(number) / "weights.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        shutil.rmtree(tmp_path / "work")
        place = RemotePlace(remote, tmp_path / "work", Path("trust.toml"))
        assert trace_step(place, "small", honest, threads=1).trace.root == here.trace.root


def test_a_run_in_a_bucket_is_traced(
    project: Project, liar: tuple[Project, int], alice: Path, tmp_path: Path, ledger: Call
) -> None:
    publish(project, tmp_path / "public")
    fsspec.filesystem("memory").put(f"{tmp_path / 'public'}/", "/traced/log", recursive=True)
    step = str(liar[1] - 1)
    code, out = ledger("trace", "memory://traced/log", "small", "--step", step, "--policy", "trust.toml", "--out", "o")
    assert code == 0 and "every bit is what the ledger says" in out
    assert trace_record.read(Path("o")).trace.root == trace_step(project, "small", int(step), threads=1).trace.root


def test_what_cannot_be_fetched_or_is_not_said_is_one_line(
    project: Project, alice: Path, tmp_path: Path, ledger: Call
) -> None:
    folder = tmp_path / "public"
    publish(project, folder)
    for path in (folder / "replay" / "data").rglob("tokens-*"):
        path.unlink()
    for words, said in (
        ([str(folder), "small", "--step", "1", "--policy", "trust.toml"], "it has no replay/data"),
        ([str(folder), "small", "--step", "3"], "whose log is it? give --policy"),
        ([str(folder), "small", "--step", "99", "--policy", "trust.toml"], "has no step 99"),
        ([str(folder), "other", "--step", "3", "--policy", "trust.toml"], "no run other"),
        (["small", "--step", "3", "--policy", "trust.toml"], "are for a log elsewhere"),
        ([str(project.root), "--step", "3", "--work", "w"], "leave --policy and --work out"),
    ):
        code, out = ledger("trace", *words)
        assert code == 2 and said in out, (words, out)
        assert len([line for line in out.splitlines() if line.startswith("error")]) == 1
    assert not list(alice.rglob("trace.json"))


def test_a_project_in_another_folder_is_read_and_not_written(
    project: Project, liar: tuple[Project, int], alice: Path, ledger: Call
) -> None:
    keys = project.root / "keys"
    keys.rename(project.root / "kept-apart")
    code, _ = ledger("trace", str(project.root), "--step", str(liar[1] - 1))
    assert code == 0
    assert (project.root / "traces" / "small" / f"step-{liar[1] - 1:08d}" / "trace.json").is_file()


def test_no_trace_begins_at_a_state_that_the_record_contradicts(
    project: Project, liar: tuple[Project, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an audit: it is replayed from an earlier one."""
    from bitwitness.trainer.record_check import Fault
    from bitwitness.trainer.traces import step_trace

    step = liar[1] - 1
    before = max(number for number in range(0, step, 2))
    begun: list[int] = []
    honest = step_trace.nearest_state

    def nearest_state(*given: object) -> object:
        state, first = honest(*given)  # type: ignore[arg-type]
        begun.append(first)
        return state, first

    monkeypatch.setattr(step_trace, "nearest_state", nearest_state)
    root = trace_step(project, "small", step, threads=1).trace.root
    monkeypatch.setattr(step_trace, "check_record", lambda *_: [Fault(before, "weights", "", "", "")])
    assert trace_step(project, "small", step, threads=1).trace.root == root
    assert begun == [before, max(0, before - 2)]
    assert state_folder(project.runs_dir / "small", before).is_dir() or before == 0
