"""A small file that declares much is refused before anything is allocated or executed, by library and referee alike."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.program import Program, ProgramBuilder
from bitwitness.kernels.tracing import judge, trace_file, trace_record
from bitwitness.kernels.tracing.trace_file import SCRIPT_KEY, Slot, TraceFile, canonical
from bitwitness.kernels.tracing.trace_limits import Limits, TooMuch
from bitwitness.ledger.cli import main

from .conftest import Referee

LIMITS = Limits.of(1, 1, 2)
OPTIONS = ("--memory", "1", "--work", "1", "--threads", "2")


def program(op: str, shapes: dict[str, tuple[int, ...]], temporary: int = 0, **attributes: float) -> Program:
    builder = ProgramBuilder()
    *inputs, last = shapes
    operands = [builder.buffer(name, shapes[name], kind="input") for name in inputs]
    y = builder.buffer(last, shapes[last], kind="output")
    if temporary:
        builder.call("fill", builder.buffer("t", (temporary,)), value=0.5)
    builder.call(op, *operands, y, **attributes)
    return builder.build()


def of_program(made: Program, runs: int = 1, with_: list[str] | None = None) -> TraceFile:
    slots = [Slot(b.name, b.dtype, b.shape) for b in made.external]
    action = {"run": 0, "with": with_ or [slot.name for slot in slots]}
    return TraceFile(slots=slots, programs=[made], actions=[action] * runs)


def products(n: int, runs: int) -> TraceFile:
    square = {name: (n, n) for name in "ABC"}
    return of_program(program("matmul_nn", square, accumulate=0), runs)


def commits(count: int) -> TraceFile:
    """One slot of 512 MiB that is committed to again and again."""
    tensors = [{"name": "y", "offset": 0, "shape": [1 << 27], "slot": "y"}]
    actions = [{"commit": 0, "label": "y"}] * count
    return TraceFile(
        slots=[Slot("y", "F32", (1 << 27,))], commitments=[{"tensors": tensors, "type": "weights/1"}], actions=actions
    )


def attention(rows: int) -> TraceFile:
    """Quadratic in the window, and with scratch memory of its length: rows of one head, of one element."""
    builder = ProgramBuilder()
    shapes = {"qkv": (rows, 3), "start": (rows,), "o": (rows, 1), "m": (rows, 1), "l": (rows, 1)}
    kinds: dict[str, Any] = {"qkv": "input", "start": "input"}
    dtypes: dict[str, Any] = {"start": "I32"}
    made = [
        builder.buffer(name, shape, dtypes.get(name, "F32"), kinds.get(name, "output"))
        for name, shape in shapes.items()
    ]
    builder.call("attention", *made, heads=1, kv_heads=1, window=rows, scale=1.0)
    return of_program(builder.build())


FILES: dict[str, tuple[Callable[[], TraceFile], str]] = {
    "slots": (lambda: TraceFile(slots=[Slot("a", "F32", (1 << 40,))]), "it takes 4097 GiB of memory"),
    "slots together": (
        lambda: TraceFile(slots=[Slot(f"s{i}", "I16", (1 << 26,)) for i in range(9)]),
        "it takes 2 GiB of memory, more than the 1 allowed; see --memory",
    ),
    "temporary": (lambda: of_program(program("fill", {"y": (4,)}, 1 << 30, value=0.5)), "it takes 5 GiB of memory"),
    "leaves": (lambda: of_program(program("fill", {"y": (1,)}, value=0.5), 1 << 20), "it takes 3 GiB of memory"),
    "one product": (
        lambda: products(1 << 13, 2),
        "it takes 2*10^12 multiply-adds, more than the 1 allowed; see --work",
    ),
    "many runs": (lambda: products(1 << 10, 1 << 12), "it takes 7*10^12 multiply-adds"),
    "a window": (lambda: attention(1 << 20), "it takes 3*10^12 multiply-adds"),
    "scratch of a window": (lambda: attention(1 << 25), "it takes 13 GiB of memory"),
    "commitments": (lambda: commits(1 << 7), "it takes 3*10^12 multiply-adds"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_takes_too_much_is_refused(name: str, tmp_path: Path, referee: Referee) -> None:
    make, says = FILES[name]
    path = tmp_path / "small.safetensors"
    trace_file.write(path, make())
    begun = time.monotonic()
    with pytest.raises(TooMuch) as refused:
        trace_file.read(path, LIMITS)
    assert says in str(refused.value)
    verdict = referee(path, *OPTIONS)
    assert verdict.status == 2 and verdict.facts == {}
    # Both add up the same, but for scratch memory: that goes by the instruction set.
    assert "scratch" in name or verdict.error == f"referee: {refused.value}\n"
    assert says.split()[-1] in verdict.error
    assert time.monotonic() - begun < 20


def test_what_fits_is_read_and_run(tmp_path: Path, referee: Referee) -> None:
    trace_file.write(tmp_path / "fits", products(1 << 8, 3))
    assert trace_file.read(tmp_path / "fits", LIMITS).actions
    assert referee(tmp_path / "fits", *OPTIONS).status == 0


def test_memory_of_the_file_itself(tmp_path: Path, referee: Referee) -> None:
    """A hole of 2 GiB is not read in."""
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(TooMuch, match="it takes 2 GiB of memory"):
        trace_file.read(path, LIMITS)
    assert "it takes 2 GiB of memory" in referee(path, *OPTIONS).error
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        trace_file.read(tmp_path / "fifo", LIMITS)
    verdict = referee(tmp_path / "fifo", *OPTIONS, timeout=20)
    assert verdict.status == 2 and "it is not a regular file" in verdict.error


def header_of(text: str) -> bytes:
    text += " " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text.encode()


def test_memory_of_the_script(tmp_path: Path, referee: Referee) -> None:
    """Of JSON, two bytes make a value of a hundred: what is read of them counts before they are read."""
    values = "[" + ",".join(["0"] * 3_000_000) + "]"
    script = json.dumps({"__metadata__": {SCRIPT_KEY: '{"actions":' + values + "}"}}, separators=(",", ":"))
    path = tmp_path / "values.safetensors"
    path.write_bytes(header_of(script))
    tracemalloc.start()
    try:
        with pytest.raises(TooMuch, match="it takes 2 GiB of memory"):
            trace_file.read(path, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert "it takes 2 GiB of memory" in referee(path, *OPTIONS).error


def test_shapes_of_any_length_and_programs_of_any(tmp_path: Path) -> None:
    """Neither is multiplied out, or planned, to find that it is too large."""
    base = json.loads(products(4, 1).script)
    for change, says in (
        (lambda s: s["programs"][0]["buffers"][0].update(shape=[(1 << 53) - 1] * 100_000), "at most 4 dimensions"),
        (lambda s: s["programs"][0]["calls"][0]["operands"][0].update(shape=[2] * 100_000), "at most 4 dimensions"),
        (lambda s: s["programs"][0].update(calls=s["programs"][0]["calls"] * 20_000), "multiply-adds"),
    ):
        script = json.loads(json.dumps(base))
        change(script)
        begun = time.monotonic()
        with pytest.raises(KernelError, match=says):
            trace_file.of_script(canonical(script), "script", LIMITS)
        assert time.monotonic() - begun < 10


def test_a_recorded_step_has_the_same_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], referee: Referee
) -> None:
    """`ledger bisect` and `ledger referee` say in one line what would be needed, and take more where they are told."""
    from bitwitness.kernels.tracing import trace

    file = products(1 << 8, 3)
    trace_record.write(tmp_path / "step", file, trace.run(file, 2), {}, {})
    with pytest.raises(TooMuch, match="multiply-adds"):
        trace_record.read(tmp_path / "step", Limits(work=1e7))
    with pytest.raises(TooMuch, match="of memory"):
        trace_record.read(tmp_path / "step", Limits(memory=1 << 20))
    large = products(1 << 13, 2)
    trace_file.write(tmp_path / "step" / "step.safetensors", large)
    value = json.loads((tmp_path / "step" / "trace.json").read_text())
    (tmp_path / "step" / "trace.json").write_text(canonical({**value, "script": large.script}) + "\n")
    for command in (["bisect", "step", "step"], ["referee", "step/step.safetensors"]):
        arguments = [command[0], *(str(tmp_path / name) for name in command[1:]), "--memory", "1", "--work", "1"]
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "it takes 2*10^12 multiply-adds, more than the 1 allowed; see --work" in error
    assert main([*arguments[:2], "--memory", "0"]) == 2
    capsys.readouterr()


def test_the_referee_is_told_the_limits(tmp_path: Path) -> None:
    """The program that is named is given both, and a path that it takes for no option."""
    said = tmp_path / "program"
    said.write_text('#!/bin/sh\nprintf "%s\\n" "{\\"fact\\":\\"$*\\"}"\n')
    said.chmod(0o755)
    trace_file.write(tmp_path / "fits", TraceFile(tensors={"a": np.zeros(1, np.float32)}))
    (fact,) = judge.judge(tmp_path / "fits", threads=2, program=said, gib=3, tera=7).facts
    assert str(fact["fact"]).startswith("--json --threads 2 --memory 3 --work 7 /")
