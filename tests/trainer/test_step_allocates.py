"""Nothing that grows with the model is allocated inside a step: every malloc of a process is counted while it trains.

A small shared object, put before the C library by LD_PRELOAD, counts what passes through malloc and its relatives.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COUNTER = r"""
#include <dlfcn.h>
#include <stddef.h>
#include <errno.h>
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
static volatile long counting, largest, total;
static void note(size_t n) {
  if (!counting) return;
  __atomic_fetch_add(&total, (long)n, __ATOMIC_RELAXED);
  if ((long)n > largest) largest = (long)n;
}
void* malloc(size_t n) { note(n); return __libc_malloc(n); }
void* calloc(size_t n, size_t m) { note(n * m); return __libc_calloc(n, m); }
void* realloc(void* p, size_t n) { note(n); return __libc_realloc(p, n); }
void* memalign(size_t a, size_t n) { note(n); return __libc_memalign(a, n); }
void* aligned_alloc(size_t a, size_t n) { note(n); return __libc_memalign(a, n); }
int posix_memalign(void** p, size_t a, size_t n) { note(n); *p = __libc_memalign(a, n); return *p ? 0 : ENOMEM; }
void count_allocations(int on) { counting = on; if (on) largest = total = 0; }
long largest_allocation(void) { return largest; }
long allocated(void) { return total; }
"""

# Trains two steps to have every buffer that a step wants, then counts in the third, and in one run of its program.
TRAIN = """
import ctypes, json
import numpy as np
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.data.windows import Rows
from bitwitness.trainer.state import initial_state
from bitwitness.trainer.step import Workspace, step

WINDOW = 64

class Zeros:
    def samples(self, first, count):
        rows = np.arange(count * WINDOW, dtype=np.int32)
        start = rows // WINDOW * WINDOW
        return Rows(tuple(range(count)), rows % 256, rows % 256, rows - start, start)

config = parse_config({
    "run": {"name": "r", "steps": 9, "precision": PRECISION},
    "data": {"train": "text", "window": WINDOW, "shards": 3, "windows_per_shard": 2},
    "model": {"layers": 2, "width": 128, "heads": 4, "kv_heads": 2, "hidden": 384, "vocabulary": 1024},
}, where="test")
counter = ctypes.CDLL(None)
workspace = Workspace(config, 2)
state = initial_state(config, workspace.layout)

def counted(work):
    counter.count_allocations(1)
    work()
    counter.count_allocations(0)
    return [counter.largest_allocation(), counter.allocated()]

for _ in range(2):
    step(state, Zeros(), workspace)
found = {"step": counted(lambda: step(state, Zeros(), workspace))}
bound = {"left": workspace.gradient(), "right": workspace.gradient()}
found |= {
    "program": counted(lambda: workspace._fold.run(bound)),
    "numpy": counted(lambda: np.empty(1 << 20, np.float32)),
    "model": 4 * workspace.layout.size,
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("counting allocations needs a C compiler on Linux")
    folder = tmp_path_factory.mktemp("counter")
    (folder / "counter.c").write_text(COUNTER)
    command = [compiler, "-O1", "-fno-builtin", "-shared", "-fPIC", folder / "counter.c", "-o", folder / "counter.so"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "counter.so"


@pytest.mark.parametrize("precision", ["fp32", "bfp"])
def test_a_step_allocates_no_buffer(counter: Path, precision: str) -> None:
    """What is left is the records of a step and Python's own: nothing near the size of one activation (64 KiB here)."""
    script = TRAIN.replace("PRECISION", repr(precision))
    environment = {**os.environ, "LD_PRELOAD": str(counter), "PYTHONMALLOC": "malloc"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["numpy"][0] >= 4 << 20, "the counter counts nothing"
    largest, total = found["program"]
    assert largest <= 1024 and total <= 8192, found
    largest, total = found["step"]
    assert largest <= 16384 and total < found["model"] / 4, found
