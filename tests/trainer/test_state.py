"""Stored states that are not what they should be: one clear error each, and never a wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bitwitness.trainer.models.layout import Layout
from bitwitness.trainer.state import (
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    Control,
    StateMismatch,
    StateUnavailable,
    initial_state,
    load_state,
    remove_leftovers,
    save_state,
    state_folder,
)

from .conftest import small_config


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (fifo, StateUnavailable),
        (folder, StateUnavailable),
        (Path.unlink, StateUnavailable),
        (lambda path: os.truncate(path, 0), StateMismatch),
        (lambda path: os.truncate(path, 5), StateMismatch),
        (lambda path: os.truncate(path, 500), StateMismatch),
        (lambda path: os.truncate(path, path.stat().st_size - 1), StateMismatch),
        (lambda path: os.truncate(path, path.stat().st_size + 1), StateMismatch),
        (lambda path: os.truncate(path, 1 << 40), StateMismatch),
        (lambda path: path.write_bytes(b"\xff" * 4096), StateMismatch),
    ],
)
@pytest.mark.parametrize("name", [WEIGHTS_FILE, OPTIMIZER_FILE])
def test_damaged_files(tmp_path: Path, name: str, damage: Callable[[Path], None], error: type[Exception]) -> None:
    config = small_config()
    layout = Layout(config.model)
    where = state_folder(tmp_path, 2)
    save_state(initial_state(config, layout), where)
    assert load_state(where, layout, Control()).commit() == initial_state(config, layout).commit()
    damage(where / name)
    with pytest.raises(error) as caught:
        load_state(where, layout, Control())
    assert "\n" not in str(caught.value)


def test_only_leftovers_of_dead_processes_go(tmp_path: Path) -> None:
    states = tmp_path / "states"
    names = [f"step-00000002.tmp-{os.getpid()}", "step-00000002.tmp-999999999", "step-00000002", "x.tmp-999999999"]
    for name in names:
        (states / name).mkdir(parents=True)
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in states.iterdir()) == sorted([names[0], *names[2:]])
