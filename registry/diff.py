"""What differs between two released versions: where they come from, their files, and which tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bitwitness.ledger.commitments import Commitment, TensorLeaf
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project

from .catalog import show_model
from .names import find_version
from .refresh import leaves_on_disk

# What is of one version alone and says nothing of its content.
_OWN = frozenset({"version", "entry", "release", "path", "time", "words", "aliases", "on_disk"})


def diff(project: Project, left: str, right: str) -> dict[str, Any]:
    """``fields``: path → [left, right] where they differ, None where one has none; ``tensors``: the names, by kind.

    Tensors are compared by the digests under the signed roots, ``None`` if the files of one are not on disk.
    Raises NoSuchModel.
    """
    shown = [show_model(project, name) for name in (left, right)]
    flat = [dict(_flat({key: value for key, value in item.items() if key not in _OWN})) for item in shown]
    fields = {
        path: [flat[0].get(path), flat[1].get(path)]
        for path in sorted(flat[0].keys() | flat[1].keys())
        if flat[0].get(path) != flat[1].get(path)
    }
    names = [f"{item['model']}/{item['version']}" for item in shown]
    return {"left": names[0], "right": names[1], "fields": fields, "tensors": _tensors(project, shown)}


def lines(found: Mapping[str, Any]) -> list[str]:
    """The same as text: `- path: left`, `+ path: right`."""
    said = [f"--- {found['left']}", f"+++ {found['right']}"]
    for path, (left, right) in found["fields"].items():
        said += [f"- {path}: {left}"] if left is not None else []
        said += [f"+ {path}: {right}"] if right is not None else []
    tensors = found["tensors"]
    if tensors is None:
        return [*said, "tensors: not compared, since the files of one are not here"]
    said.append(f"tensors: {tensors['equal']} equal, {len(tensors['changed'])} changed")
    said += [f"~ {name}" for name in tensors["changed"]]
    said += [f"- {name}" for name in tensors["removed"]]
    return said + [f"+ {name}" for name in tensors["added"]]


def _tensors(project: Project, shown: list[dict[str, Any]]) -> dict[str, Any] | None:
    if shown[0]["weights"] == shown[1]["weights"]:
        return {"equal": shown[0]["weights"]["size"], "changed": [], "removed": [], "added": []}
    leaves: list[dict[str, TensorLeaf]] = []
    with project.open_ledger() as ledger:
        for item in shown:
            folder = find_version(ledger, f"{item['model']}/{item['version']}").folder(project)
            try:
                held = leaves_on_disk(folder, Commitment.from_json(item["weights"], type="weights/1"))
            except BitwitnessError:
                return None
            leaves.append({leaf.name: leaf for leaf in held})
    before, after = leaves
    both = sorted(before.keys() & after.keys())
    changed = [name for name in both if before[name] != after[name]]
    return {
        "equal": len(both) - len(changed),
        "changed": changed,
        "removed": sorted(before.keys() - after.keys()),
        "added": sorted(after.keys() - before.keys()),
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            label = item["name"] if isinstance(item, dict) and "name" in item else number
            yield from _flat(item, f"{path}[{label}]")
    else:
        yield path, value
