"""Run every benchmark, print it, and write bench/results.json with the machine and the commit.

Both sides get the same allocator settings: large buffers are kept, not returned to the system after each step,
since page faults are most of what an untuned eager step loses.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from bitwitness.kernels import _native

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
RESULTS = Path("bench/results.json")


def main() -> None:
    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(sys.executable, [sys.executable, "-m", "tests.bench", *sys.argv[1:]], {**os.environ, **MALLOC})
    from .audited import config_for
    from .gemm import bench_gemm
    from .ledger import bench_ledger
    from .parts import bench_parts
    from .step import bench_step

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    gemm = bench_gemm(config_for("small", window=512, windows=4), rounds)
    step = bench_step("small", window=512, windows=4, rounds=rounds)
    parts = bench_parts(rounds=rounds)
    results = {
        **{f"gemm_{precision}_vs_torch": mean for precision, mean in gemm["means"].items()},
        **step["ratios"],
        **bench_ledger(),
        "parts_overhead": parts["parts_overhead"],
        "details": {"gemm_small": gemm, "step_small": step, "parts_small": parts},
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "instruction_set": _native.isa(),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
        },
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


main()
