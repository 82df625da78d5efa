"""Making versions: checked before anything is written, whole or absent, and healed after a crash."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from bitwitness.ledger.entry.key_entries import revocation
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files import durable
from bitwitness.ledger.files.safetensors_header import write_file
from bitwitness.registry import catalog
from bitwitness.registry import register as register_module
from bitwitness.registry import shards as shards_module
from bitwitness.registry.bundles.collect import ReleaseMissing, collect
from bitwitness.registry.catalog_tree import tree_lines
from bitwitness.registry.checks import exit_code
from bitwitness.registry.model_config import ConfigRefused, check_config
from bitwitness.registry.names import NameRefused, NoSuchModel
from bitwitness.registry.policy import load_policy
from bitwitness.registry.register import StateIsNotTheLedgers, StateMissing, register
from bitwitness.registry.verify import examine

from . import project_fixture
from .conftest import Registered
from .project_fixture import SmallRun


@pytest.fixture
def made(tmp_path: Path) -> SmallRun:
    return project_fixture.make(tmp_path / "project")


def _size(made: SmallRun) -> int:
    with made.project.open_ledger() as ledger:
        return ledger.size


def test_what_a_version_holds(made: SmallRun) -> None:
    result = register(made.project, "demo-lm", "small", license="Apache-2.0")
    assert result.path == made.project.models_dir / "demo-lm" / "1"
    assert {path.name for path in result.path.iterdir()} == {"model.safetensors", "config.json", "provenance.json"}
    tensors = safetensors.torch.load_file(result.path / "model.safetensors")
    assert {name: tensor.numpy().tobytes() for name, tensor in tensors.items()} == {
        name: bytes(data) for name, (_, _, data) in project_fixture.weights_at(4).items()
    }
    assert json.loads((result.path / "config.json").read_text())["model_type"] == "llama"
    assert [path.name for path in made.project.models_dir.iterdir()] == ["demo-lm"]
    assert result.to_json()["step"] == 4


def test_versions_count_up_and_any_stored_step_can_be_released(made: SmallRun) -> None:
    assert [register(made.project, "demo-lm", "small", step=step).version for step in (None, 2, 4)] == [1, 2, 3]
    assert register(made.project, "other", made.run).version == 1
    policy = load_policy(made.policy).model_copy(update={"rules": type(load_policy(made.policy).rules)()})
    for path in made.project.models_dir.glob("*/*"):
        assert exit_code(examine(path, policy).checks) == 0


def test_the_bundle_is_a_function_of_the_ledger(registered: Registered) -> None:
    with registered.project.open_ledger() as ledger:
        row = ledger.connection.execute("SELECT entry FROM releases").fetchone()
        note = ledger.latest_checkpoint()
        assert note is not None
        tensors = register_module.weights.collect(
            {"x": bytearray((registered.folder / "model.safetensors").read_bytes())}
        )
        leaves = register_module.weights.leaves_of(tensors)
        again = collect(ledger, row[0], note, leaves).encode()
        assert again == (registered.folder / "provenance.json").read_bytes()
        with pytest.raises(ReleaseMissing):
            collect(ledger, ledger.size, note, leaves)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "é", "a" * 101, "a\n"])
def test_names_that_are_refused(made: SmallRun, name: str) -> None:
    with pytest.raises(NameRefused) as caught:
        register(made.project, name, "small")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("run", "step", "reason"),
    [
        ("nobody", None, "nobody"),
        ("small", 9, "no step 9; its last is 4"),
        ("small", 3, r"no stored state \(stored: 2, 4\)"),
    ],
)
def test_what_cannot_be_released(made: SmallRun, run: str, step: int | None, reason: str) -> None:
    before = _size(made)
    with pytest.raises(BitwitnessError, match=reason) as caught:
        register(made.project, "demo-lm", run, step=step)
    assert caught.value.exit_code == 2
    assert _size(made) == before


def test_a_run_whose_last_state_is_gone(made: SmallRun) -> None:
    (made.project.runs_dir / "small" / "states" / "step-00000004" / "weights.safetensors").unlink()
    with pytest.raises(StateMissing, match="choose with --step"):
        register(made.project, "demo-lm", "small")


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def _other_step(path: Path) -> None:
    path.unlink()
    write_file(path, project_fixture.weights_at(2))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("change", [_flip, _other_step, _cut, _link])
def test_a_state_that_is_not_the_ledgers(made: SmallRun, change: Any) -> None:
    change(made.project.runs_dir / "small" / "states" / "step-00000004" / "weights.safetensors")
    before = _size(made)
    with pytest.raises(BitwitnessError) as caught:
        register(made.project, "demo-lm", "small")
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)
    assert _size(made) == before
    assert not any(made.project.models_dir.rglob("*.safetensors"))
    assert isinstance(caught.value, StateIsNotTheLedgers) or change is _link


def test_a_full_disk_leaves_nothing_behind(made: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    before = _size(made)
    with monkeypatch.context() as patch:
        patch.setattr(shards_module, "write_file", full)
        with pytest.raises(BitwitnessError, match="No space left on device; nothing was registered"):
            register(made.project, "demo-lm", "small")
    assert _size(made) == before
    assert not list(made.project.models_dir.iterdir())
    assert register(made.project, "demo-lm", "small").version == 1


def test_what_a_dead_process_left_is_removed(made: SmallRun) -> None:
    folder = made.project.models_dir / "demo-lm"
    child = subprocess.Popen(["true"])
    child.wait()
    for name in (f".tmp-{child.pid}", f".tmp-{os.getppid()}", ".tmp-x"):
        (folder / name).mkdir(parents=True)
        (folder / name / "model.safetensors").touch()
    register(made.project, "demo-lm", "small")
    assert {path.name for path in folder.iterdir()} == {"1", f".tmp-{os.getppid()}", ".tmp-x"}


def _revoke(made: SmallRun, role: str, first: int) -> None:
    root, public = made.project.signer("root"), made.project.signer(role).public
    with made.project.open_ledger(writable=True) as ledger:
        ledger.append([revocation(root, public, role, first)])


@pytest.mark.parametrize("role", ["publisher", "log"])
def test_a_key_that_may_no_longer_sign(made: SmallRun, role: str) -> None:
    _revoke(made, role, _size(made))
    before = _size(made)
    with pytest.raises(register_module.KeyEnded, match=f"{role} key"):
        register(made.project, "demo-lm", "small")
    assert _size(made) == before and not list(made.project.models_dir.iterdir())


def test_a_run_whose_trainer_is_revoked(made: SmallRun) -> None:
    assert register(made.project, "demo-lm", "small").warnings == ()
    _revoke(made, "trainer", _size(made))
    warning, again = register(made.project, "demo-lm", "small").warnings
    assert again == "version 1 of demo-lm has the same weights"
    assert "trainer key" in warning and "\n" not in warning
    _revoke(made, "trainer", 6)
    with pytest.raises(register_module.KeyEnded, match="trainer key"):
        register(made.project, "demo-lm", "small")


def test_a_ledger_that_does_not_verify_is_not_released_from(made: SmallRun) -> None:
    """The step's payload is changed in the file; the derived tables still say what they said."""
    connection = sqlite3.connect(made.project.ledger_path)
    for (trigger,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute("UPDATE entries SET signature = zeroblob(length(signature)) WHERE idx = 7")
    connection.commit()
    connection.close()
    with pytest.raises(BitwitnessError, match="does not verify") as caught:
        register(made.project, "demo-lm", "small")
    assert "\n" not in str(caught.value)
    assert not list(made.project.models_dir.iterdir())


def test_a_crash_after_the_signature_is_healed(made: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(register_module, "collect", crash)
        with pytest.raises(KeyboardInterrupt):
            register(made.project, "demo-lm", "small")
    signed = _size(made)
    result = register(made.project, "demo-lm", "small")
    assert (result.version, _size(made)) == (1, signed)
    assert exit_code(examine(result.path, load_policy(made.policy)).checks) == 0
    assert register(made.project, "demo-lm", "small").version == 2


def test_a_full_disk_after_the_signature_says_how_to_go_on(made: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = durable.sync_folder

    def full(path: Path) -> None:
        if path.is_relative_to(made.project.models_dir):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_folder", full)
        with pytest.raises(register_module.Unfinished, match="run the same command again"):
            register(made.project, "demo-lm", "small")
    assert register(made.project, "demo-lm", "small").version == 1


def test_a_wrong_key_file_changes_nothing(made: SmallRun) -> None:
    before = _size(made)
    (made.project.keys_dir / "log.pem").chmod(0o644)
    with pytest.raises(BitwitnessError, match="chmod 600"):
        register(made.project, "demo-lm", "small")
    assert _size(made) == before


def test_a_folder_that_the_ledger_does_not_know_is_not_replaced(made: SmallRun) -> None:
    (made.project.models_dir / "demo-lm" / "1").mkdir(parents=True)
    before = _size(made)
    with pytest.raises(BitwitnessError, match="move it away"):
        register(made.project, "demo-lm", "small")
    assert _size(made) == before


def test_an_audit_after_the_release_comes_with_the_next_version(made: SmallRun) -> None:
    first = register(made.project, "demo-lm", "small").path.joinpath("provenance.json").read_bytes()
    with made.project.open_ledger(writable=True) as ledger:
        project_fixture.add_audit(
            made.project, ledger, made.run, project_fixture.add_intent(made.project, ledger, made.run)
        )
    second = register(made.project, "demo-lm", "small").path.joinpath("provenance.json").read_bytes()
    assert len(second) > len(first)


def test_list_and_show(registered: Registered) -> None:
    (row,) = catalog.list_models(registered.project)
    assert (row["model"], row["version"], row["run"], row["step"], row["license"]) == (
        "demo-lm",
        1,
        "small",
        4,
        "Apache-2.0",
    )
    assert row["on_disk"] is True
    shown = catalog.show_model(registered.project, "demo-lm")
    assert shown == catalog.show_model(registered.project, "demo-lm/1")
    assert shown["lineages"][0]["run"]["id"] == registered.run
    assert [item["result"] for item in shown["lineages"][0]["audits"]] == ["match"]
    assert [item["mean"] for item in shown["lineages"][0]["evals"]] == [2.5]
    text = "\n".join(tree_lines(shown))
    for part in ("demo-lm/1", "small", "step 4", "text", "2.5000", "match", "Apache-2.0"):
        assert part in text
    for name in ("demo-lm/2", "nobody", "demo-lm/x"):
        with pytest.raises(NoSuchModel):
            catalog.show_model(registered.project, name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps"),
        ({"rope_theta": 10000}, "rope_theta"),
        ({"num_attention_heads": 4}, "num_attention_heads"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 64.0}}, "rope_parameters"),
        ({"quantization": {"bits": 2}}, "quantization"),
        ({"sliding_window": 1}, "sliding_window"),
        ({"pretraining_tp": 4}, "pretraining_tp"),
        ({"dtype": "float16"}, "'dtype'"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"torch_dtype": "float16"}, "torch_dtype"),
        ({"max_position_embeddings": 9}, "max_position_embeddings"),
    ],
)
def test_a_config_that_describes_another_model(registered: Registered, change: dict[str, Any], reason: str) -> None:
    config = json.loads((registered.folder / "config.json").read_text())
    resolved = project_fixture.CONFIG.resolved()
    check_config(json.dumps(config).encode(), resolved, "F32")
    with pytest.raises(ConfigRefused, match=reason):
        check_config(json.dumps({**config, **change}).encode(), resolved, "F32")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"a":1,"a":2}', b"[" * 100_000, b'{"x":NaN}', b"{}"])
def test_a_config_that_is_no_config(data: bytes) -> None:
    with pytest.raises(ConfigRefused) as caught:
        check_config(data, project_fixture.CONFIG.resolved(), "F32")
    assert "\n" not in str(caught.value)


def test_a_run_of_another_kind_of_model(registered: Registered) -> None:
    with pytest.raises(ConfigRefused, match="does not describe"):
        check_config((registered.folder / "config.json").read_bytes(), {"model": {"width": "x"}}, "F32")
