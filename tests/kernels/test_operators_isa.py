"""The same tests under every instruction set that this processor can run, and under a flushing control word."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from bitwitness.kernels import _native
from bitwitness.kernels.program import call

HERE = pathlib.Path(__file__).parent
OTHERS = [isa for isa in _native.available_isas() if isa != _native.isa()]


@pytest.mark.skipif("BITWITNESS_ISA" in os.environ, reason="already a run under a chosen instruction set")
@pytest.mark.parametrize("isa", OTHERS)
def test_under(isa):
    """A process chooses its instruction set once, so this is another process."""
    files = [f for f in sorted(HERE.glob("test_operators_*.py")) if f.name != pathlib.Path(__file__).name]
    files += [HERE / "test_functions_native.py", HERE / "test_philox_native.py"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, files)],
        env={**os.environ, "BITWITNESS_ISA": isa},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


def test_subnormals_are_kept_where_the_caller_flushes(values, same_bits):
    """Every worker sets the control word itself; the caller's own is as before afterwards."""
    x, y = values("tiny", 1, 7, 300), values("tiny", 2, 300, 9)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        before = _native.control_word()
        same_bits("add", x.ravel(), y.ravel()[:2100], np.zeros(2100, np.float32))
        same_bits("matmul_nn", x, y, np.zeros((7, 9), np.float32), accumulate=0)
        same_bits("swiglu", x, np.zeros((7, 150), np.float32))
        small = np.full(3, 1e-40, np.float32)
        total = np.zeros(3, np.float32)
        call("add", small, small, total, threads=2)
        assert total.view(np.uint32).tolist() == (small.view(np.uint32) * 2).tolist()
        assert _native.control_word() == before
    finally:
        torch.set_flush_denormal(False)
