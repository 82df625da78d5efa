"""`step_rss_vs_eager`: the peak resident memory of training steps, ours over PyTorch eager's, on the same model.

Each trains three steps in a process of its own, with the allocator as it comes. Ours is the whole audited step.
`python -m tests.bench.rss fp32|bfp|captured|eager PRESET WINDOWS` is such a process; it prints MB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .audited import audited_trainer, captured_config, config_for
from .interleaved import THREADS
from .peak import peak_bytes

WINDOW, STEPS = 512, 3


def bench_rss(preset: str = "small", windows: int = 4) -> dict[str, Any]:
    """Ratios and MB by contestant."""
    peaks = {who: peak(who, preset, windows) for who in ("fp32", "bfp", "eager")}
    ratios = {
        "step_rss_vs_eager": round(peaks["fp32"] / peaks["eager"], 3),
        "step_rss_bfp_vs_eager": round(peaks["bfp"] / peaks["eager"], 3),
    }
    return {"ratios": ratios, "mb": peaks, "preset": preset, "tokens": WINDOW * windows, "threads": THREADS}


def peak(who: str, preset: str, windows: int) -> float:
    """MB of a process in which `who` trains: `fp32`, `bfp`, the latter `captured`, or `eager`."""
    command = [sys.executable, "-m", "tests.bench.rss", who, preset, str(windows)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    return float(done.stdout)


def train(who: str, preset: str, windows: int) -> None:
    """Train a few steps."""
    if who == "eager":
        import torch  # ours does without

        from .eager import EagerTrainer

        torch.set_num_threads(THREADS)
        model = config_for(preset, WINDOW, windows).model
        ids = torch.randint(model.vocabulary, (windows, WINDOW))
        trainer = EagerTrainer(model, WINDOW)
        for _ in range(STEPS):
            trainer.step(ids, ids)
        return
    captured = who == "captured"
    config = (captured_config if captured else config_for)(preset, WINDOW, windows, "bfp" if captured else who)
    with (
        tempfile.TemporaryDirectory() as folder,
        audited_trainer(config, Path(folder) / "project", THREADS) as ours,
    ):
        for _ in range(STEPS):
            ours.step()


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(peak_bytes() / (1 << 20))
