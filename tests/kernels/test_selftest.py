"""The self-test: its digests are the golden ones on every machine, thread count and instruction set."""

import json
import os
import subprocess
import sys

import pytest

from bitwitness.kernels import _native, selftest
from bitwitness.kernels import reference as exact
from bitwitness.kernels.ops import OPERATORS


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_digests_are_golden(golden, threads):
    found = selftest.digests(threads)
    expected = golden("arith-1.json")
    for name, digest in found.items():
        expected.check(name, digest)
    assert expected.update or found.keys() == expected.values.keys()


def test_golden_file_is_what_the_exact_reference_computes(golden, monkeypatch):
    """Once more without C++: a golden file written by the code it judges would prove nothing."""
    monkeypatch.setattr(
        selftest, "call", lambda op, *operands, threads, **attributes: exact.call(op, *operands, **attributes)
    )
    expected = golden("arith-1.json").values
    for name, digest in selftest.digests().items():
        assert digest == expected[name], name


def test_every_operator_is_in_it(golden):
    assert {op for op in OPERATORS} <= golden("arith-1.json").values.keys()


@pytest.mark.parametrize("isa", _native.available_isas())
def test_command(isa):
    command = [sys.executable, "-m", "bitwitness.kernels", "--threads", "3", "--json"]
    run = subprocess.run(
        command, env={**os.environ, "BITWITNESS_ISA": isa}, capture_output=True, text=True, check=False
    )
    report = json.loads(run.stdout)
    assert (run.returncode, report["isa"], report["wrong"]) == (0, isa, [])


def test_unknown_instruction_set_is_one_line_and_exit_2():
    run = subprocess.run(
        [sys.executable, "-m", "bitwitness.kernels"],
        env={**os.environ, "BITWITNESS_ISA": "vax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.strip() == (
        f"BITWITNESS_ISA=vax cannot run here; this processor runs {', '.join(_native.available_isas())}"
    )
