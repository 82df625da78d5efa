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

from ..bundles.evidence import Entry
from ..bundles.lineage import Lineage
from ..description import is_own, module_of

FILE_NAME = "bom.cdx.json"
LIMIT = 4 << 20
# The namespace of our serial numbers, a random UUID.
_NAMESPACE = uuid.UUID("5d0b5f0e-4f5b-4f5e-9c58-0b1f0a3c9a61")


def bom(traced: Lineage, files: Mapping[str, str]) -> bytes:
    """The bytes of bom.cdx.json; ``files`` are the SHA-256 of the files that carry the model."""
    release = traced.release.predicate
    model, version = release["model"], str(release["version"])
    uses: dict[str, set[str]] = {}
    for item in (item for line in traced.runs for item in line.genesis.predicate["datasets"]):
        uses.setdefault(item["entry"], set()).add(item["role"])
    logged = {entry.leaf: entry for line in traced.runs for entry in line.datasets if entry.leaf in uses}
    datasets = sorted(logged.values(), key=lambda entry: entry.index)
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
                **_architecture(traced.genesis.predicate),
                "datasets": [{"ref": reference} for reference in references],
            },
        },
        **_released(traced, traced.release),
    }
    if traced.sources:
        component["pedigree"] = {"ancestors": [_ancestor(traced, source) for source in traced.sources]}
    metrics = [
        {
            "type": "nats per token",
            "value": f"{f64_from_hex(entry.predicate['computed']['mean']):.6f}",
            "slice": entry.predicate["dataset"]["name"],
        }
        for entry in traced.own.evals
        if len(traced.runs) == 1  # else they are the losses of what was merged
        and entry.predicate["step"] == release["step"]
        and entry.index < traced.release.index
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
            *(_dataset(entry, ", ".join(sorted(uses[entry.leaf]))) for entry in datasets),
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


def _ancestor(traced: Lineage, source: Entry) -> dict[str, Any]:
    """A release that this one derives from."""
    said = source.predicate
    version = {"name": said["model"], "version": str(said["version"])}
    return {"type": "machine-learning-model", **version, **_released(traced, source)}


def _released(traced: Lineage, release: Entry) -> dict[str, Any]:
    """What one release says of itself and of its run."""
    said, genesis = release.predicate, traced.of(release).genesis
    found: dict[str, Any] = {
        "properties": _properties(
            weights=said["weights"]["root"],
            dtype=said["dtype"],
            run=genesis.leaf,
            step=str(said["step"]),
            state=said["state"],
            code=genesis.predicate["code"]["root"],
            arithmetic=genesis.predicate["arithmetic"]["version"],
            init=genesis.predicate["init"]["kind"],
            log=genesis.predicate["origin"],
            release=release.leaf,
            **({"program": genesis.predicate["model"]["program"]} if is_own(genesis.predicate) else {}),
        )
    }
    return {**found, "licenses": [{"license": {"name": said["license"]}}]} if "license" in said else found


def _architecture(genesis: Mapping[str, Any]) -> dict[str, str]:
    """A family that is known, or the name of the module's class."""
    if is_own(genesis):
        return {"modelArchitecture": module_of(genesis).rpartition(":")[2]}
    return {"architectureFamily": "llama", "modelArchitecture": "LlamaForCausalLM"}


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
