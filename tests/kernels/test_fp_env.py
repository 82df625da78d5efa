"""The floating-point control word: set in every worker for every run, and put back.

torch.set_flush_denormal(True) is called before our threads exist, which then inherit a flushing control word, and
again when they do. Both happen in a process of their own.
"""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
import torch

if not torch.set_flush_denormal(True):
    sys.exit(77)
from bitwitness.kernels import _native, philox, selftest
from bitwitness.kernels.program import call
from bitwitness.kernels.reduce import sum_f64

flushing = _native.control_word()
expected = selftest.golden()
for threads in (1, 2, 3):
    assert selftest.digests(threads) == expected, threads
    assert _native.control_word() == flushing

least = np.full(100_000, 1, np.uint32).view(np.float32)  # the least subnormal, in work for every thread
total = np.zeros_like(least)
call("add", least, least, total, threads=3)
assert (total.view(np.uint32) == 2).all()
assert sum_f64(least) == 100_000 * 2.0 ** -149
small = np.empty(1000, np.float32)
philox.trunc_normal(small, (1, 2), std=1e-40, bound=3.0)
assert (small.view(np.uint32) & 0x7FFFFFFF > 0).sum() > 990
assert _native.control_word() == flushing
"""


def test_flushing_caller():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    if run.returncode == 77:
        pytest.skip("this processor cannot flush")
    assert run.returncode == 0, run.stderr
