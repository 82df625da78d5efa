"""What the ledger says about models: the list, and one version with its lineage, all from signed entries.

The tables beside the entries may have been edited; here they only say which entries a run has, and where samples of
audits were drawn from.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from bitwitness.ledger.entry.derivation_rules import sources_of
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.jcs import f32_from_hex, f64_from_hex
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger
from bitwitness.trainer.sample import misdrawn

from . import signed_names
from .names import check_alias, find_version
from .signed_names import Release, Said, Signed, WordsUnsound
from .status import run_records

Json = dict[str, Any]


def list_models(project: Project) -> list[Json]:
    """One object per released version, by model and version. Raises WordsUnsound, AliasUnsound."""
    with project.open_ledger() as ledger:
        signed = signed_names.read(ledger)
        aliases = _aliases(ledger, signed)
        ordered = sorted(signed.releases.values(), key=lambda release: (release.said["model"], release.said["version"]))
        return [
            {
                "model": release.said["model"],
                "version": release.said["version"],
                "run": _predicate(ledger, release.said["run"])["name"],
                "step": release.said["step"],
                "weights": release.said["weights"]["root"],
                **_license(release),
                "time": release.said["time"],
                "entry": release.index,
                "aliases": aliases.get(release.index, []),
                **{key: value for key, value in _state(signed, release).items() if key == "state"},
                "on_disk": (project.models_dir / release.said["model"] / str(release.said["version"])).is_dir(),
            }
            for release in ordered
        ]


def show_model(project: Project, name: str) -> Json:
    """One version (names.py says how it is named) with what was said of it and what it derives from.

    `lineages` holds, for its run and those of all releases that it derives from, data, code, evals and audits, and the
    runs that it goes back to with their audits.
    Raises NoSuchModel, WordsUnsound, AliasUnsound.
    """
    with project.open_ledger() as ledger:
        found, signed = find_version(ledger, name), signed_names.read(ledger)
        release = signed.releases.get(found.leaf)
        if release is None or str(release) != str(found):
            raise WordsUnsound(
                f"the tables of {ledger.path.name} call another release {found} than its entries: they were edited; "
                "see `ledger fsck`"
            )
        said, runs = release.said, _runs(signed, release)
        lines = {run: _line(ledger, run) for run in runs}
        about = signed_names.said_of(ledger, signed, {leaf for line in lines.values() for leaf, _genesis in line})
        return {
            "model": found.model,
            "version": found.version,
            "entry": release.index,
            "release": release.leaf,
            "path": str(found.folder(project)),
            "aliases": _aliases(ledger, signed).get(release.index, []),
            **_state(signed, release),
            "words": _words(signed, release),
            "time": said["time"],
            **_license(release),
            "publisher": said["signer"],
            "weights": said["weights"],
            "dtype": said["dtype"],
            "files": said["files"],
            **_derivation(signed, release),
            "lineages": [_lineage(ledger, lines[run], releases, about) for run, releases in runs.items()],
        }


def _runs(signed: Signed, release: Release) -> dict[str, list[Release]]:
    """The runs that a release stands on, its own first, and the releases of each that it derives from, or is."""
    due, found = [release], dict[str, Release]()
    while due:
        one = due.pop(0)
        if one.leaf not in found:
            found[one.leaf] = one
            due += [signed.releases[leaf] for leaf in sources_of(one.said)]
    runs: dict[str, list[Release]] = {}
    for one in found.values():
        runs.setdefault(one.said["run"], []).append(one)
    return runs


def _lineage(
    ledger: Ledger, line: list[tuple[str, Json]], releases: list[Release], about: Mapping[str, list[Said]]
) -> Json:
    """Where the weights of a run's ``releases`` come from, up to the highest step.

    ``line`` are the run and those that it goes back to (_line), ``about`` is what was said of each.
    """
    run, genesis = line[0]
    last = max(releases, key=lambda release: int(release.said["step"])).said
    return {
        "run": {"name": genesis["name"], "id": run, "trainer": genesis["signer"]},
        "step": last["step"],
        "state": last["state"],
        "init": genesis["init"],
        "parents": [
            {
                "run": parent["name"],
                "id": leaf,
                "step": child["init"]["step"],
                "init": parent["init"]["kind"],
                "audits": _audits(ledger, about[leaf], leaf, parent),
            }
            for (_leaf, child), (leaf, parent) in pairwise(line)
        ],
        "datasets": genesis["datasets"],
        "code": genesis["code"],
        "arithmetic": genesis["arithmetic"],
        "seed": genesis["seed"],
        "evals": _evals(about[run], last["step"]),
        "audits": _audits(ledger, about[run], run, genesis),
    }


def _predicate(ledger: Ledger, leaf: str) -> Json:
    """What the entry with a leaf hash says, which a signed entry names."""
    index = ledger.find(bytes.fromhex(leaf))
    if index is None:
        raise BitwitnessError(
            f"the entry {leaf[:16]}… that a release rests on is not in this ledger; see `ledger fsck`"
        )
    predicate: Json = open_envelope(ledger.entry(index)).statement["predicate"]
    return predicate


def _aliases(ledger: Ledger, signed: Signed) -> dict[int, list[str]]:
    """The aliases of each release that has one, by log index, in order. Raises AliasUnsound."""
    names = {*signed.aliases, *ledger.connection.execute("SELECT model, alias FROM aliases")}
    found: dict[int, list[str]] = {}
    for model, alias in sorted(names):
        word = check_alias(ledger, signed, model, alias)
        if word is not None:
            found.setdefault(signed.releases[word.said["release"]].index, []).append(alias)
    return found


def _license(release: Release) -> Json:
    return {"license": release.said["license"]} if "license" in release.said else {}


def _state(signed: Signed, release: Release) -> Json:
    word = signed.taken_back(release.leaf)
    if word is None:
        return {}
    return {"state": word.said["statement"], **({"reason": word.said["reason"]} if "reason" in word.said else {})}


def _words(signed: Signed, release: Release) -> list[Json]:
    """All that was signed about a release, oldest first."""
    found = []
    for word in signed.words_on(release.leaf):
        key = signed.keys.get(word.keyid)
        said = {name: word.said[name] for name in ("statement", "alias", "reason", "policy") if name in word.said}
        role = "unknown key" if key is None else key.role
        said |= {"signer": word.keyid, "role": role, "time": word.said["time"], "entry": word.index}
        found.append(said if word.disowned is None else {**said, "disowned": word.disowned})
    return found


def _derivation(signed: Signed, release: Release) -> Json:
    """What a release derives from, by name, and what these derive from and are now; {} for a run's own weights."""
    if "derivation" not in release.said:
        return {}
    said = release.said["derivation"]
    sources = []
    for item in said["sources"]:
        source = signed.releases[item["release"]]
        named: Json = {"model": source.said["model"], "version": source.said["version"], "release": source.leaf}
        if "factor" in item:
            named["factor"] = f32_from_hex(item["factor"])
        sources.append({**named, **_state(signed, source), **_derivation(signed, source)})
    return {"derivation": {"rule": said["rule"], "sources": sources}}


def _line(ledger: Ledger, run: str) -> list[tuple[str, Json]]:
    """A run and those that it goes back to, nearest first: id and what the genesis says.

    Entries name only earlier ones, so the line ends.
    """
    line = [(run, _predicate(ledger, run))]
    while (init := line[-1][1]["init"])["kind"] == "parent":
        line.append((init["run"], _predicate(ledger, init["run"])))
    return line


def _evals(about: list[Said], step: int) -> list[Json]:
    """What was measured of the newest measured step up to ``step``."""
    measured = [item for item in about if item.kind == "eval" and item.said["step"] <= step]
    newest = max((int(item.said["step"]) for item in measured), default=0)
    return [
        {
            "step": newest,
            "dataset": item.said["dataset"]["name"],
            "mean": f64_from_hex(item.said["computed"]["mean"]),
            "mean_bits": item.said["computed"]["mean"],
            "tokens": item.said["computed"]["tokens"],
            "entry": item.index,
        }
        for item in measured
        if item.said["step"] == newest
    ]


def _audits(ledger: Ledger, about: list[Said], run: str, genesis: Json) -> list[Json]:
    """Every audit of the run, each with the words of those who computed it again; whose word counts, a policy decides.

    `misdrawn` says of one which of its units its seed did not draw: it counts for nobody.
    """
    intents = {item.leaf: item.said for item in about if item.kind == "audit-intent"}
    words: dict[str, list[Json]] = {}
    for item in about:
        if item.kind == "recheck":
            word = {"auditor": item.keyid, "result": item.said["result"], "entry": item.index}
            words.setdefault(item.said["audit"], []).append(word)
    audits = [item for item in about if item.kind == "audit"]
    marks = run_records(ledger, ledger.size)[run].marks if audits else ()
    found = []
    for item in audits:
        said = item.said
        shown = {"auditor": item.keyid, "entry": item.index, **{n: said[n] for n in ("result", "steps", "basis")}}
        intent = intents.get(said["intent"])
        why = "its intent is not here" if intent is None else misdrawn(said, intent, genesis, marks)
        shown |= {} if why is None else {"misdrawn": why}
        found.append(shown | ({"rechecks": words[item.leaf]} if item.leaf in words else {}))
    return found
