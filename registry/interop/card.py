"""The model card of an exported version: README.md, every line of which follows from the signed entries.

Only what stood in the log when the version was released goes into it, so one version has one card, whatever is said of
it later. The gate makes it again from the verified bundle and compares the bytes: a card cannot claim more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bitwitness.ledger.jcs import f32_from_hex, f64_from_hex

from ..bundles.evidence import Entry
from ..bundles.lineage import Lineage, RunLine
from ..description import is_own, module_of

CARD = "README.md"
LIMIT = 1 << 20


_OWN = (
    "The architecture is the trainer's own: no library makes the model from this folder. `model.json` is the program",
    "that the run computed, as data; it was captured from a module whose file has the digest below. The tensors have",
    "the names of that module's parameters, tied ones once:",
    "",
    "    from bitwitness.kernels import nn",
    "    from bitwitness.registry import load_verified",
    "",
    '    nn.load_parameters(model, load_verified(".", "trust.toml"))',
    "",
)


def card(traced: Lineage) -> bytes:
    """The bytes of README.md for a release: front matter as model hubs read it, and the provenance table."""
    release = traced.release.predicate
    name = f"{release['model']}/{release['version']}"
    own = is_own(traced.genesis.predicate)
    library = [] if own else ["library_name: transformers"]
    front = ["---", *library, "pipeline_tag: text-generation", "tags:", "- bitwitness", *([] if own else ["- llama"])]
    if "license" in release:
        front.append(f"license: {json.dumps(release['license'].lower())}")
    lines = [
        *front,
        "---",
        "",
        f"# {name}",
        "",
        _made(traced),
        "append-only ledger; anyone can compute any step again and must get the same bits. `provenance.json` beside",
        "the weights ties them to that ledger:",
        "",
        "    ledger verify . --policy trust.toml",
        "",
        "says whether these are those weights, trusting only the keys in your policy, and whether this card is what",
        "follows from the ledger.",
        "",
        *(_OWN if own else ()),
        "## Provenance",
        "",
        "| | |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in _rows(traced)),
        "",
    ]
    return "\n".join(lines).encode()


def _made(traced: Lineage) -> str:
    """The first line: what made the weights."""
    if len(traced.runs) == 1:
        release, genesis = traced.release.predicate, traced.genesis.predicate
        said = f"Step {release['step']} of the training run `{genesis['name']}`. Every step of it"
    else:
        runs = ", ".join(f"`{line.genesis.predicate['name']}`" for line in traced.runs)
        said = f"A merge of releases of the training runs {runs}. Every step of each"
    return f"{said} is recorded in a signed,"


def _rows(traced: Lineage) -> Iterator[tuple[str, str]]:
    release = traced.release.predicate
    yield "weights", f"`{release['weights']['root']}` ({release['weights']['size']} tensors, {release['dtype']})"
    names = {entry.leaf: f"{entry.predicate['model']}/{entry.predicate['version']}" for entry in traced.releases}
    for entry in traced.releases:
        if "derivation" in entry.predicate:
            what = "derived" if entry is traced.release else f"derived, {names[entry.leaf]}"
            yield what, _derivation(entry.predicate["derivation"], names)
    yield "log", f"{_code(traced.genesis.predicate['origin'])}, entry {traced.release.index}"
    yield "published", f"{release['time']} by key `{traced.release.envelope.keyid}`"
    if "license" in release:
        yield "licence", _code(release["license"])
    for line in traced.runs:
        yield from _run(traced, line)


def _derivation(said: Mapping[str, Any], names: Mapping[str, str]) -> str:
    sources = ", ".join(
        f"{names[source['release']]} `{source['release']}`"
        + (f" × {f32_from_hex(source['factor'])!r}" if "factor" in source else "")
        for source in said["sources"]
    )
    return f"{said['rule']} of {sources}"


def _run(traced: Lineage, line: RunLine) -> Iterator[tuple[str, str]]:
    genesis = line.genesis.predicate
    yield "run", f"`{genesis['name']}`, genesis `{line.genesis.leaf}`"
    if is_own(genesis):
        yield "program", f"`model.json`, SHA-256 `{genesis['model']['program']}`"
        yield "captured from", f"{_code(module_of(genesis))}, SHA-256 `{genesis['model']['source']}`"
    for step, state in sorted({(entry.predicate["step"], entry.predicate["state"]) for entry in line.releases}):
        yield "step", f"{step} of {genesis['steps']}, state `{state}`"
    yield "trained by", f"key `{line.genesis.envelope.keyid}`"
    yield "began with", _start(line.genesis)
    uses = {item["entry"]: item for item in genesis["datasets"]}
    for entry in line.datasets:
        if entry.leaf in uses:
            yield f"data, {uses[entry.leaf]['role']}", _dataset(entry)
    yield "code", f"`{genesis['code']['root']}` ({genesis['code']['size']} files)"
    yield "arithmetic", f"{genesis['arithmetic']['version']}, operator table `{genesis['arithmetic']['digest']}`"
    measured = {}
    for entry in line.evals:
        if entry.predicate["step"] == line.step and entry.index < traced.release.index:
            measured[entry.predicate["dataset"]["name"]] = entry.predicate["computed"]
    for dataset, computed in sorted(measured.items()):
        nats = f64_from_hex(computed["mean"])
        what = f"loss on `{dataset}`" if len(traced.runs) == 1 else f"loss of step {line.step} on `{dataset}`"
        yield what, f"{nats:.4f} nats per token over {computed['tokens']} tokens"
    for entry in line.audits:
        if entry.index < traced.release.index:
            said = entry.predicate
            yield "audit", f"{said['result']}, {said['steps']} steps, {said['basis']}, by key `{entry.envelope.keyid}`"


def _start(genesis: Entry) -> str:
    init = genesis.predicate["init"]
    if init["kind"] == "import":
        files = ", ".join(f"`{item['name']}` `{item['sha256']}`" for item in init["files"])
        return f"imported weights `{init['weights']['root']}` from the files (SHA-256) {files}"
    if init["kind"] == "parent":
        return f"step {init['step']} of run `{init['run']}`"
    return f"seed {genesis.predicate['seed']}"


def _dataset(entry: Entry) -> str:
    said = entry.predicate
    license = f", {_code(said['license'])}" if "license" in said else ""
    return (
        f"`{said['name']}`, {said['documents']} documents, {said['tokens']} tokens ({said['tokenizer']['name']}), "
        f"{said['visibility']}{license}, root `{said['dataset']['root']}`"
    )


def _code(text: str) -> str:
    """A free text of printable ASCII in a table cell, so that it is shown and not interpreted."""
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"
