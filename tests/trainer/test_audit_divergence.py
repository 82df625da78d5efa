"""Divergence that is not fraud: each has an outcome of its own with its reason, and none is a mismatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bitwitness.kernels import selftest
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.project import Project
from bitwitness.trainer import replay
from bitwitness.trainer.auditing.audit import AuditReport, audit
from bitwitness.trainer.memory import NotEnoughMemory
from bitwitness.trainer.run import train
from bitwitness.trainer.step import Workspace

from .conftest import make_project, small_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("divergence") / "project")
    train(project, small_config(steps=2), threads=2)
    return project


def reasons(project: Project, report: AuditReport) -> set[tuple[str, str | None]]:
    """Outcome and reason of every unit, as the signed entry says them."""
    assert report.entry is not None
    with project.open_ledger() as ledger:
        said = open_envelope(ledger.entry(report.entry)).statement["predicate"]
    assert said["result"] == report.result and said["steps"] == len(report.compared)
    return {(unit["outcome"], unit.get("reason")) for unit in said["units"]}


def wrong_from(call: int) -> Callable[..., dict[str, str]]:
    """A self-test that gives another digest from its call number `call` on."""
    honest, calls = selftest.digests, []

    def digests(threads: int = 2) -> dict[str, str]:
        calls.append(1)
        found = honest(threads)
        return found if len(calls) < call else {**found, "add": "0" * 64}

    return digests


@pytest.mark.parametrize("call", [1, 2])
def test_a_processor_that_computes_wrong(trained: Project, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    computed = []
    honest = Workspace.update

    def update(self: Workspace, state: Any, gradient: Any, scalars: Any) -> None:
        computed.append(1)
        honest(self, state, gradient, scalars)
        state.params[0] += 1.0  # what such a processor might do

    monkeypatch.setattr(Workspace, "update", update)
    assert audit(trained, "r", threads=1).result == "mismatch"
    computed.clear()
    monkeypatch.setattr(selftest, "digests", wrong_from(call))
    report = audit(trained, "r", threads=1)
    assert report.result == "inconclusive" and not report.compared
    assert reasons(trained, report) == {
        ("inconclusive", "this machine computes wrong: its self-test fails at add"),
    }
    assert bool(computed) == (call == 2)  # found before the replay, nothing is replayed


def test_too_little_memory(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise NotEnoughMemory(2**40, 2**30)

    monkeypatch.setattr(replay, "require_memory", refuse)
    report = audit(trained, "r", threads=1)
    assert reasons(trained, report) == {("inconclusive", "the replay does not fit this machine's memory")}


def test_memory_that_runs_out(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Workspace, *given: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Workspace, "shard_gradient", full)
    report = audit(trained, "r", threads=1)
    assert ("inconclusive", "the replay does not fit this machine's memory") in reasons(trained, report)
    assert report.result == "inconclusive"


def test_another_version_of_the_arithmetic(trained: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "difference", lambda *given: "add is version 2 here, 1 in the run")
    report = audit(trained, "r", threads=1)
    assert reasons(trained, report) == {("inconclusive", "add is version 2 here, 1 in the run")}


def test_what_is_withheld_covers_nothing(trained: Project, tmp_path: Any) -> None:
    data = trained.data_dir / "text"
    data.rename(tmp_path / "withheld")
    try:
        report = audit(trained, "r", threads=1)
    finally:
        (tmp_path / "withheld").rename(data)
    assert report.result == "unavailable" and not report.compared
    assert ("unavailable", "the data is not at hand") in reasons(trained, report)
