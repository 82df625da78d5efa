"""The neighbours' formats: written for their own unmodified programs, and read from them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import p256
from bitwitness.ledger.entry.envelope import pae
from bitwitness.ledger.errors import KeyFileError, WrongPassphrase
from bitwitness.ledger.keys import passphrase_from_prompt
from bitwitness.registry.interop import companions, cyclonedx, oms, slsa
from bitwitness.registry.interop.export import digests, export, open_version
from bitwitness.registry.names import find_version

from .conftest import Registered

Json = dict[str, Any]


@pytest.fixture
def exported(registered: Registered, tmp_path: Path) -> Path:
    export(registered.project, "demo-lm", tmp_path / "out", slsa=True, cyclonedx=True, oms=True)
    return tmp_path / "out"


def _model_signing(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("model_signing", reason="model-signing is not installed (extra dev)")
    command = [sys.executable, "-c", "from model_signing._cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_unmodified_verifier_accepts_our_signature(registered: Registered, exported: Path) -> None:
    public = registered.project.keys_dir / "oms.pub"
    arguments = [
        "verify",
        "key",
        str(exported),
        "--signature",
        str(exported / "model.sig"),
        "--public_key",
        str(public),
    ]
    found = _model_signing(*arguments)
    assert found.returncode == 0, found.stdout + found.stderr
    with open(exported / "README.md", "ab") as file:
        file.write(b"more")
    found = _model_signing(*arguments)
    assert found.returncode != 0
    assert "README.md" in found.stdout + found.stderr


def test_we_accept_the_signature_of_the_unmodified_signer(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes(9))
    key = p256.create(tmp_path / "key.pem")
    signature = tmp_path / "model" / "model.sig"
    found = _model_signing(
        "sign", "key", str(model), "--signature", str(signature), "--private_key", str(tmp_path / "key.pem")
    )
    assert found.returncode == 0, found.stdout + found.stderr
    name, files = oms.verify(signature.read_bytes(), key)
    assert name == "model"
    assert "2 files" in oms.compare(files, digests(model))
    (model / "config.json").write_text("{ }")
    with pytest.raises(oms.OmsRefused, match=r"config\.json"):
        oms.compare(files, digests(model))


def test_the_projects_published_vector_is_well_formed(tmp_path: Path) -> None:
    """Its public key (P-384) is not published with it: what can be read of it is read, and no other key passes."""
    folder = os.environ.get("BITWITNESS_VECTORS") or str(Path(__file__).parents[2].parent / "shared" / "vectors")
    path = Path(folder) / "oms" / "v1.1.0-elliptic-key" / "model.sig"
    if not path.exists():
        pytest.skip("the public vectors are not here (BITWITNESS_VECTORS)")
    with pytest.raises(oms.OmsRefused, match="names another key"):
        oms.verify(path.read_bytes(), p256.create(tmp_path / "key.pem"))
    payload = json.loads(base64.b64decode(json.loads(path.read_text())["dsseEnvelope"]["payload"]))
    listed = {item["name"]: item["digest"] for item in payload["predicate"]["resources"]}
    assert listed == {name: hashlib.sha256((path.parent / name).read_bytes()).hexdigest() for name in listed}
    assert sorted(listed) == ["signme-1", "signme-2"]
    # What its signer was told to ignore lies beside them; our exports sign all that is there, and ignore nothing.
    assert hashlib.sha256((path.parent / "ignore-me").read_bytes()).hexdigest() not in listed.values()
    assert oms._root(payload["predicate"]["resources"]) == payload["subject"][0]["digest"]["sha256"]


def _resign(change: Callable[[Json], None], key: p256.P256Key, data: bytes) -> bytes:
    bundle = json.loads(data)
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    signature = key.sign(pae("application/vnd.in-toto+json", payload))
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    return json.dumps(bundle).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["subject"][0]["digest"].update(sha256="00" * 32), "do not add up"),
        (lambda s: s.update(predicateType="https://example.org/x"), "something else"),
        (lambda s: s["predicate"]["serialization"].update(allow_symlinks=True), "symbolic links"),
        (lambda s: s["predicate"]["serialization"].update(method="shards"), "whole files"),
        (lambda s: s["predicate"]["resources"].append(s["predicate"]["resources"][0]), "names a file twice"),
        (lambda s: s["predicate"]["resources"][0].update(algorithm="blake3"), "not SHA-256"),
        (lambda s: s.pop("subject"), "does not hold"),
    ],
)
def test_a_signed_statement_of_another_kind_is_refused(
    tmp_path: Path, change: Callable[[Json], None], message: str
) -> None:
    key = p256.create(tmp_path / "key.pem")
    data = oms.sign({"a": "11" * 32, "b": "22" * 32}, "m", key)
    assert oms.verify(data, key) == ("m", {"a": "11" * 32, "b": "22" * 32})
    with pytest.raises(oms.OmsRefused, match=message):
        oms.verify(_resign(change, key, data), key)


def test_bytes_that_are_no_signature_are_refused(tmp_path: Path) -> None:
    key, other = p256.create(tmp_path / "key.pem"), p256.create(tmp_path / "other.pem")
    data = oms.sign({"a": "11" * 32}, "m", key)
    with pytest.raises(oms.OmsRefused, match="another key"):
        oms.verify(data, other)
    flipped = json.loads(data)
    raw = bytearray(base64.b64decode(flipped["dsseEnvelope"]["payload"]))
    raw[raw.index(b"11")] ^= 1
    flipped["dsseEnvelope"]["payload"] = base64.b64encode(raw).decode()
    with pytest.raises(oms.OmsRefused, match="not signed by"):
        oms.verify(json.dumps(flipped).encode(), key)
    twice = data.replace(b'{\n  "dsse', b'{"mediaType": "x", "dsse', 1)
    for bad in (b"", b"{}", b"[" * 100_000, b"\xff", data[:-9], twice):
        with pytest.raises(oms.OmsRefused):
            oms.verify(bad, key)
    for files in ({}, {"a": "22" * 32}, {"a": "11" * 32, "b": "11" * 32}):
        with pytest.raises(oms.OmsRefused):
            oms.compare({"a": "11" * 32}, files)


def test_the_p256_key_is_kept_like_the_others(tmp_path: Path) -> None:
    path = tmp_path / "oms.pem"
    made = p256.create(path, b"secret")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyFileError, match="encrypted"):
        p256.load_private(path)
    with pytest.raises(WrongPassphrase):
        p256.load_private(path, passphrase_from_prompt(lambda text: "other", ""))
    assert p256.load_private(path, passphrase_from_prompt(lambda text: "secret", "")).pem == made.pem
    with pytest.raises(KeyFileError, match="never overwritten"):
        p256.create(path)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="others can read"):
        p256.load_private(path)


def test_the_slsa_statement_names_data_code_and_checkpoint(registered: Registered, exported: Path) -> None:
    with registered.project.open_ledger() as ledger:
        opened = open_version(find_version(ledger, "demo-lm"), registered.folder)
    publisher = registered.project.signer("publisher").public
    data = (exported / slsa.FILE_NAME).read_bytes()
    files = companions.described(digests(exported))
    assert "follows from the bundle" in slsa.check(data, opened.traced, opened.checkpoint, files, publisher)
    statement = json.loads(base64.b64decode(json.loads(data)["payload"]))
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {item["name"]: item["digest"]["sha256"] for item in statement["subject"]} == files
    definition = statement["predicate"]["buildDefinition"]
    found = {item["name"]: item["digest"] for item in definition["resolvedDependencies"]}
    genesis = opened.traced.genesis.predicate
    assert found["code"] == {"bitwitnessTree1": genesis["code"]["root"]}
    assert found["dataset/train/text"] == {"bitwitnessTree1": genesis["datasets"][0]["dataset"]["root"]}
    assert found["log/checkpoint"] == {"sha256": hashlib.sha256(opened.checkpoint.encode()).hexdigest()}
    assert set(definition) >= {"buildType", "externalParameters", "resolvedDependencies"}
    assert statement["predicate"]["runDetails"]["builder"]["id"]
    log = registered.project.signer("log")
    for bad, key in (
        (data.replace(b'"sig":"', b'"sig":"A', 1), publisher),
        (data + b"\n", publisher),
        (b"{}", publisher),
        (slsa.write(opened.traced, opened.checkpoint, files, log), publisher),
        (data, log.public),
    ):
        with pytest.raises(slsa.SlsaRefused):
            slsa.check(bad, opened.traced, opened.checkpoint, files, key)
    with pytest.raises(slsa.SlsaRefused):
        slsa.check(data, opened.traced, opened.checkpoint, {**files, "config.json": "00" * 32}, publisher)


def test_cyclonedx_validates_the_bom(registered: Registered, exported: Path) -> None:
    validators = pytest.importorskip("cyclonedx.validation.json", reason="cyclonedx-python-lib is not here (extra dev)")
    from cyclonedx.schema import SchemaVersion

    text = (exported / cyclonedx.FILE_NAME).read_text()
    validator = validators.JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace("machine-learning-model", "model", 1)) is not None
    bom = json.loads(text)
    listed = {item["name"]: item["hashes"][0]["content"] for item in bom["components"] if item["type"] == "file"}
    assert listed == companions.described(digests(exported))
    (dataset,) = [item for item in bom["components"] if item["type"] == "data"]
    references = bom["metadata"]["component"]["modelCard"]["modelParameters"]["datasets"]
    assert references == [{"ref": dataset["bom-ref"]}]
    assert (
        export(registered.project, "demo-lm", exported.parent / "again", cyclonedx=True).files[cyclonedx.FILE_NAME]
        == hashlib.sha256(text.encode()).hexdigest()
    )
