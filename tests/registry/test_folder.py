"""Hostile folders: links, strange files, files that change while they are read."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.registry import load_verified
from bitwitness.registry.bundles import bundle
from bitwitness.registry.folder import Folder, FolderRefused, FolderUnreadable, OpenFile
from bitwitness.registry.interop import companions
from bitwitness.registry.load import NotVerified
from bitwitness.registry.policy import load_policy
from bitwitness.registry.verify import examine

from . import project_fixture
from .conftest import Registered


def _replace_by_link(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.rename(folder.parent / "elsewhere")
    path.symlink_to("../elsewhere")


def _dangling(folder: Path) -> None:
    (folder / "x.json").symlink_to("nowhere")


def _special(folder: Path) -> None:
    os.mkfifo(folder / "config")


def _file(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).touch()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_replace_by_link, "'model.safetensors' is a symbolic link"),
        (_dangling, "'x.json' is a symbolic link"),
        (_special, "'config' is not a regular file"),
        (lambda folder: (folder / "sub").mkdir(), "'sub' is not a regular file"),
        (_file("pytorch_model.bin"), "can run code"),
        (_file("model.PT"), "can run code"),
        (_file("data.pkl"), "can run code"),
        (_file("model.ckpt"), "can run code"),
        (_file("Model.safetensors"), "differ only in case"),
        (_file(".hidden"), "not a plain file name"),
        (_file("model\u200b.safetensors"), "not a plain file name"),
        (_file("a b"), "not a plain file name"),
        (_file("a\nb"), "not a plain file name"),
    ],
)
def test_a_folder_with_something_else_in_it(
    registered: Registered, change: Callable[[Path], object], reason: str
) -> None:
    change(registered.folder)
    assert reason in registered.refused("folder")


@pytest.mark.parametrize("name", ["LICENSE", "modeling_llama.py", "extra.safetensors", "vocab.json"])
def test_a_file_that_the_release_does_not_list(registered: Registered, name: str) -> None:
    (registered.folder / name).touch()
    assert f"{name} is not listed in the release" in registered.refused("files")


@pytest.mark.parametrize("name", sorted(companions.LIMITS.keys() - {"model.sig"}))
def test_a_companion_that_does_not_follow_from_the_bundle(registered: Registered, name: str) -> None:
    (registered.folder / name).touch()
    assert name in registered.refused("export")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_is_missing(registered: Registered, name: str) -> None:
    (registered.folder / name).unlink()
    assert f"{name} is missing" in registered.refused("files")


def test_a_folder_without_a_bundle(registered: Registered) -> None:
    (registered.folder / "provenance.json").unlink()
    assert "proves nothing" in registered.refused("bundle")


def test_a_link_to_a_folder_is_refused(registered: Registered, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(registered.folder)
    (first, *_) = examine(link, load_policy(registered.policy)).checks
    assert first.ok is False
    assert "symbolic link" in first.detail


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_no_folder_at_all(registered: Registered, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderUnreadable) as caught:
        examine(tmp_path / name, load_policy(registered.policy))
    assert caught.value.exit_code == 2


def test_a_huge_file_is_not_read(registered: Registered) -> None:
    """A file longer than the signed size is refused by its length: 1 TB of holes costs nothing."""
    with open(registered.folder / "model.safetensors", "r+b") as file:
        file.truncate(1 << 40)
    assert "more than the" in registered.refused("files")


def test_a_huge_bundle_is_not_read(registered: Registered) -> None:
    with open(registered.folder / "provenance.json", "r+b") as file:
        file.truncate(1 << 40)
    assert "more than the" in registered.refused("bundle")


@pytest.mark.parametrize("item", ["[]", "{}", "0", "[[]]"])
def test_a_bundle_of_very_many_values_is_not_parsed(registered: Registered, item: str) -> None:
    """Eight million bytes of empty lists would take half a gigabyte as objects."""
    text = f'{{"entries":[{",".join([item] * (bundle.SIZE_LIMIT // (len(item) + 2)))}]}}'
    (registered.folder / "provenance.json").write_text(text)
    tracemalloc.start()
    assert "more than 400000 values" in registered.refused("bundle")
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_huge_header_is_not_parsed(registered: Registered) -> None:
    path = registered.folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[:8] = struct.pack("<Q", 100 << 20)
    path.write_bytes(data)
    assert "the header claims 104857600 bytes" in registered.refused("weights")


def test_a_folder_of_very_many_files(registered: Registered) -> None:
    for number in range(1001):
        (registered.folder / f"x{number}").touch()
    assert "more than 1000 files" in registered.refused("folder")


def test_names_never_lead_out(registered: Registered) -> None:
    with Folder(registered.folder) as folder:
        for name in ("../trust.toml", "/etc/passwd", "", ".", "..", "a/b", "a\0b"):
            with pytest.raises(FolderRefused, match="not a plain file name"):
                folder.read(name, limit=1 << 20)


def test_what_was_verified_is_what_is_loaded(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is overwritten in place as soon as it was read; the tensors are still the verified ones."""
    finish = OpenFile.finish

    def finish_then_swap(self: OpenFile) -> None:
        finish(self)
        self.path.write_bytes(b"\xff" * self.size)

    monkeypatch.setattr(OpenFile, "finish", finish_then_swap)
    tensors = load_verified(registered.folder, registered.policy)
    expected = project_fixture.weights_at(4)
    assert list(tensors) == sorted(expected)
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        assert tuple(tensor.shape) == expected[name][1]
        assert tensor.numpy().tobytes() == bytes(expected[name][2])
        tensor.zero_()  # writable, and nobody else's memory
    assert set((registered.folder / "model.safetensors").read_bytes()) == {0xFF}


def test_a_file_that_shrinks_while_it_is_read(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat

    def grown(fd: int) -> os.stat_result:
        status = real(fd)
        os.truncate(f"/proc/self/fd/{fd}", max(0, status.st_size - 1))
        return status

    monkeypatch.setattr(os, "fstat", grown)
    assert "became shorter" in registered.refused("bundle")


def test_load_verified_gives_every_reason(registered: Registered) -> None:
    path = registered.folder / "config.json"
    path.write_bytes(path.read_bytes().replace(b"LlamaForCausalLM", b"LlamaForCausalLN"))
    with pytest.raises(NotVerified) as caught:
        load_verified(registered.folder, registered.policy)
    assert caught.value.exit_code == 1
    assert {reason.split(":")[0] for reason in caught.value.reasons} == {"files", "config"}
    assert isinstance(caught.value, BitwitnessError)
    assert "\n" not in str(caught.value)
