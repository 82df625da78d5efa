"""The loop with the real trainer: train, audit, register, verify, load; then a weight is flipped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bitwitness.ledger.cli import main
from bitwitness.registry import load_verified
from bitwitness.trainer.models.layout import Layout

RUN = """
[run]
name = "tiny"
steps = 4
seed = 3
state_every = 2
eval_every = 2
[data]
train = "text"
window = 24
shards = 2
windows_per_shard = 1
[model]
layers = 1
width = 16
heads = 2
kv_heads = 1
hidden = 24
vocabulary = 257
tied = false
"""


def test_what_was_trained_is_what_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(24):
        line = f"{number} green bottles standing on the wall.\n"
        (texts / f"{number:02d}.txt").write_text(line * (20 + number))
    (tmp_path / "run.toml").write_text(RUN)
    base = ["--project", str(project)]
    assert main(["init", str(project)]) == 0
    assert main([*base, "data", "build", str(texts), "--name", "text", "--held-out", "0.2"]) == 0
    assert main([*base, "train", str(tmp_path / "run.toml")]) == 0
    assert main([*base, "audit", "tiny", "--sample", "1"]) == 0
    assert main([*base, "model", "register", "tiny-lm", "--run", "tiny"]) == 0
    folder, policy = project / "models" / "tiny-lm" / "1", project / "trust.toml"
    capsys.readouterr()
    assert main(["verify", str(folder), "--policy", str(policy), "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["audit"]["ok"] is True
    assert "text.held-out" in checks["evals"]["detail"]

    from bitwitness.trainer.config import load_config
    from bitwitness.trainer.state import Control, load_state, state_folder

    config = load_config(tmp_path / "run.toml")
    layout = Layout(config.model)
    stored = load_state(state_folder(project / "runs" / "tiny", 4), layout, Control(step=4))
    loaded = load_verified(folder, policy)
    trained = layout.tensors(stored.params)
    assert loaded.keys() == trained.keys()
    assert all(np.array_equal(loaded[name], trained[name]) for name in trained)

    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-7] ^= 4
    (folder / "model.safetensors").write_bytes(data)
    assert main(["verify", str(folder), "--policy", str(policy), "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["weights"]["detail"].startswith(max(trained, key=lambda name: name))
