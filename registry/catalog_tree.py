"""What `ledger model show` prints: a version and what it rests on as a text tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class _Branch:
    text: str
    below: Sequence[_Branch] = ()


def tree_lines(shown: Json) -> list[str]:
    """The lines of a version as `catalog.show_model` gives it."""
    said = [_Branch(line) for line in _said_lines(shown)]
    said.append(_Branch(f"published {shown['time']} by {shown['publisher'][:16]}…, log entry {shown['entry']}"))
    files = ", ".join(f"{file['name']} ({file['bytes']} bytes)" for file in shown["files"])
    said.append(_Branch(f"files: {files}"))
    if "derivation" in shown:
        said.append(_Branch(shown["derivation"]["rule"], _sources(shown["derivation"])))
    said += [_run(lineage) for lineage in shown["lineages"]]
    licence = shown.get("license", "no licence named")
    head = f"{shown['model']}/{shown['version']}  weights {shown['weights']['root'][:16]}…, {shown['dtype']}, {licence}"
    return _drawn(_Branch(head, said))


def _drawn(branch: _Branch) -> list[str]:
    lines = [branch.text]
    for number, below in enumerate(branch.below, 1):
        mark, bar = ("└── ", "    ") if number == len(branch.below) else ("├── ", "│   ")
        first, *others = _drawn(below)
        lines += [mark + first, *(bar + line for line in others)]
    return lines


def _said_lines(shown: Json) -> list[str]:
    lines = [f"aliases: {', '.join(shown['aliases'])}"] if shown["aliases"] else []
    if "state" in shown:
        lines.append(shown["state"] + (f": {shown['reason']}" if "reason" in shown else ""))
    spoken = [item for item in shown["words"] if item["role"] == "auditor" or item["statement"] == "approved"]
    return lines + [f"{item['statement']} by {item['role']} {item['signer'][:16]}…" for item in spoken]


def _sources(derivation: Json) -> list[_Branch]:
    return [
        _Branch(
            f"{source['model']}/{source['version']} ({source['release'][:16]}…)"
            + (f" × {source['factor']!r}" if "factor" in source else "")
            + (f", {source['state']}" if "state" in source else ""),
            [_Branch(source["derivation"]["rule"], _sources(source["derivation"]))] if "derivation" in source else (),
        )
        for source in derivation["sources"]
    ]


def _run(lineage: Json) -> _Branch:
    run = lineage["run"]
    below = [
        _Branch(
            f"parent: run {item['run']} ({item['id'][:16]}…) at step {item['step']}, began: {item['init']}",
            [_Branch(line) for line in _audit_lines(item["audits"])],
        )
        for item in lineage["parents"]
    ]
    said = [
        f"{item['role']}: {item['name']}, {item['dataset']['size']} documents, root {item['dataset']['root'][:16]}…"
        for item in lineage["datasets"]
    ]
    said.append(f"code {lineage['code']['root'][:16]}…, {lineage['code']['size']} files")
    said += [f"eval at step {e['step']} on {e['dataset']}: {e['mean']:.4f} nats per token" for e in lineage["evals"]]
    said += _audit_lines(lineage["audits"])
    began = _Branch(f"began: {lineage['init']['kind']}, seed {lineage['seed']}")
    head = f"run {run['name']} ({run['id'][:16]}…), step {lineage['step']}, trainer {run['trainer'][:16]}…"
    return _Branch(head, [began, *below, *(_Branch(line) for line in said)])


def _audit_lines(audits: list[Json]) -> list[str]:
    return [
        f"audit by {a['auditor'][:16]}…: {a['result']}, {a['steps']} steps, {a['basis']}"
        + "".join(f"; {word['result']} by {word['auditor'][:16]}…" for word in a.get("rechecks", ()))
        + (f"; does not count: {a['misdrawn']}" if "misdrawn" in a else "")
        for a in audits
    ] or ["no audit"]
