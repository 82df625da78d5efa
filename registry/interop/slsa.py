"""SLSA provenance v1 of an exported version: an in-toto statement in a DSSE envelope by the publisher's key.

Tools that know SLSA (https://slsa.dev/spec/v1.0/provenance) read from it what the model was made of: data, code,
initial weights, and the log's checkpoint. Every value is one of the signed entries'; the gate builds it again and
compares.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from bitwitness.ledger import jcs
from bitwitness.ledger.entry.envelope import PAYLOAD_TYPE, assemble, pae
from bitwitness.ledger.errors import FoundWrong, SignatureError
from bitwitness.ledger.keys import PublicKey, Signer

from ..bundles.lineage import Lineage, RunLine
from ..description import is_own

FILE_NAME = "model.intoto.jsonl"
LIMIT = 4 << 20
PREDICATE = "https://slsa.dev/provenance/v1"
_BUILD_TYPE = "https://bitwitness.dev/run/v1"
_BUILDER = "https://bitwitness.dev/trainer/v1"
_TREE, _SHA256 = "bitwitnessTree1", "sha256"


class SlsaRefused(FoundWrong):
    """`model.intoto.jsonl` does not say what follows from the bundle, or is not by the release's publisher."""


def statement(traced: Lineage, checkpoint: str, files: Mapping[str, str]) -> dict[str, Any]:
    """The in-toto statement. ``checkpoint`` is the bundle's note, ``files`` the SHA-256 of every exported file."""
    genesis, released = traced.genesis.predicate, traced.own.made[traced.release.leaf]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": _parameters(traced),
                "resolvedDependencies": list(_dependencies(traced, checkpoint)),
            },
            "runDetails": {
                "builder": {"id": _BUILDER, "version": {"arithmetic": genesis["arithmetic"]["version"]}},
                "metadata": {
                    "finishedOn": released.predicate["observed"]["time"],
                    "invocationId": traced.genesis.leaf,
                    "startedOn": genesis["observed"]["time"],
                },
            },
        },
        "predicateType": PREDICATE,
        "subject": [{"digest": {_SHA256: files[name]}, "name": name} for name in sorted(files)],
    }


def write(traced: Lineage, checkpoint: str, files: Mapping[str, str], publisher: Signer) -> bytes:
    """The bytes of model.intoto.jsonl: one DSSE envelope, one line."""
    payload = jcs.encode(statement(traced, checkpoint, files))
    return _line(payload, publisher.keyid, publisher.sign(pae(PAYLOAD_TYPE, payload)))


def check(data: bytes, traced: Lineage, checkpoint: str, files: Mapping[str, str], publisher: PublicKey) -> str:
    """One line if the file is what `write` gives, signed by the key that signed the release; raises SlsaRefused."""
    payload = jcs.encode(statement(traced, checkpoint, files))
    signature = _signature(data)
    if data != _line(payload, publisher.keyid, signature):
        raise SlsaRefused(f"{FILE_NAME} does not say what follows from the bundle and the files beside it")
    try:
        publisher.verify(signature, pae(PAYLOAD_TYPE, payload))
    except SignatureError as error:
        raise SlsaRefused(f"{FILE_NAME} is not signed by the publisher of the release") from error
    return f"SLSA provenance of {len(files)} files follows from the bundle"


def _signature(data: bytes) -> bytes:
    """The signature that the file carries, unchecked."""
    if jcs.nests_deeper(data, jcs.MAX_DEPTH):
        raise SlsaRefused(f"{FILE_NAME} is nested too deeply")
    try:
        return base64.b64decode(json.loads(data)["signatures"][0]["sig"], validate=True)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise SlsaRefused(f"{FILE_NAME} is not one DSSE envelope") from error


def _line(payload: bytes, keyid: str, signature: bytes) -> bytes:
    return assemble(payload, keyid, signature) + b"\n"


def _parameters(traced: Lineage) -> dict[str, Any]:
    """What decides the weights beside the dependencies; of a derived release its rule, and each other run's part."""
    release, genesis = traced.release.predicate, traced.genesis.predicate
    found: dict[str, Any] = {
        "config": genesis["config"],
        "release": {"dtype": release["dtype"], "step": release["step"]},
        "seed": genesis["seed"],
    }
    if "derivation" in release:
        found["derivation"] = release["derivation"]
    if len(traced.runs) > 1:
        found["runs"] = [
            {
                "config": line.genesis.predicate["config"],
                "run": line.genesis.leaf,
                "seed": line.genesis.predicate["seed"],
            }
            for line in traced.runs[1:]
        ]
    return found


def _dependencies(traced: Lineage, checkpoint: str) -> Iterator[dict[str, Any]]:
    yield from _of_run(traced.own, "")
    for line in traced.runs[1:]:
        yield from _of_run(line, f"run/{line.genesis.leaf}/")
    for source in traced.sources:
        yield {"digest": {_TREE: source.predicate["weights"]["root"]}, "name": f"release/{source.leaf}"}
    yield {
        "content": base64.b64encode(checkpoint.encode()).decode(),
        "digest": {_SHA256: hashlib.sha256(checkpoint.encode()).hexdigest()},
        "mediaType": "text/plain",
        "name": "log/checkpoint",
    }


def _of_run(line: RunLine, prefix: str) -> Iterator[dict[str, Any]]:
    """What a run was made of, and the weights that its steps gave; other runs than the release's have a prefix."""
    genesis = line.genesis.predicate
    yield {"digest": {_TREE: genesis["code"]["root"]}, "name": f"{prefix}code"}
    for item in genesis["datasets"]:
        yield {"digest": {_TREE: item["dataset"]["root"]}, "name": f"{prefix}dataset/{item['role']}/{item['name']}"}
    if is_own(genesis):
        yield {"digest": {_SHA256: genesis["model"]["program"]}, "name": f"{prefix}model/program"}
        yield {"digest": {_SHA256: genesis["model"]["source"]}, "name": f"{prefix}model/source"}
    init = genesis["init"]
    if init["kind"] == "import":
        for item in init["files"]:
            yield {"digest": {_SHA256: item["sha256"]}, "name": f"{prefix}import/{item['name']}"}
    elif init["kind"] == "parent":
        yield {"digest": {_SHA256: init["state"]}, "name": f"{prefix}parent/state/{init['step']}"}
    yield {"digest": {_SHA256: line.genesis.leaf}, "name": f"{prefix}run"}
    for step, root in sorted(
        {(e.predicate["step"], line.made[e.leaf].computed["weights"]["root"]) for e in line.releases}
    ):
        yield {"digest": {_TREE: root}, "name": f"{prefix}weights/step/{step}"}
