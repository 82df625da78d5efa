"""The configuration: strict, each fault named in one line, and the same after a trip through the ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.project import Project
from bitwitness.trainer.config import ConfigError, config_from_ledger, load_config, parse_config
from bitwitness.trainer.data import Dataset, WindowStream
from bitwitness.trainer.memory import parameters as count_parameters
from bitwitness.trainer.models.layout import Layout
from bitwitness.trainer.models.presets import PRESETS
from bitwitness.trainer.run import train
from bitwitness.trainer.schedule import learning_rate
from bitwitness.trainer.state import initial_state
from bitwitness.trainer.step import Workspace, step

from .conftest import small_config, small_table


def test_resolved_config_goes_through_the_ledger_unchanged() -> None:
    config = small_config()
    stored = jcs.parse(jcs.encode(config.resolved()))
    assert config_from_ledger(stored) == config
    assert stored["optimizer"]["beta1"] == "3feccccccccccccd"


def test_block_fixed_point_unless_a_run_says_float32() -> None:
    assert parse_config(small_table(), where="test").run.precision == "bfp"
    assert parse_config(small_table(precision="fp32"), where="test").run.precision == "fp32"
    assert parse_config(small_table() | {"model": "gpt.py:GPT"}, where="test").run.precision == "bfp"


@pytest.mark.parametrize(("section", "key"), [("run", "precision"), ("optimizer", "clip"), ("data", "shards")])
def test_a_genesis_relies_on_no_default(section: str, key: str) -> None:
    stored = small_config().resolved()
    del stored[section][key]
    with pytest.raises(ConfigError, match=f"leaves out {section}.{key}"):
        config_from_ledger(stored)
    del stored[section]
    with pytest.raises(ConfigError):
        config_from_ledger(stored)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("run", "stepz", 5, "unknown key run.stepz"),
        ("model", "heads", 5, "model.heads = 5 does not divide model.width = 32"),
        ("model", "kv_heads", 3, "model.kv_heads = 3 does not divide model.heads = 4"),
        ("model", "width", 0, "model.width"),
        ("run", "steps", "many", "run.steps"),
        ("run", "precision", "fp8", "run.precision"),
        ("run", "name", "../x", "run.name"),
        ("run", "name", "..", "run.name"),
        ("run", "name", ".hidden", "run.name"),
        ("run", "name", "-x", "run.name"),
        ("run", "from", "..@2", "run.from"),
        ("optimizer", "learning_rate", float("nan"), "optimizer.learning_rate"),
        ("schedule", "warmup", 99, "schedule.warmup = 99 exceeds run.steps = 6"),
        ("data", "window", None, "data.window"),
        ("data", "window", 2**20 + 1, "data.window"),
        ("data", "shards", 2**16 + 1, "data.shards"),
        ("data", "windows_per_shard", 2**31 - 1, "data.windows_per_shard"),
        ("model", "layers", 2**31 - 1, "model.layers"),
        ("model", "hidden", 2**20 + 1, "model.hidden"),
        ("model", "vocabulary", 2**24 + 1, "model.vocabulary"),
    ],
)
def test_each_fault_is_one_line_that_names_its_key(section: str, key: str, value: Any, message: str) -> None:
    table = small_table()
    table.setdefault(section, {})[key] = value
    with pytest.raises(ConfigError) as caught:
        parse_config(table, where="run.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[modle]\nlayers = 1\n", "unknown key modle, did you mean model?; the key run is missing"),
        ("[run]\nnmae = 'a'\n", "unknown key run.nmae, did you mean run.name?; "),
        ("[run]\nform = 'a@1'\n", "unknown key run.form, did you mean run.from?; "),
        ("[model]\nlayer = 1\n", "unknown key model.layer, did you mean model.layers?; "),
        ("[model]\nmodule = 'a.py'\n", "model.module: must be FILE.py:CLASS, the file in the project folder"),
    ],
)
def test_a_key_that_is_not_known_comes_first_with_what_it_may_be(tmp_path: Path, text: str, said: str) -> None:
    (path := tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    told = str(caught.value).removeprefix(f"{path}: ")
    assert told.startswith(said) if "unknown" in said else said in told.split("; ")
    assert "^" not in told


def test_missing_sections_and_unknown_presets(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.toml")
    path = tmp_path / "run.toml"
    path.write_text("[model]\npreset = 'huge'\n")
    with pytest.raises(ConfigError, match="choose one of nano, small, base, open-1b"):
        load_config(path)
    path.write_text("[run\n")
    with pytest.raises(ConfigError, match="not readable as TOML"):
        load_config(path)
    path.write_text("model = 3\n")
    with pytest.raises(ConfigError, match="model"):
        load_config(path)


def test_only_a_regular_file_of_sane_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(bytes(2**20 + 1))
    for path in (Path("/dev/zero"), tmp_path / "fifo", tmp_path / "large"):
        with pytest.raises(ConfigError, match="not a regular file of at most 1 MiB"):
            load_config(path)
    with pytest.raises(ConfigError, match=r"a folder; give the configuration of a run, such as .*/run\.toml$"):
        load_config(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text, but a run's configuration is TOML"):
        load_config(tmp_path / "binary")


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("nano", 1_019_264), ("small", 20_790_784), ("base", 123_587_328), ("open-1b", 1_607_567_360)],
)
def test_presets_have_the_size_that_they_claim(preset: str, parameters: int) -> None:
    table = small_table()
    table["model"] = {"preset": preset}
    config = parse_config(table, where="test")
    assert Layout(config.model).size == parameters == count_parameters(config)
    assert preset in PRESETS


@pytest.mark.parametrize("kind", ["constant", "cosine", "wsd"])
def test_schedules(kind: str) -> None:
    table = small_table(steps=100)
    table["schedule"] = {"kind": kind, "warmup": 10, "floor": 0.1, "decay": 20 if kind == "wsd" else 0}
    config = parse_config(table, where="test")
    highest = config.optimizer.learning_rate
    rates = [learning_rate(config, update) for update in range(1, 101)]
    assert rates[0] == highest * 1.0 / 10.0
    assert rates[9] == highest
    assert max(rates) == highest
    if kind == "constant":
        assert set(rates[9:]) == {highest}
    else:
        assert rates[99] == pytest.approx(highest * 0.1, rel=1e-12)
        assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    if kind == "wsd":
        assert set(rates[9:80]) == {highest}


@pytest.mark.parametrize("kind", ["constant", "cosine", "wsd"])
def test_a_schedule_of_its_own_after_the_steps_of_another_run(kind: str) -> None:
    """Shifted by `after`, nothing else: the same rates as a run of the steps that are left."""
    schedule = {"kind": kind, "warmup": 3, "decay": 5 if kind == "wsd" else 0}
    table = small_table(**{"steps": 50, "from": "r@30"})
    shifted = parse_config({**table, "schedule": {**schedule, "after": 30}}, where="test")
    alone = parse_config({**small_table(steps=20), "schedule": schedule}, where="test")
    assert [learning_rate(shifted, 30 + t) for t in range(1, 25)] == [learning_rate(alone, t) for t in range(1, 25)]
    for run, change, says in (
        ({"from": "r@30"}, {"after": 31}, "beyond the steps before this run"),
        ({}, {"after": 1}, "beyond the steps before this run"),
        ({"from": "r@30"}, {"after": 30, "warmup": 21}, "exceeds run.steps - schedule.after = 20"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_config({**small_table(steps=50, **run), "schedule": {**schedule, **change}}, where="test")


def test_tensors_named_in_the_config_must_exist(project: Project) -> None:
    for key, value in (("frozen", ["model.embed_token.weight"]), ("weight_decay_overrides", {"norm": 0.0})):
        table = small_table()
        table["optimizer"] = {key: value}
        with pytest.raises(ConfigError, match="the model has no tensor"):
            train(project, parse_config(table, where="test"), threads=1)


def test_frozen_tensors_stay_and_decay_can_be_their_own(project: Project) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    table = small_table()
    table["optimizer"] = {"frozen": [name], "weight_decay_overrides": {"model.norm.weight": 0.5}}
    config = parse_config(table, where="test")
    workspace = Workspace(config, 1)
    state = initial_state(config, workspace.layout)
    before = {key: tensor.copy() for key, tensor in workspace.layout.tensors(state.params).items()}
    stream = WindowStream(Dataset.open(project.data_dir, "text"), config.data.window, config.run.seed)
    step(state, stream, workspace)
    changed = [key for key, tensor in workspace.layout.tensors(state.params).items() if (tensor != before[key]).any()]
    assert sorted([*changed, name]) == workspace.layout.names
