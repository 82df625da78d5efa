"""The gate on exported folders: what an export adds must follow from the bundle, to the byte."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from bitwitness.ledger import p256
from bitwitness.ledger.project import Project
from bitwitness.registry import from_pretrained
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.interop import oms
from bitwitness.registry.interop.export import digests, export
from bitwitness.registry.load import NotVerified
from bitwitness.registry.policy import PolicyError, load_policy
from bitwitness.registry.verify import examine

from .conftest import Registered


def checks_of(folder: Path, policy: Path) -> dict[str, Check]:
    return {check.name: check for check in examine(folder, load_policy(policy)).checks}


@pytest.fixture
def exported(registered: Registered, tmp_path: Path) -> Path:
    export(registered.project, "demo-lm", tmp_path / "out", slsa=True, cyclonedx=True, oms=True)
    return tmp_path / "out"


def test_an_export_still_verifies(registered: Registered, exported: Path) -> None:
    checks = checks_of(exported, registered.policy)
    assert exit_code(checks.values()) == 0, [check for check in checks.values() if not check.ok]
    assert "README.md" in checks["export"].detail
    assert (checks["oms"].ok, checks["oms"].required) == (None, False)


def test_many_shards_take_few_descriptors(registered: Registered, tmp_path: Path) -> None:
    """One file is open at a time, in an export and in the gate, however many there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    checks_of(registered.folder, registered.policy)  # what a first run opens stays open
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    try:
        export(registered.project, "demo-lm", tmp_path / "out", shard_size=1)
        checks = checks_of(tmp_path / "out", registered.policy)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 8
    assert exit_code(checks.values()) == 0, [check for check in checks.values() if not check.ok]


@pytest.mark.parametrize("size", [100, 150, 300])
def test_an_export_in_shards_still_verifies(registered: Registered, tmp_path: Path, size: int) -> None:
    export(registered.project, "demo-lm", tmp_path / "out", shard_size=size, cyclonedx=True)
    checks = checks_of(tmp_path / "out", registered.policy)
    assert exit_code(checks.values()) == 0, [check for check in checks.values() if not check.ok]
    assert "files of their own" in checks["files"].detail
    shard = next(path for path in sorted((tmp_path / "out").iterdir()) if path.name.startswith("model-00001"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert checks_of(tmp_path / "out", registered.policy)["weights"].ok is False
    shard.unlink()
    assert checks_of(tmp_path / "out", registered.policy)["files"].ok is False


def test_shards_beside_the_released_file_are_refused(registered: Registered, tmp_path: Path) -> None:
    export(registered.project, "demo-lm", tmp_path / "out", shard_size=100)
    weights = registered.folder / "model.safetensors"
    (tmp_path / "out" / "model.safetensors").write_bytes(weights.read_bytes())
    assert "is not listed in the release" in checks_of(tmp_path / "out", registered.policy)["files"].detail


@pytest.mark.parametrize(
    "name",
    ["README.md", "bom.cdx.json", "generation_config.json", "model.intoto.jsonl", "tokenizer.json",
     "tokenizer_config.json"],
)  # fmt: skip
def test_every_added_file_is_compared(tiny: Project, tmp_path: Path, name: str) -> None:
    export(tiny, "tiny-lm", tmp_path / "out", slsa=True, cyclonedx=True)
    assert exit_code(checks_of(tmp_path / "out", tiny.trust_path).values()) == 0
    path = tmp_path / "out" / name
    data = path.read_bytes()
    path.write_bytes(data.replace(b"e", b"f", 1))
    checks = checks_of(tmp_path / "out", tiny.trust_path)
    assert checks["export"].ok is False
    assert exit_code(checks.values()) == 1


def test_the_policy_may_ask_for_an_oms_signature(registered: Registered, exported: Path) -> None:
    pem = (registered.project.keys_dir / "oms.pub").read_text()
    policy = registered.policy
    text = policy.read_text()
    policy.write_text(f"{text}\n[oms]\nkey = '''{pem}'''\n")
    checks = checks_of(exported, policy)
    assert checks["oms"].ok is True and exit_code(checks.values()) == 0
    assert checks_of(registered.folder, policy)["oms"].ok is False  # it has none
    other = p256.create(exported.parent / "other.pem")
    files = {name: digest for name, digest in digests(exported).items() if name != oms.FILE_NAME}
    (exported / oms.FILE_NAME).write_bytes(oms.sign(files, "x", other))
    assert "another key" in checks_of(exported, policy)["oms"].detail
    key = p256.load_private(registered.project.key_path("oms"))
    (exported / oms.FILE_NAME).write_bytes(oms.sign({**files, "config.json": "00" * 32}, "x", key))
    assert "config.json" in checks_of(exported, policy)["oms"].detail
    policy.write_text(f"{text}\n[oms]\nkey = 'none'\n")
    with pytest.raises(PolicyError, match=r"oms\.key"):
        load_policy(policy)


def test_from_pretrained_is_made_of_what_was_verified(
    tiny: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")
    import torch

    folder = tiny.models_dir / "tiny-lm" / "1"
    model = from_pretrained(folder, tiny.trust_path)
    assert isinstance(model, transformers.LlamaForCausalLM) and not model.training
    tokens = torch.tensor([[57, 57, 32, 103]])
    # Computed before the file is cut: what `transformers` loads by itself stays mapped to the file.
    plain = transformers.LlamaForCausalLM.from_pretrained(folder).eval()(tokens).logits.detach().clone()
    assert torch.equal(model(tokens).logits, plain)
    assert (model.config.eos_token_id, model.dtype) == (256, torch.float32)

    # The folder is swapped for another after the check: the model is still that of the checked bytes.
    from bitwitness.registry import load
    from bitwitness.registry.interop import pretrained

    honest = load.passed

    def swapped(path: Path, policy: Path):  # type: ignore[no-untyped-def]
        verdict = honest(path, policy)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
        (path / "model.safetensors").write_bytes(b"")
        return verdict

    monkeypatch.setattr(pretrained, "passed", swapped)
    again = from_pretrained(folder, tiny.trust_path)
    assert torch.equal(again(tokens).logits, plain)
    monkeypatch.undo()
    with pytest.raises(NotVerified):
        from_pretrained(folder, tiny.trust_path)


def test_without_transformers_one_line_says_what_to_install(tiny: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from bitwitness.registry.interop.pretrained import PackageMissing

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PackageMissing, match=r"pip install 'bitwitness\[hf\]'"):
        from_pretrained(tiny.models_dir / "tiny-lm" / "1", tiny.trust_path)
