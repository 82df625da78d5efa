"""Exports, read by the programs that they are made for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from bitwitness.kernels import host
from bitwitness.kernels.program import Executor
from bitwitness.ledger.cli import main
from bitwitness.ledger.files.sizes import parse_size
from bitwitness.ledger.jcs import encode, parse
from bitwitness.ledger.project import Project
from bitwitness.registry.interop import export as exports
from bitwitness.registry.interop.export import ExportRefused, VersionChanged, export
from bitwitness.trainer.models import model as programs
from bitwitness.trainer.models.imports import import_checkpoint
from bitwitness.trainer.models.layout import Layout
from bitwitness.trainer.state import Control, load_state, state_folder

from . import trained
from .conftest import Registered

os.environ["HF_HUB_OFFLINE"] = "1"


class _Logits(programs._Decoder):
    """The built-in model's forward pass, with its logits kept."""

    def temp(self, name: str, *shape: int):  # type: ignore[no-untyped-def]
        return self.b.buffer(name, shape, kind="output") if name == "logits" else super().temp(name, *shape)


def our_logits(project: Project, tokens: list[int]) -> torch.Tensor:
    """float32 logits [tokens, vocabulary] of one window, by the operators of the trainer."""
    run = trained.CONFIG.run.model_copy(update={"precision": "fp32"})  # as who loads the weights computes
    config = trained.CONFIG.model_copy(update={"run": run})
    layout = Layout(config.model)
    decoder = _Logits(config, layout, 1)
    logits = decoder.forward()[-1]
    decoder.b.call("cross_entropy_loss", logits, decoder.targets, decoder.loss, decoder.nll, z_loss=0.0)
    rows = config.data.window
    assert len(tokens) == rows
    state = load_state(state_folder(project.runs_dir / "tiny", 4), layout, Control())
    cos, sin = host.rope_tables(range(rows), config.model.head_width, config.model.rope_theta)
    out = torch.zeros((rows, config.model.vocabulary))
    bound = {
        "params": state.params,
        "ids": np.array(tokens, dtype=np.int32),
        "targets": np.array(tokens, dtype=np.int32),
        "positions": np.arange(rows, dtype=np.int32),
        "start": np.zeros(rows, dtype=np.int32),
        "cos": cos,
        "sin": sin,
        "loss": torch.zeros(rows),
        "nll": torch.zeros(rows),
        "logits": out,
    }
    Executor(decoder.b.build(), 2).run(bound)
    return out


def test_transformers_computes_the_same_logits(tiny: Project, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")
    tokens = [*list(b"99 green bottles standing")[:23], 256]
    ours = our_logits(tiny, tokens)
    assert ours.std() > 0.1  # trained weights, and logits that differ from one another
    for size in ("5GB", "20KB"):
        made = export(tiny, "tiny-lm", tmp_path / size, shard_size=parse_size(size))
        assert ("model.safetensors.index.json" in made.files) == (size == "20KB")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / size, dtype=torch.float32).eval()
        with torch.no_grad():
            theirs = model(torch.tensor([tokens])).logits[0]
        assert (theirs - ours).abs().max() < 1e-4
        assert model.generation_config.eos_token_id == 256


def test_the_tokenizer_gives_the_tokens_of_training(tiny: Project, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")
    export(tiny, "tiny-lm/1", tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("99 bottles", "  two — Ünïcode 🙂\x00\r\n", "<|endoftext|> is text", "", "<0x41></s>", "é\u0301 " * 9):
        tokens = tokenizer(text)["input_ids"]
        assert tokens == list(text.encode())
        assert tokenizer.decode(tokens) == text
    assert (tokenizer.eos_token_id, tokenizer.vocab_size) == (256, 257)


@pytest.mark.parametrize("size", ["5GB", "20KB"])
def test_an_export_imports_to_the_same_root(tiny: Project, tmp_path: Path, size: str) -> None:
    made = export(tiny, "tiny-lm", tmp_path / "out", shard_size=parse_size(size))
    back = import_checkpoint(tmp_path / "out", tmp_path / "imports", "back")
    release = exports.open_version(made.version, made.version.folder(tiny)).traced.release.predicate
    assert back.weights.to_json() == release["weights"]
    assert back.model.model_dump(exclude={"init_std"}) == trained.CONFIG.model.model_dump(exclude={"init_std"})


def test_what_transformers_saves_imports_to_the_same_root(tiny: Project, tmp_path: Path) -> None:
    """There and back through the library itself, in its own spelling of config.json, cut into shards by it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")
    export(tiny, "tiny-lm", tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    model.save_pretrained(tmp_path / "saved", max_shard_size="30KB")
    assert (tmp_path / "saved" / "model.safetensors.index.json").exists()
    one = import_checkpoint(tmp_path / "out", tmp_path / "imports", "one")
    two = import_checkpoint(tmp_path / "saved", tmp_path / "imports", "two")
    assert (one.weights, one.model) == (two.weights, two.model)


def test_a_changed_version_is_not_exported(registered: Registered, tmp_path: Path) -> None:
    weights = registered.folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(VersionChanged, match=r"model\.safetensors has other bytes"):
        export(registered.project, "demo-lm", tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_an_export_replaces_nothing(registered: Registered, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").write_text("x")
    with pytest.raises(ExportRefused, match="no empty folder"):
        export(registered.project, "demo-lm", tmp_path / "out")
    base = ["--project", str(registered.project.root), "model", "export", "demo-lm"]
    assert main([*base, str(tmp_path / "new"), "--shard-size", "1.5GB"]) == 2
    assert "is not a size" in capsys.readouterr().err
    assert main([*base, str(tmp_path / "new"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(files) == sorted(path.name for path in (tmp_path / "new").iterdir())
    assert "README.md" in files


def test_an_export_holds_the_signed_files_and_proof_as_they_are(registered: Registered, tmp_path: Path) -> None:
    export(registered.project, "demo-lm", tmp_path / "out")
    for path in registered.folder.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    proof = parse((tmp_path / "out" / "provenance.json").read_bytes(), max_bytes=1 << 24)
    assert encode(proof) == (registered.folder / "provenance.json").read_bytes()


def test_the_current_folder_is_a_new_one_if_it_is_empty(
    registered: Registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    assert export(registered.project, "demo-lm/1", Path()).path == tmp_path / "out"
    assert (tmp_path / "out" / "provenance.json").is_file()
