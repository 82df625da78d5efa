"""An ML-BOM of an exported version: CycloneDX 1.6 JSON with a machine-learning-model and its datasets.

Every value follows from the signed entries, so one version has one BOM and the gate compares its bytes. The format is
https://cyclonedx.org/docs/1.6/json; tests validate it with the project's own library.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from bitwitness.ledger.jcs import f64_from_hex

from .evidence import Entry
from .lineage import Lineage

FILE_NAME = "bom.cdx.json"
LIMIT = 4 << 20
# The namespace of our serial numbers, a random UUID.
_NAMESPACE = uuid.UUID("5d0b5f0e-4f5b-4f5e-9c58-0b1f0a3c9a61")


def bom(traced: Lineage, files: Mapping[str, str]) -> bytes:
    """The bytes of bom.cdx.json; ``files`` are the SHA-256 of the files that carry the model."""
    release, genesis = traced.release.predicate, traced.genesis.predicate
    model, version = release["model"], str(release["version"])
    uses = {item["entry"]: item for item in genesis["datasets"]}
    datasets = [entry for entry in traced.datasets if entry.leaf in uses]
    references = [_reference(entry) for entry in datasets]
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": f"{model}/{version}",
        "name": model,
        "version": version,
        "modelCard": {
            "modelParameters": {
                "approach": {"type": "self-supervised"},
                "task": "text-generation",
                "architectureFamily": "llama",
                "modelArchitecture": "LlamaForCausalLM",
                "datasets": [{"ref": reference} for reference in references],
            },
        },
        "properties": _properties(
            weights=release["weights"]["root"],
            dtype=release["dtype"],
            run=traced.genesis.leaf,
            step=str(release["step"]),
            state=release["state"],
            code=genesis["code"]["root"],
            arithmetic=genesis["arithmetic"]["version"],
            init=genesis["init"]["kind"],
            log=genesis["origin"],
            release=traced.release.leaf,
        ),
    }
    if "license" in release:
        component["licenses"] = [{"license": {"name": release["license"]}}]
    metrics = [
        {
            "type": "nats per token",
            "value": f"{f64_from_hex(entry.predicate['computed']['mean']):.6f}",
            "slice": entry.predicate["dataset"]["name"],
        }
        for entry in traced.evals
        if entry.predicate["step"] == release["step"] and entry.index < traced.release.index
    ]
    if metrics:
        component["modelCard"]["quantitativeAnalysis"] = {"performanceMetrics": metrics[-8:]}
    value = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, traced.release.leaf)}",
        "version": 1,
        "metadata": {
            "timestamp": release["time"],
            "tools": {"components": [{"type": "application", "name": "bitwitness"}]},
            "component": component,
        },
        "components": [
            *(_dataset(entry, uses[entry.leaf]["role"]) for entry in datasets),
            *(
                {
                    "type": "file",
                    "bom-ref": f"file/{name}",
                    "name": name,
                    "hashes": [{"alg": "SHA-256", "content": files[name]}],
                }
                for name in sorted(files)
            ),
        ],
        "dependencies": [{"ref": component["bom-ref"], "dependsOn": references}, *({"ref": r} for r in references)],
    }
    return (json.dumps(value, indent=2) + "\n").encode()


def _reference(entry: Entry) -> str:
    return f"dataset/{entry.leaf}"


def _dataset(entry: Entry, role: str) -> dict[str, Any]:
    said = entry.predicate
    found: dict[str, Any] = {
        "type": "data",
        "bom-ref": _reference(entry),
        "name": said["name"],
        "data": [{"type": "dataset", "name": said["name"]}],
        "properties": _properties(
            role=role,
            root=said["dataset"]["root"],
            documents=str(said["documents"]),
            tokens=str(said["tokens"]),
            tokenizer=said["tokenizer"]["name"],
            visibility=said["visibility"],
        ),
    }
    return {**found, "licenses": [{"license": {"name": said["license"]}}]} if "license" in said else found


def _properties(**values: str) -> list[dict[str, str]]:
    return [{"name": f"bitwitness:{name}", "value": value} for name, value in sorted(values.items())]
