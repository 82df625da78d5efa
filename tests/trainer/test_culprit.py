"""Two parties' traces of one step: the first operator that differs, what it read, and who is right."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.program import Program
from bitwitness.kernels.tracing import culprit, judge, trace, trace_file, trace_record
from bitwitness.kernels.tracing.stepwise import StepwiseExecutor
from bitwitness.kernels.tracing.trace_record import TraceRecord
from bitwitness.ledger.cli import main
from bitwitness.ledger.project import Project
from bitwitness.trainer import replay
from bitwitness.trainer.auditing.culprit_text import locate
from bitwitness.trainer.data.reads import training_stream
from bitwitness.trainer.history import open_run
from bitwitness.trainer.material import LocalMaterial
from bitwitness.trainer.run import train
from bitwitness.trainer.state import State
from bitwitness.trainer.step import Workspace
from bitwitness.trainer.traces import step_trace

from .conftest import make_project, small_config

STEP = 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("culprit") / "project")
    train(project, small_config(), threads=2)
    return project


@pytest.fixture(scope="module")
def honest(trained: Project) -> Path:
    folder = trained.root / "honest"
    step_trace.trace_step(trained, "r", STEP, threads=2).write(folder)
    return folder


Ledger = Callable[..., tuple[int, str]]


def other_party(
    project: Project,
    folder: Path,
    *,
    after: Callable[[Program, int, int, Any], None] | None = None,
    state: Callable[[State], None] = lambda state: None,
    windows_at_once: int = 0,
) -> TraceRecord:
    """The trace of a party whose operators write something else, or who changes the state before the step."""
    with project.open_ledger() as ledger:
        history = open_run(ledger, "r")
    stream = training_stream(history, project.data_dir)
    workspace = Workspace(history.config, 2)
    states = LocalMaterial(project).states(history)
    before, _ = replay.nearest_state(history, states, workspace, STEP - 1, history.states)
    for _ in replay.replay(history, before, workspace, stream, STEP - 1):
        pass
    state(before)

    def make(program: Program, threads: int) -> StepwiseExecutor:
        if after is None:
            return StepwiseExecutor(program, threads)
        return StepwiseExecutor(program, threads, lambda *where: after(program, *where))

    found = step_trace.record_traced(history, before, stream, 2, windows_at_once, make=make)
    found.write(folder)
    return trace_record.read(folder)


def flip(op: str, number: int, element: int, bit: int) -> Callable[[Program, int, int, Any], None]:
    """Flip a bit of the `number`-th output that calls of an operator write."""
    left = [number]

    def after(program: Program, call: int, operand: int, written: Any) -> None:
        if program.calls[call].op == op:
            left[0] -= 1
            if left[0] == -1:
                written.reshape(-1).view(np.uint32)[element] ^= np.uint32(1 << bit)

    return after


@pytest.fixture
def ledger(trained: Project, capsys: pytest.CaptureFixture[str]) -> Ledger:
    """ledger(words…) -> (exit status, all that was printed)."""

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["--project", str(trained.root), *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


def test_the_trace_is_that_of_the_referee_and_of_the_library(honest: Path) -> None:
    record = trace_record.read(honest)
    assert record.file is not None and len(record.values) == len(record.trace.chunks)
    assert trace.run(record.file, 1).root == record.trace.root
    judged = judge.judge(honest / trace_record.STEP, threads=2)
    assert judged.status == 0
    assert {fact["verdict"] for fact in judged.facts if fact["fact"] == "commitment"} == {"as-expected"}


def test_values_are_kept_where_they_fit_and_make_no_difference(trained: Project, honest: Path) -> None:
    root = trace_record.read(honest).trace.root
    none = step_trace.trace_step(trained, "r", STEP, threads=1, values=0)
    few = step_trace.trace_step(trained, "r", STEP, threads=3, values=100_000)
    one = step_trace.trace_step(trained, "r", STEP, threads=1, only=(0, 3))
    assert {none.trace.root, few.trace.root, one.trace.root} == {root}
    assert [len(found.values) for found in (none, few, one)] == [0, 0, 1]
    assert not none.differences


@pytest.mark.parametrize(
    ("op", "number", "element", "bit", "tensor", "layer"),
    [
        ("attention", 3, 40, 9, "layer1.o", 1),
        ("swiglu_backward", 2, 7, 22, "layer1.ab", 1),
        ("adamw", 2, 11, 0, "", None),
    ],
)
def test_the_first_operator_that_differs_is_found_and_judged(
    trained: Project,
    honest: Path,
    tmp_path: Path,
    op: str,
    number: int,
    element: int,
    bit: int,
    tensor: str,
    layer: int,
) -> None:
    ours = trace_record.read(honest)
    theirs = other_party(trained, tmp_path / "theirs", after=flip(op, number, element, bit))
    found = culprit.find(ours, theirs, names=("auditor", "trainer"), threads=2)
    assert found is not None and found.place is not None and found.element is not None and found.dispute is not None
    assert (found.kind, found.place.op, found.missing) == ("operator", op, ())
    assert found.questions <= 1 + math.ceil(math.log2(ours.trace.size))
    assert (found.element.index, found.element.ulp) == (element, 1 << bit)
    assert int(found.element.ours, 16) ^ int(found.element.theirs, 16) == 1 << bit
    located = locate(found, ours)
    if tensor:
        assert (located.tensor, located.layer) == (tensor, layer)
    trace_file.write(tmp_path / "dispute", found.dispute)
    judged = judge.judge(tmp_path / "dispute", threads=1)
    assert (judged.status, judged.right, judged.wrong) == (0, ("auditor",), ("trainer",))


def test_an_element_of_a_gradient_is_named_by_its_tensor(trained: Project, honest: Path, tmp_path: Path) -> None:
    """q, k and v are one product; the element is in k."""
    theirs = other_party(trained, tmp_path, after=flip("matmul_bfp", 16, 32 * 32 + 3 * 32 + 5, 13))
    record = trace_record.read(honest)
    found = culprit.find(record, theirs)
    assert found is not None and found.place is not None
    assert record.places[found.leaf] == found.place
    located = locate(found, record)
    assert located.tensor == "model.layers.1.self_attn.k_proj.weight (gradient)"
    assert (located.index, located.shape, located.layer) == ((3, 5), (16, 32), 1)


def test_a_state_that_was_changed_before_the_step_is_an_input(trained: Project, honest: Path, tmp_path: Path) -> None:
    def change(state: State) -> None:
        state.m[100] += 1.0

    found = culprit.find(trace_record.read(honest), other_party(trained, tmp_path, state=change))
    assert found is not None and found.element is not None
    assert (found.kind, found.slot, found.element.index) == ("input", "m", 100)
    assert locate(found, trace_record.read(honest)).tensor == "model.embed_tokens.weight (first moment)"


def test_what_the_host_changes_between_runs_is_found_where_it_happened(
    trained: Project, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Workspace.sum_squares

    def wrong(self: Workspace, gradient: Any) -> float:
        gradient[50] += 1.0  # after the fold, by no operator
        return true(self, gradient)

    def from_now_on(state: State) -> None:
        monkeypatch.setattr(Workspace, "sum_squares", wrong)

    found = culprit.find(trace_record.read(honest), other_party(trained, tmp_path, state=from_now_on))
    assert found is not None and found.element is not None
    assert (found.kind, found.slot, found.element.index) == ("host", "grads", 50)
    assert "by no operator" in found.what


def test_other_programs_are_told_apart(trained: Project, honest: Path, tmp_path: Path) -> None:
    found = culprit.find(trace_record.read(honest), other_party(trained, tmp_path, windows_at_once=1))
    assert found is not None
    assert found.kind == "program" and "--windows-at-once" in found.what


def test_the_commands(trained: Project, ledger: Ledger, honest: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    other_party(trained, theirs, after=flip("rmsnorm_backward", 1, 3, 30))
    ours = tmp_path / "ours"
    code, out = ledger("trace", "r", "--step", str(STEP), "--out", str(ours))
    assert code == 0 and "every bit is what the ledger says" in out
    assert ledger("bisect", str(ours), str(honest))[0] == 0
    code, out = ledger("bisect", str(ours), str(theirs), "--names", "auditor,trainer")
    assert code == 1 and "rmsnorm_backward" in out and f"{1 << 30:,} ULP" in out and "element   [3]" in out
    code, out = ledger("referee", str(ours / "dispute.safetensors"))
    assert code == 0 and "auditor is right\ntrainer is wrong" in out
    code, out = ledger("referee", str(ours / trace_record.STEP))
    assert code == 0 and "step 4 weights" in out
    code, out = ledger("bisect", str(ours), str(theirs), "--json", "--out", str(tmp_path / "d"))
    found = json.loads(out)
    assert (found["op"], found["index"], found["ulp"]) == ("rmsnorm_backward", [3], 1 << 30)
    # Of trace.json alone the operator is told, and how to get the other party's values.
    (alone := tmp_path / "alone.json").write_bytes((theirs / "trace.json").read_bytes())
    kept = (theirs / trace_record.STEP).read_bytes()
    code, out = ledger("bisect", str(ours), str(theirs), "--out", str(theirs / trace_record.STEP))
    assert code == 2 and "is there already, and is no dispute; name another file with --out" in out
    assert (theirs / trace_record.STEP).read_bytes() == kept
    code, out = ledger("bisect", str(ours), str(alone))
    assert code == 1 and "theirs: the values are not in this trace; ask for `ledger trace r --step 4 --call" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trace", "r", "--step", "9"], "it has 1 to 6"),
        (["trace", "r", "--step", "4", "--out", "{honest}"], "give another --out"),
        (["trace", "r", "--step", "4", "--call", "0"], "such as 0.17"),
        (["trace", "r", "--step", "4", "--call", "0.9999"], "has no call 0.9999"),
        (["bisect", "{honest}", "nowhere"], "`ledger trace` makes one"),
        (["bisect", "{honest}", "{honest}", "--names", "a"], "two different names"),
        (["referee", "nowhere"], "no such file"),
        (["referee", "{honest}/trace.json"], "header"),
        (["referee", "{honest}/step.safetensors", "--program", "/nowhere"], "no such file"),
        (["referee", "{honest}/step.safetensors", "--program", "/bin/echo"], "does not speak as the referee"),
    ],
)
def test_mistakes_are_one_line(ledger: Ledger, honest: Path, words: list[str], said: str) -> None:
    code, out = ledger(*(word.replace("{honest}", str(honest)) for word in words))
    assert code == 2 and said in out
    assert len([line for line in out.splitlines() if line.startswith("error")]) == 1


def test_without_a_referee_the_message_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitwitness.kernels.tracing.judge._native.__file__", "/nowhere/native.so")
    monkeypatch.setattr("bitwitness.kernels.tracing.judge.__file__", "/nowhere/kernels/tracing/judge.py")
    with pytest.raises(judge.NoReferee, match="make referee"):
        judge.find_referee()


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["leaves"].pop(),
        lambda value: value["leaves"][5].update(digest="00" * 32),
        lambda value: value["leaves"][5].update(digest=5),
        lambda value: value["leaves"][-1].update(call=0),
        lambda value: value["leaves"][0].update(script="00" * 32),
        lambda value: value["leaves"].insert(0, []),
        lambda value: value.update(root="00" * 32),
        lambda value: value.update(format="bitwitness.step-trace/2"),
        lambda value: value.update(script=value["script"].replace("adamw", "adamv")),
        lambda value: value.update(script="[]"),
        lambda value: value["chunks"].update({"3": ["00" * 32, "11" * 32]}),
        lambda value: value.update(extra=1),
        lambda value: value.update(about=[]),
    ],
)
def test_a_record_that_does_not_hold_together_is_refused(honest: Path, tmp_path: Path, change: Any) -> None:
    value = json.loads((honest / "trace.json").read_text())
    change(value)
    path = tmp_path / "trace.json"
    path.write_text(trace_file.canonical(value))
    with pytest.raises(KernelError):
        trace_record.read(path)


@pytest.mark.parametrize("name", [trace_record.STEP, trace_record.VALUES])
def test_tensors_that_are_not_those_of_the_trace_are_refused(honest: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(honest, folder)
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(trace_record.TraceRecordError, match="not what the trace says"):
        trace_record.read(folder)


def test_distances() -> None:
    def distance(a: float, b: float) -> int | None:
        found = culprit.first_element(np.array([0.0, a], np.float32), np.array([0.0, b], np.float32))
        return None if found is None else found.ulp

    assert distance(1.0, float(np.nextafter(np.float32(1), np.float32(2)))) == 1
    assert distance(-0.0, 0.0) == 0
    assert distance(-1e-45, 1e-45) == 2
    assert distance(1.0, math.nan) is None
    assert distance(math.nan, math.nan) is None
    ints = culprit.first_element(np.array([-3], np.int32), np.array([4], np.int32))
    assert ints == culprit.Element(0, "fffffffd", "00000004", 7, floating=False)


def test_the_walk_through_of_the_page(
    trained: Project, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/disputes.md, command by command, on a run called r in the place of demo; the drill has its own tests."""
    page = (Path(__file__).parents[2] / "docs" / "disputes.md").read_text(encoding="utf-8")
    commands = [line.removeprefix("    $ ledger ").split() for line in page.splitlines() if line.startswith("    $ ")]
    assert [words[0] for words in commands] == ["audit", "trace", "bisect", "referee", "drill"]
    monkeypatch.chdir(tmp_path)
    other_party(trained, tmp_path / "theirs", after=flip("matmul_bfp", 16, 100, 3))
    ends = []
    for words in commands[:-1]:
        code, out = ledger(*("r" if word == "demo" else word for word in words))
        ends.append((code, out.strip().splitlines()[-1]))
    assert [code for code, _ in ends] == [0, 0, 1, 0]
    assert ends[2][1] == "wrote ours/dispute.safetensors: `ledger referee ours/dispute.safetensors` says who is right"
    assert ends[3][1].startswith("trainer is wrong: claims ")
