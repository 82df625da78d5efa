"""What the ledger says about models: the list, and one version with its lineage."""

from __future__ import annotations

from typing import Any

from bitwitness.ledger.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.jcs import f64_from_hex
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger


class NoSuchModel(BitwitnessError):
    """The ledger has no release of this name or version."""


def list_models(project: Project) -> list[dict[str, Any]]:
    """One object per released version, by model and version."""
    with project.open_ledger() as ledger:
        rows = ledger.connection.execute(
            "SELECT model, version, runs.name, releases.step, releases.weights, license, releases.time, releases.entry"
            " FROM releases JOIN runs ON runs.entry = releases.run ORDER BY model, version"
        ).fetchall()
    return [
        {
            "model": model,
            "version": version,
            "run": run,
            "step": step,
            "weights": root,
            **({} if license is None else {"license": license}),
            "time": time,
            "entry": entry,
            "on_disk": (project.models_dir / model / str(version)).is_dir(),
        }
        for model, version, run, step, root, license, time, entry in rows
    ]


def show_model(project: Project, name: str) -> dict[str, Any]:
    """One version, ``NAME`` (the newest) or ``NAME/VERSION``, with run, data, code, evals and audits.

    Raises NoSuchModel.
    """
    model, _, wanted = name.partition("/")
    with project.open_ledger() as ledger:
        rows = ledger.connection.execute(
            "SELECT entry, version, run FROM releases WHERE model = ? ORDER BY version", (model,)
        ).fetchall()
        chosen = [row for row in rows if not wanted or str(row[1]) == wanted]
        if not chosen:
            known = ", ".join(str(row[1]) for row in rows)
            hint = f"it has version {known}" if rows else "`ledger model list` lists them"
            raise NoSuchModel(f"there is no model {name}; {hint}")
        index, version, run = chosen[-1]
        release = open_envelope(ledger.entry(index)).statement["predicate"]
        genesis = open_envelope(ledger.entry(run)).statement["predicate"]
        return {
            "model": model,
            "version": version,
            "entry": index,
            "path": str(project.models_dir / model / str(version)),
            "time": release["time"],
            **({"license": release["license"]} if "license" in release else {}),
            "publisher": release["signer"],
            "weights": release["weights"],
            "dtype": release["dtype"],
            "files": release["files"],
            "lineage": {
                "run": {"name": genesis["name"], "id": release["run"], "trainer": genesis["signer"]},
                "step": release["step"],
                "state": release["state"],
                "init": genesis["init"],
                "datasets": genesis["datasets"],
                "code": genesis["code"],
                "arithmetic": genesis["arithmetic"],
                "seed": genesis["seed"],
                "evals": _evals(ledger, run, release["step"]),
                "audits": _audits(ledger, run),
            },
        }


def tree_lines(shown: dict[str, Any]) -> list[str]:
    """The lineage of `show_model` as a text tree."""
    lineage = shown["lineage"]
    run = lineage["run"]
    lines = [
        f"{shown['model']}/{shown['version']}  weights {shown['weights']['root'][:16]}…, {shown['dtype']}, "
        f"{shown.get('license', 'no licence named')}",
        f"├── published {shown['time']} by {shown['publisher'][:16]}…, log entry {shown['entry']}",
        "├── files: " + ", ".join(f"{file['name']} ({file['bytes']} bytes)" for file in shown["files"]),
        f"└── run {run['name']} ({run['id'][:16]}…), step {lineage['step']}, trainer {run['trainer'][:16]}…",
    ]
    below = [f"began: {lineage['init']['kind']}, seed {lineage['seed']}"]
    below += [
        f"{item['role']}: {item['name']}, {item['dataset']['size']} documents, root {item['dataset']['root'][:16]}…"
        for item in lineage["datasets"]
    ]
    below.append(f"code {lineage['code']['root'][:16]}…, {lineage['code']['size']} files")
    below += [f"eval at step {e['step']} on {e['dataset']}: {e['mean']:.4f} nats per token" for e in lineage["evals"]]
    below += [
        f"audit by {a['auditor'][:16]}…: {a['result']}, {a['steps']} steps, {a['basis']}" for a in lineage["audits"]
    ]
    if not lineage["audits"]:
        below.append("no audit")
    marks = ["├── "] * (len(below) - 1) + ["└── "]
    return lines + ["    " + mark + line for mark, line in zip(marks, below, strict=True)]


def _evals(ledger: Ledger, run: int, step: int) -> list[dict[str, Any]]:
    rows = ledger.connection.execute(
        "SELECT step, name, mean_bits, tokens, entry FROM evals WHERE run = ? AND step <= ? ORDER BY step DESC, entry",
        (run, step),
    ).fetchall()
    newest = [row for row in rows if row[0] == rows[0][0]]
    return [
        {"step": at, "dataset": name, "mean": f64_from_hex(bits), "mean_bits": bits, "tokens": tokens, "entry": entry}
        for at, name, bits, tokens, entry in newest
    ]


def _audits(ledger: Ledger, run: int) -> list[dict[str, Any]]:
    rows = ledger.connection.execute(
        "SELECT keys.keyid, result, steps, basis, audits.entry FROM audits JOIN keys ON keys.entry = auditor"
        " WHERE run = ? ORDER BY audits.entry",
        (run,),
    ).fetchall()
    return [
        {"auditor": auditor, "result": result, "steps": steps, "basis": basis, "entry": entry}
        for auditor, result, steps, basis, entry in rows
    ]
