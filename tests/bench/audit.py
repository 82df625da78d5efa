"""What an audit costs beside training: time and memory of a replayed step, and everything but the replay.

`replay_vs_train`        time to replay a step with its transcript / time to train it (1.05 at most)
`audit_fixed_cost_s`     seconds of an audit that are neither replay nor reading the state (2 at most)
`replay_rss_vs_train`    peak memory of the process that audits / of the one that trains (1.05 at most)

Each side is a process of its own, as users run it. Alone: python -m tests.bench.audit [preset] [steps]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .results import bound

# Timed inside: importing and starting up is part of the audit's fixed cost, not of a step.
_CHILD = """
import json, sys, time
began = time.perf_counter()
from bitwitness.ledger.project import Project
from bitwitness.trainer import audit, replay, run, step
from tests.bench.peak import peak_bytes
from bitwitness.trainer.config import load_config
from pathlib import Path

folder, what, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
spent = {"step": [], "state": 0.0}

def timed(module, name, key):
    honest = getattr(module, name)
    def call(*given, **named):
        started = time.perf_counter()
        try:
            return honest(*given, **named)
        finally:
            took = time.perf_counter() - started
            if isinstance(spent[key], list):
                spent[key].append(took)
            else:
                spent[key] += took
    setattr(module, name, call)

timed(run if what == "train" else replay, "step", "step")
timed(replay, "load_state", "state")
project = Project.find(folder)
if what == "train":
    run.train(project, load_config(folder / "run.toml"), threads=threads)
else:
    last = int(sys.argv[4])
    result = audit.audit(project, "bench", steps=(last, last), threads=threads)
    assert result.result == "match", result
print(json.dumps({**spent, "total": time.perf_counter() - began, "rss": peak_bytes()}))
"""


def bench_audit(preset: str = "small", *, steps: int = 6, threads: int = 0) -> dict[str, Any]:
    """Train `steps` steps of a preset on made-up text, audit the last half, and compare."""
    from bitwitness.ledger.project import Project

    threads = threads or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        project = Project.create(Path(folder) / "project")
        _data(project)
        (project.root / "run.toml").write_text(_RUN.format(steps=steps, every=steps // 2, preset=preset))
        trained = _child(project.root, "train", threads)
        audited = _child(project.root, "audit", threads, str(steps))
    train, replayed = _typical(trained["step"]), _typical(audited["step"])
    return {
        "replay_vs_train": replayed / train,
        "audit_fixed_cost_s": audited["total"] - sum(audited["step"]) - audited["state"],
        "replay_rss_vs_train": audited["rss"] / trained["rss"],
        "details": {"train_step_s": train, "replay_step_s": replayed, "state_read_s": audited["state"],
                    "train_rss": trained["rss"], "audit_rss": audited["rss"]},
    }  # fmt: skip


_RUN = """
[run]
name = "bench"
steps = {steps}
state_every = {every}

[data]
train = "text"
window = 512
windows_per_shard = 4

[model]
preset = "{preset}"
"""


def _data(project: Any) -> None:
    from bitwitness.trainer.data import BuildOptions, build

    source = project.root / "source"
    source.mkdir()
    for number in range(64):
        lines = (f"{number} times {n} is {n * number}.\n" for n in range(2000))
        (source / f"{number:02d}.txt").write_text("".join(lines))
    build(project.data_dir, [str(source)], BuildOptions(name="text"), signer=project.signer("trainer"))


def _child(folder: Path, what: str, threads: int, *rest: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder), what, str(threads), *rest], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _typical(times: list[float]) -> float:
    """The median without the first, which warms up."""
    kept = sorted(times[1:] or times)
    return kept[len(kept) // 2]


def main() -> int:
    preset = sys.argv[1] if len(sys.argv) > 1 else "small"
    found = bench_audit(preset, steps=int(sys.argv[2]) if len(sys.argv) > 2 else 6)
    print(json.dumps(found, indent=1))
    limits = {name: bound(name, value) for name, value in found.items() if name != "details"}
    missed = [name for name, limit in limits.items() if limit is not None and not limit["pass"]]
    print("over the bound: " + ", ".join(missed) if missed else "all within their bounds", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
