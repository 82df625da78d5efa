"""Does block fixed point learn what float32 learns? The same run in both, held-out losses side by side.

    python -m tests.bench.parity --preset small --steps 500

Both start from the same weights and read the same windows, of the Python standard library. Writes a table and a plot,
bench/parity-PRESET.json and .svg. An hour for `small` on two cores, minutes for `nano`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from bitwitness.ledger.project import Project
from bitwitness.trainer.config import RunConfig, parse_config
from bitwitness.trainer.data import BuildOptions, Dataset, WindowStream, build
from bitwitness.trainer.state import State, initial_state
from bitwitness.trainer.step import Workspace, step

from .plot import line_chart

PRECISIONS = ("fp32", "bfp")


class Run:
    """One precision's training, advanced a stretch at a time so that both stay side by side."""

    def __init__(self, config: RunConfig, data_dir: Path, threads: int, eval_windows: int) -> None:
        self.workspace = Workspace(config, threads)
        self.state: State = initial_state(config, self.workspace.layout)
        self.train, self.held_out = (
            WindowStream(Dataset.open(data_dir, name), config.data.window, config.run.seed)
            for name in ("text", "text.held-out")
        )
        self.eval_windows = min(eval_windows, self.held_out.count)

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            step(self.state, self.train, self.workspace)

    def held_out_loss(self) -> float:
        """Mean negative log-likelihood of a token."""
        total, tokens = self.workspace.losses(self.state.params, self.held_out, range(self.eval_windows))
        return total / tokens


def config_for(arguments: argparse.Namespace, precision: str) -> RunConfig:
    return parse_config(
        {
            "run": {"name": "parity", "steps": arguments.steps, "precision": precision, "seed": arguments.seed},
            "data": {"train": "text", "window": arguments.window, "windows_per_shard": arguments.windows},
            "model": {"preset": arguments.preset},
            "optimizer": {"learning_rate": arguments.rate},
            "schedule": {"warmup": arguments.steps // 10},
        },
        where="parity",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="small")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=50, help="steps between held-out losses")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=4, help="in a step")
    parser.add_argument("--eval-windows", type=int, default=128)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = Project.create(Path(folder) / "project")
        build(project.data_dir, ["STDLIB"], BuildOptions(name="text"), signer=project.signer("trainer"))
        runs = {
            precision: Run(
                config_for(arguments, precision), project.data_dir, arguments.threads, arguments.eval_windows
            )
            for precision in PRECISIONS
        }
        points: list[dict[str, float]] = []
        for at in range(0, arguments.steps + 1, arguments.every):
            if at:
                for run in runs.values():
                    run.advance(arguments.every)
            points.append({"step": at, **{name: run.held_out_loss() for name, run in runs.items()}})
            print(*(f"{name} {value:.5f}" for name, value in points[-1].items()), flush=True)
    last = points[-1]
    result = {
        "held_out_bfp_vs_fp32": round(last["bfp"] / last["fp32"], 5),
        "points": points,
        "settings": vars(arguments),
    }
    target = Path("bench") / f"parity-{arguments.preset}"
    target.parent.mkdir(exist_ok=True)
    target.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    lines = {name: [(int(p["step"]), p[name]) for p in points] for name in PRECISIONS}
    target.with_suffix(".svg").write_text(line_chart(lines, "step", "held-out loss"))
    print(f"held-out loss, bfp over fp32: {result['held_out_bfp_vs_fp32']}")


if __name__ == "__main__":
    main()
