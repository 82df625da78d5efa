"""What a record says against itself or its configuration is found without computing a step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from bitwitness.ledger.jcs import f32_hex, f64_hex
from bitwitness.trainer.history import RunHistory, open_verified_run
from bitwitness.trainer.record_check import RecordWrong, check_record, require_steps
from bitwitness.trainer.run import train

from .conftest import make_project, small_config

Change = Callable[[dict[str, Any]], object]
OTHER = {"type": "weights/1", "size": 11, "root": "ab" * 32}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunHistory, str]:
    project = make_project(tmp_path_factory.mktemp("record") / "p")
    train(project, small_config(eval_every=3, eval_windows=2), threads=2)
    with project.open_ledger() as ledger:
        return open_verified_run(project, ledger, "r"), ledger.origin


def changed(record: RunHistory, kind: str, step: int, change: Change) -> RunHistory:
    entries = copy.deepcopy(record.entries)
    for entry in entries:
        said = entry.predicate.get("computed", entry.predicate) if kind == "step" else entry.predicate
        if entry.kind == kind and said.get("step", 0) == step:
            change(said)
    history = RunHistory(record.run, entries)
    history.datasets = record.datasets
    return history


def scalars(**values: str) -> Change:
    return lambda said: said["scalars"].update(values)


def test_an_honest_record_has_no_fault(record: tuple[RunHistory, str]) -> None:
    assert check_record(*record) == []


@pytest.mark.parametrize(
    ("kind", "step", "change", "at", "field"),
    [
        ("run", 0, lambda said: said.update(seed="00000000deadbeef"), 0, "seed"),
        ("run", 0, lambda said: said.update(name="s"), 0, "name"),
        ("run", 0, lambda said: said.update(steps=5), 0, "steps"),
        ("run", 0, lambda said: said.update(record="9"), 0, "record"),
        ("run", 0, lambda said: said.update(origin="other.log/x"), 0, "origin"),
        ("run", 0, lambda said: said["constants"].update(magic="cc" * 32), 0, "constants"),
        ("run", 0, lambda said: said["control"].update(cursor=4), 0, "control"),
        ("run", 0, lambda said: said["config"]["optimizer"].update(clip=1), 0, "config"),
        ("run", 0, lambda said: said["datasets"].pop(), 0, "datasets"),
        ("run", 0, lambda said: said["datasets"].append(said["datasets"][0]), 0, "datasets"),
        ("run", 0, lambda said: said["datasets"][0].update(entry=said["datasets"][1]["entry"]), 0, "datasets"),
        ("step", 2, scalars(learning_rate=f32_hex(0.5)), 2, "scalars"),
        ("step", 2, scalars(step_size=f32_hex(0.5)), 2, "scalars"),
        ("step", 2, scalars(inv_sqrt_bias2=f32_hex(0.5)), 2, "scalars"),
        ("step", 2, scalars(decay=f32_hex(0.5)), 2, "scalars"),
        ("step", 2, scalars(clip=f32_hex(0.5)), 2, "scalars"),
        ("step", 2, scalars(grad_scale=f32_hex(0.5)), 2, "scalars"),
        ("step", 2, scalars(more=f32_hex(0.5)), 2, "scalars"),
        ("step", 3, lambda said: said.update(tokens=145), 3, "tokens"),
        ("step", 3, lambda said: said["control"].update(tokens=1), 3, "control"),
        ("step", 3, lambda said: said["control"].update(cursor=1), 3, "control"),
        ("step", 3, lambda said: said.pop("optimizer"), 3, "optimizer"),
        ("step", 3, lambda said: said.update(loss=f64_hex(float("nan"))), 3, "loss"),
        ("step", 3, lambda said: said.update(norm=f64_hex(-1.0)), 3, "norm"),
        ("state", 4, lambda said: said.update(weights=OTHER), 4, "weights"),
        ("state", 4, lambda said: said.update(step=500), 4, "step"),
        ("eval", 3, lambda said: said.update(state="ee" * 32), 3, "state"),
        ("eval", 3, lambda said: said.update(weights=OTHER), 3, "weights"),
        ("eval", 3, lambda said: said["computed"].update(mean=f64_hex(0.1)), 3, "mean"),
        ("eval", 3, lambda said: said["dataset"].update(name="mine"), 3, "dataset"),
        ("end", 6, lambda said: said.update(weights=OTHER), 6, "weights"),
        ("end", 6, lambda said: said.update(step=99), 6, "step"),
    ],
)
def test_a_fault_is_found_where_it_stands(
    record: tuple[RunHistory, str], kind: str, step: int, change: Change, at: int, field: str
) -> None:
    history, origin = record
    faults = check_record(changed(history, kind, step, change), origin)
    assert faults[0].step == at
    assert field in [fault.field for fault in faults if fault.step == at]
    assert all(fault.reason.isascii() and len(fault.reason) < 200 for fault in faults)


@pytest.mark.parametrize("step", [2, 1000])
def test_steps_are_one_two_three(record: tuple[RunHistory, str], step: int) -> None:
    history = changed(record[0], "step", 5, lambda said: said.update(step=step))
    with pytest.raises(RecordWrong, match="where step 5 is due"):
        require_steps(history)


def test_halts_and_resumes_name_what_is_there(record: tuple[RunHistory, str]) -> None:
    history, origin = record
    at = next(n for n, entry in enumerate(history.entries) if entry.kind == "state" and entry.predicate["step"] == 4)
    stored = history.entries[at].predicate
    for kind, said, field in (
        ("halt", {"step": 4, "state": stored["state"]}, None),
        ("halt", {"step": 4, "state": "aa" * 32}, "state"),
        ("halt", {"step": 77, "state": stored["state"]}, "step"),
        ("resume", {"step": 4, "from": 4, "state": stored["state"]}, None),
        ("resume", {"step": 4, "from": 0, "state": history.genesis["state"]}, None),
        ("resume", {"step": 4, "from": 40, "state": stored["state"]}, "from"),
        ("resume", {"step": 4, "from": 2, "state": stored["state"]}, "state"),
    ):
        entries = list(history.entries)
        entries.insert(at + 1, type(entries[0])(99, kind, said))
        other = RunHistory(history.run, entries)
        other.datasets = history.datasets
        assert [fault.field for fault in check_record(other, origin)] == ([] if field is None else [field])


def test_a_missing_dataset_entry_is_a_fault(record: tuple[RunHistory, str]) -> None:
    history = RunHistory(record[0].run, record[0].entries)
    assert {fault.field for fault in check_record(history, record[1])} == {"datasets"}
