"""What the ledger says about models: the list, and one version with its lineage."""

from __future__ import annotations

from typing import Any

from bitwitness.ledger.envelope import open_envelope
from bitwitness.ledger.jcs import f64_from_hex
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger
from bitwitness.trainer.sample import misdrawn

from . import signed_names
from .names import check_alias, find_version
from .status import run_records


def list_models(project: Project) -> list[dict[str, Any]]:
    """One object per released version, by model and version."""
    with project.open_ledger() as ledger:
        rows = ledger.connection.execute(
            "SELECT model, version, runs.name, releases.step, releases.weights, license, releases.time, releases.entry"
            " FROM releases JOIN runs ON runs.entry = releases.run ORDER BY model, version"
        ).fetchall()
        aliases = _aliases(ledger)
        states = dict(ledger.connection.execute("SELECT release, state FROM release_states"))
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
            "aliases": aliases.get(entry, []),
            **({"state": states[entry]} if entry in states else {}),
            "on_disk": (project.models_dir / model / str(version)).is_dir(),
        }
        for model, version, run, step, root, license, time, entry in rows
    ]


def show_model(project: Project, name: str) -> dict[str, Any]:
    """One version (names.py says how it is named) with what was said of it, run, parents, data, code, evals and audits.

    Raises NoSuchModel.
    """
    with project.open_ledger() as ledger:
        found = find_version(ledger, name)
        model, version, index, run = found.model, found.version, found.index, found.run
        release = open_envelope(ledger.entry(index)).statement["predicate"]
        genesis = open_envelope(ledger.entry(run)).statement["predicate"]
        return {
            "model": model,
            "version": version,
            "entry": index,
            "release": found.leaf,
            "path": str(found.folder(project)),
            "aliases": _aliases(ledger).get(index, []),
            **_state(ledger, index),
            "words": _words(ledger, index),
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
                "parents": _parents(ledger, genesis["init"]),
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
        *(f"├── {line}" for line in _said_lines(shown)),
        f"├── published {shown['time']} by {shown['publisher'][:16]}…, log entry {shown['entry']}",
        "├── files: " + ", ".join(f"{file['name']} ({file['bytes']} bytes)" for file in shown["files"]),
        f"└── run {run['name']} ({run['id'][:16]}…), step {lineage['step']}, trainer {run['trainer'][:16]}…",
    ]
    below = [f"began: {lineage['init']['kind']}, seed {lineage['seed']}"]
    below += [
        f"parent: run {item['run']} ({item['id'][:16]}…) at step {item['step']}, began: {item['init']}"
        for item in lineage["parents"]
    ]
    below += [
        f"{item['role']}: {item['name']}, {item['dataset']['size']} documents, root {item['dataset']['root'][:16]}…"
        for item in lineage["datasets"]
    ]
    below.append(f"code {lineage['code']['root'][:16]}…, {lineage['code']['size']} files")
    below += [f"eval at step {e['step']} on {e['dataset']}: {e['mean']:.4f} nats per token" for e in lineage["evals"]]
    below += [
        f"audit by {a['auditor'][:16]}…: {a['result']}, {a['steps']} steps, {a['basis']}"
        + "".join(f"; {word['result']} by {word['auditor'][:16]}…" for word in a.get("rechecks", ()))
        + (f"; does not count: {a['misdrawn']}" if "misdrawn" in a else "")
        for a in lineage["audits"]
    ]
    if not lineage["audits"]:
        below.append("no audit")
    marks = ["├── "] * (len(below) - 1) + ["└── "]
    return lines + ["    " + mark + line for mark, line in zip(marks, below, strict=True)]


def _said_lines(shown: dict[str, Any]) -> list[str]:
    lines = [f"aliases: {', '.join(shown['aliases'])}"] if shown["aliases"] else []
    if "state" in shown:
        lines.append(shown["state"] + (f": {shown['reason']}" if "reason" in shown else ""))
    spoken = [item for item in shown["words"] if item["role"] == "auditor" or item["statement"] == "approved"]
    return lines + [f"{item['statement']} by {item['role']} {item['signer'][:16]}…" for item in spoken]


def _aliases(ledger: Ledger) -> dict[int, list[str]]:
    """The aliases of each release that has one, by log index, in order. Raises AliasUnsound."""
    signed = signed_names.read(ledger)
    names = {*signed.aliases(), *ledger.connection.execute("SELECT model, alias FROM aliases")}
    found: dict[int, list[str]] = {}
    for model, alias in sorted(names):
        word = check_alias(ledger, signed, model, alias)
        if word is not None:
            found.setdefault(signed.releases[word.said["release"]].index, []).append(alias)
    return found


def _state(ledger: Ledger, release: int) -> dict[str, Any]:
    row = ledger.connection.execute("SELECT state, reason FROM release_states WHERE release = ?", (release,)).fetchone()
    if row is None:
        return {}
    return {"state": row[0], **({} if row[1] is None else {"reason": row[1]})}


def _words(ledger: Ledger, release: int) -> list[dict[str, Any]]:
    """All that was signed about a release, oldest first."""
    rows = ledger.connection.execute(
        "SELECT statement, alias, reason, policy, keys.keyid, role, endorsements.time, endorsements.entry"
        " FROM endorsements JOIN keys ON keys.entry = signer WHERE release = ? ORDER BY endorsements.entry",
        (release,),
    )
    names = ("statement", "alias", "reason", "policy", "signer", "role", "time", "entry")
    return [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows]


def _parents(ledger: Ledger, init: Any) -> list[dict[str, Any]]:
    """The runs that this one goes back to, nearest first. Entries name only earlier ones, so the line ends."""
    line = []
    while init["kind"] == "parent":
        index = ledger.find(bytes.fromhex(init["run"]))
        if index is None:
            break
        genesis = open_envelope(ledger.entry(index)).statement["predicate"]
        line.append({"run": genesis["name"], "id": init["run"], "step": init["step"], "init": genesis["init"]["kind"]})
        init = genesis["init"]
    return line


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
    """Every audit of the run, each with the words of those who computed it again; whose word counts, a policy decides.

    `misdrawn` says of one which of its units its seed did not draw: it counts for nobody.
    """
    words: dict[int, list[dict[str, Any]]] = {}
    for audit, keyid, result, entry in ledger.connection.execute(
        "SELECT audit, keyid, result, rechecks.entry FROM rechecks JOIN keys ON keys.entry = auditor WHERE run = ?"
        " ORDER BY rechecks.entry",
        (run,),
    ):
        words.setdefault(int(audit), []).append({"auditor": keyid, "result": result, "entry": entry})
    rows = ledger.connection.execute(
        "SELECT keys.keyid, result, audits.steps, basis, audits.entry, audits.intent, runs.hash FROM audits"
        " JOIN keys ON keys.entry = audits.auditor JOIN runs ON runs.entry = audits.run"
        " WHERE audits.run = ? ORDER BY audits.entry",
        (run,),
    ).fetchall()
    genesis = open_envelope(ledger.entry(run)).statement["predicate"]
    marks = run_records(ledger, ledger.size)[rows[0][-1]].marks if rows else ()
    found = []
    for auditor, result, steps, basis, entry, intent, _run in rows:
        shown = {"auditor": auditor, "result": result, "steps": steps, "basis": basis, "entry": entry}
        said, announced = (open_envelope(ledger.entry(number)).statement["predicate"] for number in (entry, intent))
        why = misdrawn(said, announced, genesis, marks)
        shown |= {} if why is None else {"misdrawn": why}
        found.append(shown | ({"rechecks": words[entry]} if entry in words else {}))
    return found
