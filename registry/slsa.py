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
from bitwitness.ledger.envelope import PAYLOAD_TYPE, assemble, pae
from bitwitness.ledger.errors import FoundWrong, SignatureError
from bitwitness.ledger.keys import PublicKey, Signer

from .lineage import Lineage

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
    release, genesis = traced.release.predicate, traced.genesis.predicate
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {
                    "config": genesis["config"],
                    "release": {"dtype": release["dtype"], "step": release["step"]},
                    "seed": genesis["seed"],
                },
                "resolvedDependencies": list(_dependencies(traced, checkpoint)),
            },
            "runDetails": {
                "builder": {"id": _BUILDER, "version": {"arithmetic": genesis["arithmetic"]["version"]}},
                "metadata": {
                    "finishedOn": traced.released.predicate["observed"]["time"],
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
    try:
        signature = base64.b64decode(json.loads(data)["signatures"][0]["sig"], validate=True)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise SlsaRefused(f"{FILE_NAME} is not one DSSE envelope") from error
    if data != _line(payload, publisher.keyid, signature):
        raise SlsaRefused(f"{FILE_NAME} does not say what follows from the bundle and the files beside it")
    try:
        publisher.verify(signature, pae(PAYLOAD_TYPE, payload))
    except SignatureError as error:
        raise SlsaRefused(f"{FILE_NAME} is not signed by the publisher of the release") from error
    return f"SLSA provenance of {len(files)} files follows from the bundle"


def _line(payload: bytes, keyid: str, signature: bytes) -> bytes:
    return assemble(payload, keyid, signature) + b"\n"


def _dependencies(traced: Lineage, checkpoint: str) -> Iterator[dict[str, Any]]:
    genesis = traced.genesis.predicate
    yield {"digest": {_TREE: genesis["code"]["root"]}, "name": "code"}
    for item in genesis["datasets"]:
        yield {"digest": {_TREE: item["dataset"]["root"]}, "name": f"dataset/{item['role']}/{item['name']}"}
    init = genesis["init"]
    if init["kind"] == "import":
        for item in init["files"]:
            yield {"digest": {_SHA256: item["sha256"]}, "name": f"import/{item['name']}"}
    elif init["kind"] == "parent":
        yield {"digest": {_SHA256: init["state"]}, "name": f"parent/state/{init['step']}"}
    yield {"digest": {_SHA256: traced.genesis.leaf}, "name": "run"}
    yield {"digest": {_TREE: traced.released.computed["weights"]["root"]}, "name": f"weights/step/{traced.step}"}
    for source in traced.release.predicate.get("derivation", {}).get("sources", ()):
        yield {"digest": {_TREE: source["weights"]["root"]}, "name": f"release/{source['release']}"}
    yield {
        "content": base64.b64encode(checkpoint.encode()).decode(),
        "digest": {_SHA256: hashlib.sha256(checkpoint.encode()).hexdigest()},
        "mediaType": "text/plain",
        "name": "log/checkpoint",
    }
