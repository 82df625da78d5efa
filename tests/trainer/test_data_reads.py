"""What a run read, told from its entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import keys
from bitwitness.ledger.cli import main
from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.project import Project
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.data import BuildOptions, Dataset, DatasetDamaged, WindowStream, build
from bitwitness.trainer.data.reads import (
    NoSuchStep,
    reads_of_documents,
    reads_of_step,
    samples_of_step,
    training_stream,
)
from bitwitness.trainer.data.search import documents_at_path, documents_with_text
from bitwitness.trainer.history import Entry, RunHistory

STEPS, WINDOWS = 9, 6


def history(dataset: Commitment, *, first_cursor: int = 0) -> RunHistory:
    """A run of nine steps of six windows, as far as its entries speak of data."""
    config = parse_config(
        {
            "run": {"name": "r", "steps": STEPS, "seed": 5},
            "data": {"train": "d", "window": 16, "shards": 2, "windows_per_shard": 3},
            "model": {"preset": "nano"},
        },
        where="test",
    )
    datasets = [{"name": "d", "role": "train", "entry": "00" * 32, "dataset": dataset.to_json()}]
    entries = [
        Entry(0, "run", {"name": "r", "config": config.resolved(), "datasets": datasets, "control": {"step": 0}})
    ]
    for step in range(1, STEPS + 1):
        control = {"step": step, "tokens": 0, "cursor": first_cursor + step * WINDOWS}
        entries.append(Entry(step, "step", {"computed": {"step": step, "control": control}}))
    return RunHistory("ab" * 32, entries)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    for number in range(30):
        (tmp_path / "text" / f"{number:02d}.txt").write_text(f"text {number:02d}, " * (1 + number % 4))
    options = BuildOptions("d", held_out="0")
    build(tmp_path / "data", [str(tmp_path / "text")], options, signer=keys.generate("trainer"))
    return tmp_path / "data"


def open_stream(data: Path) -> tuple[RunHistory, WindowStream]:
    made = history(Dataset.open(data, "d").commitment)
    return made, training_stream(made, data)


def test_a_step_read_the_windows_before_its_cursor(data: Path) -> None:
    run, stream = open_stream(data)
    reads = reads_of_step(run, stream, 3)
    assert [read.sample for read in reads] == list(range(12, 18)) == list(samples_of_step(run, 3))
    assert [read.window for read in reads] == list(stream.samples(12, 6).windows)
    for read in reads:
        assert list(read.readings) == stream.where(read.sample)
    for step in (0, 10, -1):
        with pytest.raises(NoSuchStep, match="1 to 9"):
            reads_of_step(run, stream, step)


def test_steps_that_read_a_document_are_those_that_say_so(data: Path) -> None:
    run, stream = open_stream(data)
    for document in range(30):
        expected = [
            (read.step, read.sample)
            for step in range(1, STEPS + 1)
            for read in reads_of_step(run, stream, step)
            if document in {reading.document for reading in read.readings}
        ]
        assert [(read.step, read.sample) for read in reads_of_documents(run, stream, {document})] == expected


def test_other_data_than_the_runs_is_refused(data: Path) -> None:
    run = history(Commitment("dataset/1", 30, "11" * 32))
    with pytest.raises(DatasetDamaged, match="is not the ledger's"):
        training_stream(run, data)


def test_documents_by_text_and_path(data: Path) -> None:
    _, stream = open_stream(data)
    (found,) = documents_with_text(stream.dataset, b"text 07")
    assert found.path == "text/07.txt" and found.offsets == (0, 9, 18, 27)
    assert found.tokens[1] - found.tokens[0] == found.size + 1
    assert [each.path for each in documents_at_path(stream.dataset, "text/07.txt")] == ["text/07.txt"]
    assert len(list(documents_at_path(stream.dataset, "text/1?.txt"))) == 10
    assert len(list(documents_at_path(stream.dataset, "07.txt"))) == 1


def test_where_and_find_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project.create(tmp_path / "project")
    (tmp_path / "text").mkdir()
    for number in range(30):
        (tmp_path / "text" / f"{number:02d}.txt").write_text(f"text {number:02d}, " * 4)
    place = ["--project", str(project.root)]
    assert main(["data", "build", str(tmp_path / "text"), "--name", "d", "--held-out", "0", *place]) == 0
    run = history(Dataset.open(project.data_dir, "d").commitment)
    monkeypatch.setattr("bitwitness.trainer.history.open_run", lambda ledger, name: run)
    stream = training_stream(run, project.data_dir)

    def answer(*arguments: str) -> Any:
        capsys.readouterr()
        assert main(["data", *arguments, "--run", "r", *place]) == 0
        return capsys.readouterr().out

    told = json.loads(answer("where", "--step", "2", "--json"))
    assert told["run"] == run.run and told["dataset"] == "d" and told["step"] == 2
    expected = reads_of_step(run, stream, 2)
    assert [sample["window"] for sample in told["samples"]] == [read.window for read in expected]
    first = expected[0].readings[0]
    assert told["samples"][0]["documents"][0] == {
        "dataset": "d", "document": first.document, "path": first.path, "line": 0,
        "tokens": list(first.tokens), "bytes": list(first.bytes), "source": first.source,
    }  # fmt: skip
    assert f"  {first.path}  bytes {first.bytes[0]}-{first.bytes[1]}" in answer("where", "--step", "2")
    steps = json.loads(answer("find", "--document", first.path, "--json"))["reads"]
    assert {"step": 2, "sample": expected[0].sample, "window": expected[0].window} in steps
    assert "steps of r: " in answer("find", "text 07")
    # --limit is of what is listed; the steps are those of every document that was found
    every = json.loads(answer("find", "text ", "--json"))
    few = json.loads(answer("find", "text ", "--limit", "1", "--json"))
    assert len(every["documents"]) == 30 and len(few["documents"]) == 1 and few["more"] and not every["more"]
    assert few["reads"] == every["reads"] != []
    assert answer("find", "text ", "--limit", "1").splitlines()[-1] == answer("find", "text ").splitlines()[-1]
    assert main(["data", "where", "--run", "r", "--step", "99", *place]) == 2
    assert "no step 99" in capsys.readouterr().err
