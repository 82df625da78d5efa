"""The gate's numbers: how fast weights are verified, beside sha256sum on the same file, and what a verification costs
besides hashing.

`python -m tests.bench.registry [BYTES]` runs them alone; a gigabyte unless given.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bitwitness.ledger.commitments import state_digest, tensors
from bitwitness.ledger.files.safetensors_header import write_file
from bitwitness.registry.checks import exit_code
from bitwitness.registry.gating.gate import check_folder
from bitwitness.registry.register import register
from tests.registry import project_fixture as small

GIGABYTE = 1_000_000_000
TENSOR = 16 << 20
GOLDEN = Path(__file__).parents[1] / "golden" / "model-1"


def bench_registry(size: int = GIGABYTE, rounds: int = 7) -> dict[str, float]:
    """All keys; `size` stands for the gigabyte."""
    with tempfile.TemporaryDirectory() as folder:
        results = verify_speed(Path(folder), size, rounds)
    results["gate_fixed_cost_s"] = gate_fixed_cost_s(rounds)
    return {name: round(value, 3) for name, value in results.items()}


def verify_speed(folder: Path, size: int, rounds: int) -> dict[str, float]:
    """Gigabytes of weights a second through all of the gate's checks, and that over sha256sum's, in turns."""
    model, policy = make_model(folder / "project", size)
    weights = model / "model.safetensors"
    ours, theirs = [], []
    for _ in range(rounds + 1):  # the first round warms the page cache
        start = time.perf_counter()
        subprocess.run(["sha256sum", weights], check=True, stdout=subprocess.DEVNULL)
        middle = time.perf_counter()
        checks = check_folder(model, policy)
        end = time.perf_counter()
        if exit_code(checks):
            raise SystemExit(f"the model was not verified: {checks}")
        theirs.append(middle - start)
        ours.append(end - middle)
    ratio = median(their / our for their, our in zip(theirs[1:], ours[1:], strict=True))
    return {"verify_gbps": weights.stat().st_size / 1e9 / median(ours[1:]), "verify_vs_sha256sum": ratio}


def gate_fixed_cost_s(rounds: int) -> float:
    """Seconds of the whole command `ledger verify`, from its start to its end, on a model of a few hundred bytes.

    With bytecode, which pip writes when it installs a package: a folder of its own holds it, whatever the environment
    says of it.
    """
    code = "import sys; from bitwitness.ledger.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "verify", str(GOLDEN / "golden"), "--policy", str(GOLDEN / "trust.toml")]
    seconds = []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for _ in range(rounds + 1):  # the first round writes the bytecode
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


def make_model(folder: Path, size: int) -> tuple[Path, Path]:
    """A registered model with `size` bytes of random weights, and a policy that it satisfies."""
    block = memoryview(os.urandom(min(TENSOR, size) // 4 * 4))
    views: Any = {
        f"block.{number:04d}.weight": (
            "F32",
            (min(TENSOR, size - start) // 4,),
            block[: min(TENSOR, size - start) // 4 * 4],
        )
        for number, start in enumerate(range(0, size, TENSOR))
    }
    project = small._create(folder)
    control = {"step": 1, "tokens": 8, "cursor": 1}
    weights = tensors("weights/1", views)
    optimizer = tensors("optimizer/1", {"m/block": ("F32", (1,), memoryview(bytes(4)))})
    fields = {
        "control": control,
        "weights": weights.to_json(),
        "optimizer": optimizer.to_json(),
        "state": state_digest(control, optimizer, weights),
    }
    with project.open_ledger(writable=True) as ledger:
        writer = small.add_run(project, ledger, small.add_dataset(ledger, project.signer("trainer")))
        small.add_step(writer, 1, **fields)
        stored = project.runs_dir / "small" / "states" / "step-00000001"
        stored.mkdir(parents=True)
        write_file(stored / "weights.safetensors", views)
        writer.append("state", {"step": 1, "bytes": size, **fields})
    made = register(project, "large", "small", step=1)
    (stored / "weights.safetensors").unlink()
    text = project.trust_path.read_text().replace("require_audit = true", "require_audit = false")
    project.trust_path.write_text(text)
    return made.path, project.trust_path


if __name__ == "__main__":
    print(json.dumps(bench_registry(int(sys.argv[1]) if len(sys.argv) > 1 else GIGABYTE), indent=1))
