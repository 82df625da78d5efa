"""Importing a Llama checkpoint, training from it, and auditing that it was the base."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bitwitness.ledger.commitments import tensors as commit_tensors
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files.safetensors_header import write_file
from bitwitness.ledger.project import Project
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.config import Model, RunConfig, load_config, parse_config
from bitwitness.trainer.history import open_run
from bitwitness.trainer.models import imports, narrow
from bitwitness.trainer.models.imports import ImportDamaged, ImportRefused, NoSuchImport, import_checkpoint
from bitwitness.trainer.models.layout import HEAD, Layout
from bitwitness.trainer.models.llama_config import ConfigUnsupported, read_config
from bitwitness.trainer.run import train
from bitwitness.trainer.start import model_of
from bitwitness.trainer.state import state_folder

from .conftest import small_table

Json = dict[str, Any]
MODEL = Model(**small_table()["model"])
TOPOLOGY = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": 257,
}
View = tuple[str, tuple[int, ...], memoryview]


def checkpoint_tensors(dtype: str = "BF16", seed: int = 1) -> dict[str, View]:
    """Weights near 0.02 in the shapes of MODEL, as another program might have stored them."""
    rng = np.random.default_rng(seed)
    found: dict[str, View] = {}
    for name, slot in Layout(MODEL).slots.items():
        values = rng.normal(1.0 if len(slot.shape) == 1 else 0.0, 0.02, slot.size).astype(np.float32)
        raw = memoryview(values).cast("B")
        found[name] = (dtype, slot.shape, raw if dtype == "F32" else narrow.narrow(raw, dtype))
    return found


def write_checkpoint(folder: Path, tensors: dict[str, View] | None = None, config: Json | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or TOPOLOGY))
    write_file(folder / "model.safetensors", tensors or checkpoint_tensors(), {"format": "pt"})
    return folder


def start_table(**run: Any) -> Json:
    table = small_table(**{"steps": 4, "from": "import:base", **run})
    return table


def start_config(**run: Any) -> RunConfig:
    return parse_config(start_table(**run), where="test")


@pytest.fixture
def base(project: Project, tmp_path: Path) -> imports.Import:
    source = write_checkpoint(tmp_path / "checkpoint")
    return import_checkpoint(source, imports.imports_dir(project), "base")


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_widening_is_exact(tmp_path: Path, dtype: str) -> None:
    tensors = checkpoint_tensors(dtype)
    made = import_checkpoint(write_checkpoint(tmp_path / "source", tensors), tmp_path / "imports", "base")
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    widened: dict[str, View] = {}
    for name, (_, shape, raw) in tensors.items():
        wide = torch.frombuffer(bytearray(raw), dtype=types[dtype]).to(torch.float32)
        widened[name] = ("F32", shape, memoryview(wide.numpy()).cast("B"))
    assert made.weights == commit_tensors("weights/1", widened)
    digest = hashlib.sha256((tmp_path / "source" / "model.safetensors").read_bytes()).hexdigest()
    assert {"name": "model.safetensors", "sha256": digest} in made.files
    assert [item["name"] for item in made.files] == ["config.json", "model.safetensors"]


def test_every_half_widens_and_comes_back() -> None:
    """All 65,536 bit patterns of both formats, against the library's own conversion, and the way back."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype, kind in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        out = np.empty(1 << 16, dtype=np.float32)
        narrow.widen(memoryview(bits).cast("B"), dtype, out)
        library = torch.from_numpy(bits.view(np.int16).copy()).view(kind).to(torch.float32).numpy()
        number = ~np.isnan(library)
        assert (out.view(np.uint32)[number] == library.view(np.uint32)[number]).all()
        back = np.frombuffer(narrow.narrow(memoryview(out).cast("B"), dtype), dtype=np.uint16)
        assert (back[number] == bits[number]).all()


def test_sharded_and_hub_folders_give_the_same_weights(tmp_path: Path) -> None:
    tensors = checkpoint_tensors()
    whole = import_checkpoint(write_checkpoint(tmp_path / "whole", tensors), tmp_path / "imports", "whole")
    names = sorted(tensors)
    hub = tmp_path / "models--some--model"
    blobs, snapshot = hub / "blobs", hub / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("abc")
    (hub / "snapshots" / "old").mkdir()
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for file, part in shards.items():
        write_file(blobs / file, {name: tensors[name] for name in part})
        (snapshot / file).symlink_to(Path("../../blobs") / file)
    (snapshot / "config.json").write_text(json.dumps(TOPOLOGY))
    index = {"metadata": {}, "weight_map": {name: file for file, part in shards.items() for name in part}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    twice = json.dumps(index).replace('"weight_map": {', '"weight_map": {' + f'"{names[0]}": "{next(iter(shards))}", ')
    (snapshot / "model.safetensors.index.json").write_text(twice)
    with pytest.raises(ImportRefused, match="not an index"):
        import_checkpoint(hub, tmp_path / "imports", "sharded")
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = import_checkpoint(hub, tmp_path / "imports", "sharded")
    assert sharded.weights == whole.weights
    assert [item["name"] for item in sharded.files] == [
        "config.json", *shards, "model.safetensors.index.json"
    ]  # fmt: skip
    (snapshot / "model-00001-of-00002.safetensors").unlink()
    (snapshot / "model-00001-of-00002.safetensors").symlink_to(tmp_path / "whole" / "model.safetensors")
    with pytest.raises(ImportRefused, match="leads out of"):
        import_checkpoint(hub, tmp_path / "imports", "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mistral"}, "model_type = 'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = 'True'"),
        ({"mlp_bias": 0}, "mlp_bias = '0'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "scale the rotary positions"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_theta": 5e5}, "differ"),
        ({"head_dim": 16}, "head_dim"),
        ({"quantization_config": {}}, "quantization_config"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"num_attention_heads": 5}, "does not divide"),
        ({"vocab_size": "257"}, "vocabulary"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"architectures": ["MistralForCausalLM"]}, "architectures"),
    ],
)
def test_a_config_that_means_another_function_is_refused(change: Json, message: str) -> None:
    with pytest.raises(ConfigUnsupported, match=message):
        read_config(json.dumps({**TOPOLOGY, **change}).encode(), "config.json")


def test_config_defaults_are_those_of_the_library() -> None:
    short = {k: v for k, v in TOPOLOGY.items() if k not in ("rms_norm_eps", "rope_parameters", "num_key_value_heads",
                                                           "tie_word_embeddings")}  # fmt: skip
    model = read_config(json.dumps(short).encode(), "config.json")
    assert (model.norm_epsilon, model.rope_theta, model.kv_heads, model.tied) == (1e-6, 10000.0, 4, False)
    for text in (b"[]", b"{", b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff", b"{}"):
        with pytest.raises(ConfigUnsupported):
            read_config(text, "config.json")


def _without(name: str) -> Callable[[dict[str, View]], dict[str, View]]:
    return lambda tensors: {key: view for key, view in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("model.norm.weight"), "model.norm.weight is missing"),
        (lambda t: {**t, "model.extra": t["model.norm.weight"]}, "has no tensor model.extra"),
        (lambda t: {**t, "model.norm.weight": ("F32", (16,), memoryview(bytes(64)))}, r"is \[16\], not \[32\]"),
        (lambda t: {**t, "model.norm.weight": ("F64", (32,), memoryview(bytes(256)))}, "is F64"),
        (lambda t: {**t, "model.norm.weight": ("F32", (32,), memoryview(struct.pack("<f", float("inf")) * 32))}, "NaN"),
        (lambda t: {**t, HEAD: ("F32", (257, 32), memoryview(bytes(257 * 32 * 4)))}, "config.json ties them"),
    ],
)
def test_tensors_that_are_not_the_models_are_refused(
    tmp_path: Path, change: Callable[[dict[str, View]], dict[str, View]], message: str
) -> None:
    source = write_checkpoint(tmp_path / "source", change(checkpoint_tensors()))
    with pytest.raises(ImportRefused, match=message):
        import_checkpoint(source, tmp_path / "imports", "base")
    assert not list((tmp_path / "imports").glob("*"))


def test_a_config_of_more_than_the_weights_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes of configuration ask for terabytes: they are compared with the files before memory is taken."""
    big = {"hidden_size": 65536, "intermediate_size": 65536, "num_hidden_layers": 512}
    source = write_checkpoint(tmp_path / "source", config={**TOPOLOGY, **big})
    monkeypatch.setattr(imports, "State", None)
    with pytest.raises(ImportRefused, match=r"describes a model of \d{14} parameters, which the \d+ bytes of weights"):
        import_checkpoint(source, tmp_path / "imports", "a")


def test_a_tied_head_that_is_the_embedding_may_stand_in_the_file(tmp_path: Path) -> None:
    tensors = checkpoint_tensors()
    plain = import_checkpoint(write_checkpoint(tmp_path / "a", tensors), tmp_path / "imports", "a")
    twice = {**tensors, HEAD: tensors["model.embed_tokens.weight"]}
    assert (
        import_checkpoint(write_checkpoint(tmp_path / "b", twice), tmp_path / "imports", "b").weights == plain.weights
    )


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(ImportRefused, match="only safetensors are read"):
        import_checkpoint(source, tmp_path / "imports", "base")
    with pytest.raises(ImportRefused, match="not a name"):
        import_checkpoint(source, tmp_path / "imports", "../out")


def test_training_from_an_import_is_audited_from_the_known_base(project: Project, base: imports.Import) -> None:
    train(project, start_config(), threads=2)
    with project.open_ledger() as ledger:
        genesis = open_run(ledger, "r").genesis
    assert genesis["init"] == base.init()
    assert genesis["weights"] == base.weights.to_json()
    assert genesis["config"]["run"]["from"] == "import:base"
    assert audit(project, "r", samples=9, threads=2).result == "match"


def test_an_auditor_needs_the_files_or_state_0(project: Project, base: imports.Import, tmp_path: Path) -> None:
    """Without both the start is unavailable; the same files bring it back; other files of the same name do not."""
    train(project, start_config(), threads=2)
    shutil.rmtree(state_folder(project.runs_dir / "r", 0))
    shutil.rmtree(imports.imports_dir(project))
    report = audit(project, "r", threads=2)
    assert (report.result, report.units[0].outcome) == ("unavailable", "unavailable")
    assert "ledger model import" in (report.units[0].detail or "")
    import_checkpoint(
        write_checkpoint(tmp_path / "other", checkpoint_tensors(seed=2)), imports.imports_dir(project), "o"
    )
    assert audit(project, "r", threads=2).units[0].outcome == "unavailable"
    import_checkpoint(tmp_path / "checkpoint", imports.imports_dir(project), "again")
    assert audit(project, "r", samples=9, threads=2).result == "match"


def test_an_auditor_with_the_files_sees_that_they_hold_other_weights(
    project: Project, base: imports.Import, tmp_path: Path
) -> None:
    """A trainer who names honest files over weights of its own is found out by whoever imports these files."""
    record = imports.imports_dir(project) / "base"
    lie = import_checkpoint(write_checkpoint(tmp_path / "lie", checkpoint_tensors(seed=3)), tmp_path / "x", "base")
    shutil.copy(tmp_path / "x" / "base" / "weights.safetensors", record / "weights.safetensors")
    text = (record / "import.json").read_bytes()
    (record / "import.json").write_bytes(text.replace(base.weights.root.encode(), lie.weights.root.encode()))
    train(project, start_config(), threads=2)
    assert audit(project, "r", threads=2).result == "match"  # nobody has the files yet
    import_checkpoint(tmp_path / "checkpoint", imports.imports_dir(project), "honest")
    report = audit(project, "r", threads=2)
    assert report.result == "mismatch"
    assert report.units[0].found is not None and report.units[0].found["field"] == "weights"


def test_a_changed_import_begins_no_run(project: Project, base: imports.Import) -> None:
    path = imports.imports_dir(project) / "base" / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ImportDamaged, match="other weights"):
        train(project, start_config(), threads=2)
    with pytest.raises(NoSuchImport, match="there: base"):
        train(project, start_config(**{"from": "import:none"}), threads=2)
    table = start_table()
    table["model"]["rope_theta"] = 5000.0
    with pytest.raises(BitwitnessError, match=r"it has rope_theta = 10000\.0"):
        train(project, parse_config(table, where="test"), threads=2)


def test_moments_of_an_import_are_zero_whatever_the_genesis_says(
    project: Project, base: imports.Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = imports.load_import

    def load(*arguments: Any) -> Any:
        state = honest(*arguments)
        state.m[0] = 1.0
        return state

    monkeypatch.setattr("bitwitness.trainer.start.load_import", load)
    train(project, start_config(), threads=2)
    monkeypatch.undo()
    report = audit(project, "r", threads=2)
    assert report.units[0].outcome == "mismatch"
    assert report.units[0].found is not None and report.units[0].found["field"] == "optimizer"


def test_a_run_file_may_leave_the_model_to_the_import(project: Project, base: imports.Import, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nname = "r"\nsteps = 2\nfrom = "import:base"\n[data]\ntrain = "text"\nwindow = 24\n')
    config = load_config(path, model_of=lambda start: model_of(project, start))
    assert config.model == base.model == MODEL
    path.write_text(path.read_text().replace("import:base", "elsewhere"))
    with pytest.raises(BitwitnessError):
        load_config(path, model_of=lambda start: model_of(project, start))
