"""A release of a model of the trainer's own: its program in place of config.json, checked and never executed."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bitwitness.kernels import nn
from bitwitness.kernels.errors import KernelError
from bitwitness.ledger import jcs
from bitwitness.ledger.commitments import TensorLeaf
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.registry import from_pretrained, load_file, load_verified
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.derive import cast
from bitwitness.registry.description import ProgramRefused, check_description
from bitwitness.registry.interop.export import export
from bitwitness.registry.policy import load_policy
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.run import train

from ..trainer.conftest import make_project, small_table
from ..trainer.own_models import GPT


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a trained and audited model of its own, released as `own-lm/1`; its file is gone."""
    project = make_project(tmp_path_factory.mktemp("own") / "project")
    (project.root / "gpt.py").write_text(GPT)
    table = small_table(steps=2) | {"model": "gpt.py:GPT"}
    train(project, parse_config(table, where="test"), threads=2)
    (project.root / "gpt.py").unlink()
    audit(project, "r", samples=1, threads=2)
    register(project, "own-lm", "r")
    return project


@pytest.fixture
def version(released: Project, tmp_path: Path) -> Path:
    copy = tmp_path / "version"
    shutil.copytree(released.models_dir / "own-lm" / "1", copy)
    return copy


def _checks(folder: Path, project: Project) -> dict[str, Check]:
    return {check.name: check for check in examine(folder, load_policy(project.trust_path)).checks}


def test_it_verifies_and_loads_under_the_names_of_its_parameters(released: Project, version: Path) -> None:
    assert {path.name for path in version.iterdir()} == {"model.safetensors", "model.json", "provenance.json"}
    assert (version / "model.json").read_bytes() == (released.runs_dir / "r" / "model.json").read_bytes()
    checks = _checks(version, released)
    assert exit_code(checks.values()) == 0
    assert checks["program"].ok and "the program that the genesis commits to" in checks["program"].detail
    assert "config" not in checks
    loaded = load_verified(version, released.trust_path)
    scope: dict[str, Any] = {}
    exec(GPT, scope)
    scope["GPT"]().load_state_dict(loaded | {"head.weight": loaded["tokens.weight"]})
    assert loaded["tokens.weight"].shape == (257, 32) and loaded["tokens.weight"].dtype == torch.float32


def test_another_program_is_found_wrong(released: Project, version: Path) -> None:
    program = bytearray((version / "model.json").read_bytes())
    program[-2] ^= 1
    (version / "model.json").write_bytes(program)
    checks = _checks(version, released)
    assert exit_code(checks.values()) == 1 and checks["program"].ok is False
    (version / "model.json").unlink()
    assert exit_code(_checks(version, released).values()) == 1


def test_a_config_beside_it_is_found_wrong(released: Project, version: Path) -> None:
    """Libraries would take it for another function."""
    (version / "config.json").write_text('{"model_type":"llama"}')
    checks = _checks(version, released)
    assert exit_code(checks.values()) == 1
    assert checks["files"].ok is False and "config.json is not listed in the release" in checks["files"].detail


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda program: None, None),
        (lambda program: program["parameters"].pop(), "other parameters"),
        (lambda program: program["parameters"].append(program["parameters"][0]), "other parameters"),
        (lambda program: program["parameters"][0]["shape"].append(1), "of the shape"),
        (lambda program: program["parameters"][0].update(name=["x"]), "not a captured model"),
        (lambda program: program["parameters"][0].update(name=7), "other parameters"),
        (lambda program: program.update(parameters=7), "not a captured model"),
        (lambda program: program.update(window=25), "for windows of 25"),
        (lambda program: program.update(format="captured/2"), "of the form"),
        (lambda program: program.pop("format"), "not a captured model"),
    ],
)
def test_a_program_that_a_trainer_committed_to_must_fit_the_weights(
    released: Project, change: Change, said: str | None
) -> None:
    """Whoever trains may commit to any bytes; the gate holds them against what is released."""
    folder = released.models_dir / "own-lm" / "1"
    program = json.loads((folder / "model.json").read_bytes())
    leaves = [TensorLeaf(item["name"], "F32", tuple(item["shape"]), 0, "") for item in list(program["parameters"])]
    change(program)
    _check(jcs.encode(program), leaves, said)


@pytest.mark.parametrize("data", [b"", b"7", b"{}", b'{"format": "captured/1"}', b"[" * 5000, b"\xff"])
def test_bytes_that_are_no_program_are_refused(data: bytes) -> None:
    _check(data, [], "not a captured model")


def _check(data: bytes, leaves: list[TensorLeaf], said: str | None) -> None:
    genesis = {"model": {"program": hashlib.sha256(data).hexdigest()}, "config": {"data": {"window": 24}}}
    if said is None:
        assert check_description({"model.json": data}, genesis, "F32", leaves)
        return
    with pytest.raises(ProgramRefused, match=said):
        check_description({"model.json": data}, genesis, "F32", leaves)
    with pytest.raises(ProgramRefused, match=r"lists config\.json, which does not follow"):
        check_description({"model.json": data, "config.json": b"{}"}, genesis, "F32", leaves)
    with pytest.raises(ProgramRefused, match=r"lists no config\.json"):
        check_description({"model.json": data}, {"config": {}}, "F32", leaves)


def test_a_cast_keeps_the_program(released: Project) -> None:
    made = cast(released, "own-lm", "bf16")
    assert {path.name for path in made.path.iterdir()} == {"model.safetensors", "model.json", "provenance.json"}
    verdict = examine(made.path, load_policy(released.trust_path), sources=[released.models_dir / "own-lm" / "1"])
    assert exit_code(verdict.checks) == 0


@pytest.fixture(scope="module")
def exported(released: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all that stands beside a release, cut into shards."""
    folder = tmp_path_factory.mktemp("exported") / "out"
    made = export(released, "own-lm", folder, shard_size=30_000, slsa=True, cyclonedx=True, oms=True)
    assert {"model.json", "README.md", "tokenizer.json", "provenance.json"} <= made.files.keys()
    assert not {"config.json", "generation_config.json"} & made.files.keys()
    return folder


def test_an_export_verifies_with_every_file_beside_it(released: Project, exported: Path) -> None:
    checks = _checks(exported, released)
    assert exit_code(checks.values()) == 0 and checks["program"].ok
    assert (exported / "model.json").read_bytes() == (released.runs_dir / "r" / "model.json").read_bytes()
    program = hashlib.sha256((exported / "model.json").read_bytes()).hexdigest()
    card = (exported / "README.md").read_text()
    assert "llama" not in card and "transformers" not in card and f"SHA-256 `{program}`" in card
    assert f"| captured from | `gpt.py:GPT`, SHA-256 `{hashlib.sha256(GPT.encode()).hexdigest()}` |" in card
    component = json.loads((exported / "bom.cdx.json").read_bytes())["metadata"]["component"]
    parameters = component["modelCard"]["modelParameters"]
    assert parameters["modelArchitecture"] == "GPT" and "architectureFamily" not in parameters
    assert {"name": "bitwitness:program", "value": program} in component["properties"]
    statement = json.loads(base64.b64decode(json.loads((exported / "model.intoto.jsonl").read_bytes())["payload"]))
    made_of = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"digest": {"sha256": program}, "name": "model/program"} in made_of
    for name in ("README.md", "bom.cdx.json", "model.intoto.jsonl", "tokenizer.json"):
        kept = (exported / name).read_bytes()
        (exported / name).write_bytes(kept.replace(b"e", b"f", 1))
        try:
            assert _checks(exported, released)["export"].ok is False
        finally:
            (exported / name).write_bytes(kept)


def test_an_export_loads_into_its_module(released: Project, exported: Path) -> None:
    loaded = load_verified(exported, released.trust_path)
    shard = next(path for path in sorted(exported.iterdir()) if path.name.startswith("model-00001"))
    part = load_file(shard, policy=released.trust_path)
    assert 0 < len(part) < len(loaded) and all(torch.equal(part[name], loaded[name]) for name in part)
    scope: dict[str, Any] = {}
    exec(GPT, scope)
    model = scope["GPT"]()
    nn.load_parameters(model, loaded)
    assert torch.equal(model.head.weight, loaded["tokens.weight"])
    assert all(torch.equal(parameter, loaded[name]) for name, parameter in model.named_parameters())
    for wrong, said in (
        ({"tokens.weight": torch.zeros(3)}, "tokens.weight has the shape"),
        ({"head.weight": torch.zeros(3)}, "head.weight is not in the model"),
    ):
        with pytest.raises(KernelError, match=said):
            nn.load_parameters(model, loaded | wrong)
    with pytest.raises(KernelError, match=r"norm\.bias is not in the tensors"):
        nn.load_parameters(model, {name: tensor for name, tensor in loaded.items() if name != "norm.bias"})


def test_what_transformers_does_not_know_is_refused_in_one_line(released: Project) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")
    with pytest.raises(BitwitnessError, match=r"give it the tensors of load_verified") as refused:
        from_pretrained(released.models_dir / "own-lm" / "1", released.trust_path)
    assert "\n" not in str(refused.value)


def test_without_its_program_a_run_is_not_released(released: Project) -> None:
    path = released.runs_dir / "r" / "model.json"
    kept = path.read_bytes()
    try:
        for write in (lambda: path.write_bytes(kept[:-1] + b" "), path.unlink):
            write()
            with pytest.raises(ProgramRefused, match=r"model\.json"):
                register(released, "other-lm", "r")
            assert not (released.models_dir / "other-lm").exists()
    finally:
        path.write_bytes(kept)
