"""Casts and merges: recorded, recomputed bit for bit, refused where a bit or a source differs."""

from __future__ import annotations

import json
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bitwitness.kernels.reference import binary32
from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.derivation_rules import check_derivation
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.errors import EntryError
from bitwitness.ledger.files.safetensors_header import read_header
from bitwitness.ledger.project import Project
from bitwitness.ledger.trust import load_trust
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.registry import derivation, derive
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.derivation import DerivationRefused
from bitwitness.registry.interop.export import export, open_version
from bitwitness.registry.names import find_version
from bitwitness.registry.policy import load_policy
from bitwitness.registry.refresh import refresh
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine
from bitwitness.trainer.models import narrow


def checks_of(folder: Path, project: Project, *sources: Path) -> dict[str, Check]:
    return {check.name: check for check in examine(folder, load_policy(project.trust_path), sources=sources).checks}


def tensors_in(folder: Path) -> dict[str, tuple[str, bytes]]:
    data = (folder / "model.safetensors").read_bytes()
    return {entry.name: (entry.dtype, data[entry.begin : entry.end]) for entry in read_header(data).tensors}


@pytest.fixture
def two(tiny: Project) -> Project:
    """Versions 1 (step 4) and 2 (step 2) of tiny-lm."""
    register(tiny, "tiny-lm", "tiny", step=2, license="Apache-2.0")
    return tiny


@pytest.mark.parametrize(("to", "dtype", "kind"), [("bf16", "BF16", torch.bfloat16), ("fp16", "F16", torch.float16)])
def test_a_cast_is_the_nearest_even_one(two: Project, to: str, dtype: str, kind: torch.dtype) -> None:
    made = derive.cast(two, "tiny-lm/1", to)
    assert made.version == f"tiny-lm-{to}/1"
    source = tensors_in(two.models_dir / "tiny-lm" / "1")
    for name, (found, raw) in tensors_in(made.path).items():
        assert found == dtype
        wide = torch.frombuffer(bytearray(source[name][1]), dtype=torch.float32)
        assert raw == wide.to(kind).view(torch.int16).numpy().tobytes()
    config = json.loads((made.path / "config.json").read_text())
    assert config["torch_dtype"] == {"bf16": "bfloat16", "fp16": "float16"}[to]


def test_casts_round_ties_to_even_and_keep_subnormals() -> None:
    """Directed bits against exact rationals: ties, carries, subnormals, the largest finite value."""
    text = "3F808000 3F818000 3F80FFFF 7F7F7FFF 00000001 00008000 00018000 80000000 477FEFFF"
    text += " 33000000 33000001 33800000 38800000 387FFFFF 387FE000 3C002000 3C006000 B3400000"
    bits = [int(digits, 16) for digits in text.split()]
    data = memoryview(struct.pack(f"<{len(bits)}I", *bits))
    for dtype, low, digits in (("F16", -24, 11), ("BF16", -133, 8)):
        narrowed = np.frombuffer(narrow.narrow(data, dtype), dtype=np.uint16)
        wide = np.empty(len(bits), dtype=np.float32)
        narrow.widen(memoryview(narrowed).cast("B"), dtype, wide)
        for given, result in zip(np.array(bits, dtype=np.uint32).view(np.float32), wide, strict=True):
            if np.isinf(result):  # from half a unit above the largest finite value on
                assert dtype == "F16" and abs(given) >= 65520
                continue
            exact = Fraction(float(given))
            exponent = -(10**9) if exact == 0 else np.frexp(float(given))[1]
            unit = Fraction(2) ** max(low, int(exponent) - digits)
            assert Fraction(float(result)) == round(exact / unit) * unit, (dtype, given)


def test_a_merge_is_one_chain_of_fused_multiply_adds(two: Project) -> None:
    parts = [("tiny-lm/2", 0.3), ("tiny-lm/1", 0.7)]
    made = derive.merge(two, parts)
    one, other = (tensors_in(two.models_dir / "tiny-lm" / str(number)) for number in (1, 2))
    factors = [struct.unpack("<I", struct.pack("<f", factor))[0] for factor in (0.7, 0.3)]  # the latest step first
    for name, (_, raw) in tensors_in(made.path).items():
        columns = [np.frombuffer(part[name][1], dtype="<u4")[:40] for part in (one, other)]
        for found, *values in zip(np.frombuffer(raw, dtype="<u4")[:40], *columns, strict=True):
            chain = binary32.ZERO
            for factor, value in zip(factors, values, strict=True):
                chain = binary32.fma(factor, int(value), chain)
            assert int(found) == binary32.add(binary32.ZERO, chain)
    assert derive.merge(two, parts[::-1], model="other").weights == made.weights  # the order given is not in the bits


def test_the_gate_recomputes_a_derivation_or_does_not_pass(two: Project) -> None:
    sources = [two.models_dir / "tiny-lm" / number for number in ("1", "2")]
    merged = derive.merge(two, [("tiny-lm/1", 0.5), ("tiny-lm/2", 0.5)])
    cast = derive.cast(two, "tiny-lm-merged", "bf16")
    bare = checks_of(merged.path, two)
    assert bare["derivation"].ok is None and exit_code(bare.values()) == 2
    assert exit_code(checks_of(merged.path, two, *sources).values()) == 0
    assert checks_of(merged.path, two, sources[0])["derivation"].ok is None
    assert exit_code(checks_of(cast.path, two, merged.path, *sources).values()) == 0
    # That the cast is right says nothing of what was cast.
    assert checks_of(cast.path, two, merged.path)["derivation"].ok is None
    assert "none of the folders" in checks_of(cast.path, two, sources[0])["derivation"].detail


def test_an_auditor_recomputes_for_those_without_the_sources(two: Project, capsys: pytest.CaptureFixture[str]) -> None:
    made = derive.cast(two, "tiny-lm/1", "bf16")
    base = ["--project", str(two.root)]
    assert main([*base, "model", "audit", "tiny-lm-bf16"]) == 0
    assert main([*base, "model", "audit", "tiny-lm-bf16"]) == 0  # in the same second, too
    refresh(two, "tiny-lm-bf16")
    checks = checks_of(made.path, two)
    assert checks["derivation"].ok is True and exit_code(checks.values()) == 0
    assert "auditor" in checks["derivation"].detail
    assert main([*base, "model", "audit", "tiny-lm"]) == 2
    assert "derives from no release" in capsys.readouterr().err


def test_a_lying_publisher_is_found_out(two: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit in one tensor is not what the rule gives: by the sources, by the auditor, and then for everybody."""
    honest = derivation._cast

    def lie(data: memoryview, dtype: str) -> memoryview:
        raw = bytearray(honest(data, dtype))
        raw[0] ^= 1
        return memoryview(raw)

    monkeypatch.setattr(derivation, "_cast", lie)
    made = derive.cast(two, "tiny-lm/1", "bf16")
    monkeypatch.undo()
    checks = checks_of(made.path, two, two.models_dir / "tiny-lm" / "1")
    assert checks["weights"].ok is True  # they are those of the release
    assert checks["derivation"].ok is False
    matched, _, _ = derive.audit(two, "tiny-lm-bf16")
    assert not matched
    refresh(two, "tiny-lm-bf16")
    assert checks_of(made.path, two)["derivation"].ok is False


def test_what_cannot_be_derived(two: Project, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--project", str(two.root), "model"]
    for arguments, message in (
        (["cast", "tiny-lm", "--to", "int8"], "is not one of bf16, fp16"),
        (["merge", "tiny-lm/1=1"], "2 to 64"),
        (["merge", "tiny-lm/1=1", "tiny-lm/2=inf"], "not a finite"),
        (["merge", "tiny-lm/1=1", "tiny-lm/1=2"], "twice"),
        (["merge", "tiny-lm/1", "tiny-lm/2"], "MODEL=FACTOR"),
        (["merge", "tiny-lm/1=3e38", "tiny-lm/2=3e38"], "not finite"),
    ):
        assert main([*base, *arguments]) == 2, arguments
        assert message in capsys.readouterr().err
    derive.cast(two, "tiny-lm", "bf16")
    with pytest.raises(DerivationRefused, match="F32"):
        derive.cast(two, "tiny-lm-bf16", "fp16")
    assert not (two.models_dir / "tiny-lm-merged").exists()


def test_a_derived_version_is_exported(two: Project, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")
    made = derive.cast(two, "tiny-lm/1", "bf16")
    export(two, "tiny-lm-bf16", tmp_path / "out", slsa=True, cyclonedx=True)
    checks = checks_of(tmp_path / "out", two, two.models_dir / "tiny-lm" / "1")
    assert exit_code(checks.values()) == 0
    assert "cast/1" in (tmp_path / "out" / "README.md").read_text()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.bfloat16
    assert made.path.is_dir()


def _release(project: Project, **changes: Any) -> dict[str, Any]:
    """The predicate of a release that derives from tiny-lm/1, changed."""
    with project.open_ledger() as ledger:
        version = find_version(ledger, "tiny-lm/1")
    base = dict(open_version(version, version.folder(project)).traced.release.predicate)
    source = {"release": version.leaf, "weights": base["weights"]}
    return {**base, "model": "x", "dtype": "BF16", "derivation": {"rule": "cast/1", "sources": [source]}, **changes}


def test_ledger_and_verifier_refuse_what_no_derivation_can_say(two: Project) -> None:
    """The same rule at the door of the ledger, in the verifier, and for the fields of one entry."""
    good = _release(two)
    source = good["derivation"]["sources"][0]
    other = {"type": "weights/1", "size": 1, "root": "00" * 32}
    publisher = two.signer("publisher")
    for changes in (
        {"derivation": {"rule": "cast/1", "sources": [{**source, "release": "11" * 32}]}},
        {"derivation": {"rule": "cast/1", "sources": [{**source, "weights": other}]}},
        {"step": 2},
        {"state": "00" * 32},
        {"dtype": "F32"},
        {"derivation": {"rule": "cast/1", "sources": [{**source, "factor": "3f800000"}]}},
        {"derivation": {"rule": "merge/1", "sources": [source]}},
        {"derivation": {"rule": "merge/1", "sources": [{**source, "factor": "3f800000"}] * 2}, "dtype": "F32"},
        {"derivation": {"rule": "cast/2", "sources": [source]}},
    ):
        changed = {**good, **changes}
        with two.open_ledger(writable=True) as ledger, pytest.raises(EntryError):
            ledger.append([seal(statement("release", None, changed), publisher)])
    with two.open_ledger(writable=True) as ledger:
        ledger.append([seal(statement("release", None, good), publisher)])
    assert not verify_ledger(two.ledger_path, load_trust(two.trust_path), processes=1).faults
    earlier = {**good, "dtype": "F32", "step": good["step"] + 1}
    assert any("later step" in text for text in check_derivation(
        {**good, "derivation": {"rule": "merge/1", "sources": [source, {**source, "release": "22" * 32}]}},
        lambda leaf: earlier if leaf == "22" * 32 else {**good, "dtype": "F32"},
    ))  # fmt: skip
