"""`ledger model refresh` vouches for no damaged file, and writes a version that is gone again, byte for byte."""

from __future__ import annotations

import shutil

import pytest

from bitwitness.ledger.cli import main
from bitwitness.registry.bundles import bundle
from bitwitness.registry.register import register

from .conftest import Registered


def _main(registered: Registered, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["--project", str(registered.project.root), *arguments]) == code
    out, err = capsys.readouterr()
    return out + err


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_refused(registered: Registered, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = registered.folder / name
    data, before = bytearray(path.read_bytes()), (registered.folder / bundle.FILE_NAME).read_bytes()
    data[-1] ^= 1
    path.write_bytes(data)
    said = _main(registered, capsys, "model", "refresh", "demo-lm/1", code=1)
    assert "is damaged" in said and said.count("\n") == 1
    path.unlink()
    assert "is missing" in _main(registered, capsys, "model", "refresh", "demo-lm/1", code=1)
    assert (registered.folder / bundle.FILE_NAME).read_bytes() == before
    # A revocation is not kept from being signed by it.
    assert "no bundle was made" in _main(registered, capsys, "model", "revoke", "demo-lm/1")


def test_a_word_is_signed_whatever_lies_in_the_folder(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody who revokes must think, by an error about files, that it was not done."""
    path = registered.folder / bundle.FILE_NAME
    path.unlink()
    path.mkdir()
    said = _main(registered, capsys, "model", "revoke", "demo-lm/1")
    assert (
        "warning: revoked is signed (log entry" in said and "provenance.json" in said and "demo-lm/1: revoked" in said
    )
    shutil.rmtree(registered.folder)
    registered.folder.symlink_to("nowhere")
    said = _main(registered, capsys, "model", "refresh", "demo-lm/1", code=2)
    assert "is a link that leads nowhere; remove it" in said and said.count("\n") == 1


def test_shards_of_another_size(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    """How large the shards were may be said nowhere; then the command that knows is named, and nothing is written."""
    path = register(registered.project, "demo-lm", "small", step=2, shard_bytes=100).path
    shutil.rmtree(path)
    assert "--shard-size" in _main(registered, capsys, "model", "refresh", "demo-lm/2", code=1)
    assert [item.name for item in path.parent.iterdir()] == ["1"]


def test_a_version_that_is_gone_is_written_again(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    files = {path.name: path.read_bytes() for path in registered.folder.iterdir()}
    shutil.rmtree(registered.folder)
    listed = _main(registered, capsys, "model", "list").splitlines()
    assert listed[0].split()[-3:-1] == ["on", "disk"] and listed[1].split()[-2] == "no"
    assert "demo-lm/1" in _main(registered, capsys, "model", "refresh", "demo-lm/1")
    assert _main(registered, capsys, "model", "list").splitlines()[1].split()[-2] == "yes"
    del files[bundle.FILE_NAME]
    again = {path.name: path.read_bytes() for path in registered.folder.iterdir()}
    assert {name: again[name] for name in files} == files
    assert again.keys() == {*files, bundle.FILE_NAME}
    policy = str(registered.policy)
    assert _main(registered, capsys, "verify", "demo-lm/1", "--policy", policy).endswith("verified\n")
    shutil.rmtree(registered.folder)
    shutil.rmtree(registered.project.runs_dir / "small" / "states")
    said = _main(registered, capsys, "model", "refresh", "demo-lm/1", code=2)
    assert "no stored state" in said and said.count("\n") == 1


def test_the_same_weights_again_are_said(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["model", "register", "demo-lm", "--run", "small", "--shard-size", "5GB"]
    assert "warning: version 1 of demo-lm has the same weights" in _main(registered, capsys, *arguments)
    assert "warning" not in _main(registered, capsys, *arguments, "--step", "2")
