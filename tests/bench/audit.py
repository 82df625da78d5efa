"""What an audit costs beside training: time and memory of a replayed step, and everything but the replay.

`replay_vs_train`        time to replay a step with its transcript / time to train it (1.05 at most)
`audit_fixed_cost_s`     seconds of an audit that are neither replay nor reading the state (2 at most)
`replay_rss_vs_train`    peak memory of the process that audits / of the one that trains (1.05 at most)

Each side is a process of its own that makes a whole step when it is its turn: `train` checks the data, computes,
hashes, signs and appends; `audit` checks the data, computes, hashes the state and the taps of its transcript, compares.
Alone: python -m tests.bench.audit [preset] [steps]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .interleaved import THREADS, ratio
from .results import bound

# Let worker threads of the other side go to sleep: they spin for a while after their work.
_REST = 0.3

# A step begins with the check of its data and ends with its report, on both sides.
_CHILD = """
import json, sys, time
began = time.perf_counter()
from pathlib import Path
from bitwitness.ledger.project import Project
from bitwitness.trainer import replay, run
from bitwitness.trainer.auditing import audit
from bitwitness.trainer.config import load_config
from bitwitness.trainer.data import WindowStream
from tests.bench.peak import peak_bytes

folder, what, name, last, threads = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
steps, state, waited, started = [], 0.0, 0.0, 0.0

def check_samples(*given, honest=WindowStream.check_samples):
    global started
    started = time.perf_counter()
    return honest(*given)

def load_state(*given, honest=replay.load_state):
    global state
    asked = time.perf_counter()
    try:
        return honest(*given)
    finally:
        state += time.perf_counter() - asked

def report(*_):
    global waited
    ended = time.perf_counter()
    steps.append(ended - started)
    print("step", flush=True)
    sys.stdin.readline()
    waited += time.perf_counter() - ended

WindowStream.check_samples, replay.load_state = check_samples, load_state
project = Project.find(folder)
if what == "train":
    run.train(project, load_config(folder / f"{name}.toml"), threads=threads, report=report)
else:
    found = audit.audit(project, name, steps=(last, last), threads=threads, report=report)
    assert found.result == "match", found
total = time.perf_counter() - began - waited
print(json.dumps({"steps": steps, "state": state, "total": total, "rss": peak_bytes()}))
"""


def bench_audit(preset: str = "small", *, steps: int = 8, threads: int = THREADS) -> dict[str, Any]:
    """Train 2 × `steps` steps of a preset on made-up text; then audit the last half while another run trains."""
    from bitwitness.ledger.project import Project

    with tempfile.TemporaryDirectory() as folder:
        project = Project.create(Path(folder) / "project")
        _data(project)
        for name, count in (("audited", 2 * steps), ("beside", steps)):
            text = _RUN.format(name=name, steps=count, every=steps, preset=preset)
            (project.root / f"{name}.toml").write_text(text)
        first = _Child(project.root, "train", "audited", 2 * steps, threads)
        while first.turn():
            pass
        first.wait()
        other = Path(shutil.copytree(project.root, Path(folder) / "other"))  # a ledger has one writer at a time
        sides = [_Child(other, "train", "beside", steps, threads)]
        sides[0].turn()
        # Beginning is part of an audit's fixed cost, and so nothing else runs meanwhile.
        sides.append(_Child(project.root, "audit", "audited", 2 * steps, threads))
        sides[1].turn()
        for _ in range(steps - 1):
            for side in sides:
                time.sleep(_REST)
                side.turn()
        trained, audited = (side.end() for side in sides)
    train, replayed = trained["steps"][1:], audited["steps"][1:]  # the first ones warm up
    return {
        "replay_vs_train": ratio(replayed, train),
        "audit_fixed_cost_s": audited["total"] - sum(audited["steps"]) - audited["state"],
        "replay_rss_vs_train": audited["rss"] / trained["rss"],
        "details": {
            "train_step_s": train,
            "replay_step_s": replayed,
            "state_read_s": audited["state"],
            "train_rss": trained["rss"],
            "audit_rss": audited["rss"],
        },
    }


_RUN = """
[run]
name = "{name}"
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


class _Child:
    """A side that waits for its turn after every step. The allocator is as it comes, as for whoever runs a command."""

    def __init__(self, folder: Path, what: str, name: str, last: int, threads: int) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", _CHILD, str(folder), what, name, str(last), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain)
        self._line: str | None = None

    def turn(self) -> bool:
        """Let it make a step; False where it made none, and ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._line is not None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self._line = self._process.stdout.readline()
        if not self._line:
            raise RuntimeError(f"a side of the benchmark ended with {self._process.wait()}")
        return self._line == "step\n"

    def end(self) -> dict[str, Any]:
        """Let it finish; what it measured."""
        if self.turn():
            raise RuntimeError("a side of the benchmark made more steps than it was to make")
        assert self._line is not None
        told: dict[str, Any] = json.loads(self._line)
        self.wait()
        return told

    def wait(self) -> None:
        """Until its process has ended."""
        self._process.communicate()


def main() -> int:
    preset = sys.argv[1] if len(sys.argv) > 1 else "small"
    found = bench_audit(preset, steps=int(sys.argv[2]) if len(sys.argv) > 2 else 8)
    print(json.dumps(found, indent=1))
    limits = {name: bound(name, value) for name, value in found.items() if name != "details"}
    missed = [name for name, limit in limits.items() if limit is not None and not limit["pass"]]
    print("over the bound: " + ", ".join(missed) if missed else "all within their bounds", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
