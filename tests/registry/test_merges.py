"""A merge of releases of several runs stands on each of them: its bundle shows all, and every rule holds for all."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.cli import main
from bitwitness.ledger.commitments import tree
from bitwitness.ledger.datasette_plugin.server import make_datasette
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import open_envelope, seal
from bitwitness.ledger.errors import EntryError
from bitwitness.ledger.project import Project
from bitwitness.ledger.trust import load_trust
from bitwitness.ledger.verify_ledger import verify_ledger
from bitwitness.registry import derive, words
from bitwitness.registry.bundles import bundle, status_file
from bitwitness.registry.bundles.evidence import Entry
from bitwitness.registry.bundles.lineage import Lineage, LineageBroken, RunLine
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.derivation import DerivationRefused
from bitwitness.registry.description import ProgramRefused, check_alike
from bitwitness.registry.gating import lineage_checks
from bitwitness.registry.interop.export import export
from bitwitness.registry.model_config import ConfigRefused
from bitwitness.registry.names import find_version
from bitwitness.registry.policy import load_policy
from bitwitness.registry.refresh import refresh
from bitwitness.registry.register import register
from bitwitness.registry.restore import NotOnDisk
from bitwitness.registry.verify import examine

from . import project_fixture as made
from .forge import Forge

Json = dict[str, Any]
# What the run `other` has of its own.
CODE = tree("code/1", [b"another source file"])
PRECISE = {**made.CONFIG.resolved(), "run": {**made.CONFIG.resolved()["run"], "precision": "fp32"}}


def add_run(project: Project, name: str, *, audited: bool = True, **changes: Any) -> str:
    """A second run of the project, of its own dataset, code and precision, not measured; its id."""
    with project.open_ledger(writable=True) as ledger:
        dataset = made.add_dataset(ledger, project.signer("trainer"), f"text-of-{name}")
        genesis = {"code": CODE.to_json(), "config": PRECISE, **changes}
        writer = made.add_run(project, ledger, dataset, name, **genesis)
        for step in range(1, 5):
            made.add_step(writer, step, name)
            if step in (2, 4):
                made.store_state(project, writer, step, name)
        made.add_end(writer, 4, name)
        if audited:
            made.add_audit(project, ledger, writer.run, made.add_intent(project, ledger, writer.run))
        return writer.run


@pytest.fixture(scope="module")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = made.make(tmp_path_factory.mktemp("merges") / "project").project
    add_run(project, "other")
    register(project, "small-lm", "small", license="Apache-2.0")
    register(project, "other-lm", "other", license="Apache-2.0")
    derive.merge(project, [("other-lm/1", 0.25), ("small-lm/1", 0.75)], model="both")
    return project.root


@pytest.fixture
def project(_template: Path, tmp_path: Path) -> Project:
    """Runs `small` and `other`, a release of each, and their merge `both`."""
    shutil.copytree(_template, tmp_path / "project")
    return Project.find(tmp_path / "project")


def folder(project: Project, name: str = "both") -> Path:
    return project.models_dir / name / "1"


def checks_of(project: Project, *rules: str, name: str = "both", **given: Any) -> dict[str, Check]:
    """All checks by name, with the sources at hand; ``rules`` are lines of [rules]."""
    text = project.trust_path.read_text()
    asked = project.root / "asked.toml"
    asked.write_text(text.replace("[rules]\n", "[rules]\n" + "".join(f"{rule}\n" for rule in rules)))
    sources = given.pop("sources", [folder(project, "small-lm"), folder(project, "other-lm")])
    verdict = examine(folder(project, name), load_policy(asked), sources=sources, **given)
    return {check.name: check for check in verdict.checks}


def lineage_of(project: Project, name: str = "both") -> Lineage:
    traced = examine(folder(project, name), load_policy(project.trust_path)).traced
    assert traced is not None
    return traced.lineage


def test_every_run_is_shown_and_held_to_the_policy(project: Project) -> None:
    checks = checks_of(project)
    assert exit_code(checks.values()) == 0, [check for check in checks.values() if not check.ok]
    for name in ("release", "chain", "state", "data", "code", "evals", "audits", "status", "audit"):
        assert "run small (" in checks[name].detail and "run other (" in checks[name].detail, checks[name]
    lineage = lineage_of(project)
    assert [line.genesis.predicate["name"] for line in lineage.runs] == ["small", "other"]
    assert not verify_ledger(project.ledger_path, load_trust(project.trust_path), processes=1).faults
    before = (folder(project) / bundle.FILE_NAME).read_bytes()
    refresh(project, "both")
    assert (folder(project) / bundle.FILE_NAME).read_bytes() == before  # the same ledger, the same bytes


def test_the_bits_are_recomputed_from_both_runs(project: Project) -> None:
    assert checks_of(project, sources=[])["derivation"].ok is None
    assert checks_of(project, sources=[folder(project, "small-lm")])["derivation"].ok is None
    assert checks_of(project)["derivation"].ok is True
    matched, _, _ = derive.audit(project, "both")
    refresh(project, "both")
    assert matched and checks_of(project, sources=[])["derivation"].ok is True


def test_what_is_derived_from_a_merge_rests_on_all_below(project: Project) -> None:
    """A cast of the merge: recomputing the cast alone says nothing of the merge."""
    derive.cast(project, "both", "bf16", model="both-bf16")
    assert [entry.predicate["model"] for entry in lineage_of(project, "both-bf16").releases] == [
        "both-bf16", "small-lm", "other-lm", "both",
    ]  # fmt: skip
    bare = checks_of(project, name="both-bf16", sources=[folder(project)])
    assert bare["derivation"].ok is None and bare["derivation"].detail.startswith("both/1: ")
    every = [folder(project, name) for name in ("both", "small-lm", "other-lm")]
    assert exit_code(checks_of(project, name="both-bf16", sources=every).values()) == 0


# A rule, and what it says of the run or source that breaks it alone.
_SMALL = tree("code/1", [b"one source file"]).root


def _open_intent(project: Project) -> None:
    with project.open_ledger(writable=True) as ledger:
        made.add_intent(project, ledger, find_run(ledger, "other"))
    refresh(project, "both")


def _mismatch(project: Project) -> None:
    with project.open_ledger(writable=True) as ledger:
        run = find_run(ledger, "other")
        made.add_audit(project, ledger, run, made.add_intent(project, ledger, run), "mismatch")
    refresh(project, "both")


def find_run(ledger: Any, name: str) -> str:
    return str(ledger.connection.execute("SELECT hash FROM runs WHERE name = ?", (name,)).fetchone()[0])


def _say(word: str) -> Callable[[Project], None]:
    def say(project: Project) -> None:
        words.say(project, "other-lm/1", word)
        refresh(project, "both")

    return say


def _nothing(project: Project) -> None:
    """What the fixture has is enough."""


@pytest.mark.parametrize(
    ("check", "rule", "reason", "before"),
    [
        ("audit", "", "run other .*: .* found that step 3 does not replay", _mismatch),
        ("audit", "require_audit = true", "run other .*: 1 audits were announced without a result", _open_intent),
        ("code", f'code = ["{_SMALL}"]', "run other .* does not allow code root", _nothing),
        ("precisions", 'precisions = ["bfp"]', "run other .* precision fp32", _nothing),
        ("datasets", "", "run other .* does not allow training dataset", _nothing),
        ("auditors", "min_auditors = 2", "run small .*1 auditors.*run other .*1 auditors", _nothing),
        ("forbidden-versions", 'forbidden_versions = ["other-lm/1"]', "other-lm/1, which it derives from", _nothing),
        ("deprecation", "refuse_deprecated = true", "other-lm/1, which it derives from", _say("deprecated")),
        ("revocations", "", "other-lm/1, which it derives from, is revoked", _say("revoked")),
    ],
)
def test_a_rule_that_one_run_breaks(
    project: Project, check: str, rule: str, reason: str, before: Callable[[Project], None]
) -> None:

    before(project)
    lines = [rule] if rule else []
    text = next(item for item in lineage_of(project).own.genesis.predicate["datasets"])["dataset"]["root"]
    if check == "datasets":
        lines = [f'datasets = ["{text}"]']
    if rule.startswith("require_audit"):
        lines = []  # the file that init writes asks for it
    checks = checks_of(project, *lines)
    assert checks[check].ok is False, checks[check]
    assert re.search(reason, checks[check].detail), checks[check].detail
    if check != "auditors":
        assert "run small" not in checks[check].detail  # only what fails is named
    assert [name for name, found in checks.items() if found.ok is False] == [check]


def test_every_source_needs_an_allowed_licence(project: Project) -> None:
    register(project, "free-lm", "other", license="MIT")
    with pytest.raises(DerivationRefused, match=r"different licences \(Apache-2.0, MIT\); say with --license"):
        derive.merge(project, [("small-lm/1", 0.5), ("free-lm/1", 0.5)])
    derive.merge(project, [("small-lm/1", 0.5), ("free-lm/1", 0.5)], model="mixed", license="Apache-2.0")
    checks = checks_of(project, 'licenses = ["Apache-2.0"]', name="mixed")
    assert checks["licenses"].ok is False and checks["licenses"].detail.startswith("free-lm/1: ")
    assert checks_of(project, 'licenses = ["Apache-2.0", "MIT"]', name="mixed")["licenses"].ok is True


def _rewritten(project: Project, change: Callable[[Json], None]) -> None:
    path = folder(project) / bundle.FILE_NAME
    read = jcs.parse(path.read_bytes(), max_bytes=bundle.SIZE_LIMIT)
    change(read)
    path.write_bytes(jcs.encode(read))


def _said(item: Json) -> Json:

    found: Json = json.loads(base64.b64decode(item["entry"]["payload"]))
    return found


def _drop(read: Json, kind: str, **fields: Any) -> None:
    """Leave out the entries of a kind with these fields."""

    def is_one(item: Json) -> bool:
        said = _said(item)
        fits = all(said["predicate"].get(name) == value for name, value in fields.items())
        return f"/{kind}/" in said["predicateType"] and fits

    kept = [item for item in read["entries"] if not is_one(item)]
    assert len(kept) < len(read["entries"])
    read["entries"] = kept


def _other(read: Json) -> str:
    """The id of the run `other`."""
    (run,) = {
        _said(item)["predicate"]["run"]
        for item in read["entries"]
        if "/release/" in _said(item)["predicateType"] and _said(item)["predicate"]["model"] == "other-lm"
    }
    return str(run)


def _drop_audits(read: Json) -> None:
    _drop(read, "audit", run=_other(read))
    _drop(read, "audit-intent", run=_other(read))


def _drop_status(read: Json) -> None:
    del read["status"]
    _drop(read, "status")


def _misplace(read: Json) -> None:
    """The word on another release of `small` is said to be of `other`."""
    for opened in read["status"]["runs"]:
        if "words" in opened:
            placed = opened.pop("words")
    next(opened for opened in read["status"]["runs"] if opened["run"] == _other(read))["words"] = placed


def _placed_twice(read: Json) -> None:
    (placed,) = [opened["words"] for opened in read["status"]["runs"] if "words" in opened]
    for opened in read["status"]["runs"]:
        opened["words"] = placed


def _placed_too_much(read: Json) -> None:
    (opened,) = [opened for opened in read["status"]["runs"] if "words" in opened]
    opened["words"] = sorted([*opened["words"], 0])


def _drop_word(read: Json) -> None:
    _drop(read, "endorse", statement="deprecated")
    _unplaced(read)


def _unplaced(read: Json) -> None:
    for opened in read["status"]["runs"]:
        opened.pop("words", None)


@pytest.mark.parametrize(
    ("check", "reason", "change"),
    [
        ("release", "that .* derives from is not in the bundle", lambda read: _drop(read, "release", model="other-lm")),
        ("release", "the run .* is not in the bundle", lambda read: _drop(read, "run", name="other")),
        ("release", "0 entries for the released step 4", lambda read: _drop(read, "step", run=_other(read))),
        ("status", "run other .*something was left out", _drop_audits),
        ("status", "says of which run", lambda read: _drop(read, "endorse", statement="deprecated")),
        ("status", "run small .*something was left out", _drop_word),
        ("status", "opens .* for other runs", lambda read: read["status"]["runs"].pop()),
        ("status", "something was left out", _misplace),
        ("status", "does not say of which run", _unplaced),
        ("status", r"says of which run entry \d+ is", _placed_twice),
        ("status", "says of which run entry 0 is", _placed_too_much),
        ("chain", "run other .*no proof that", lambda read: read["history"].pop()),
        ("data", "run other .*is not in the bundle", lambda read: _drop(read, "dataset", name="text-of-other")),
    ],
)
def test_a_bundle_that_leaves_out_what_belongs_to_one_run(
    project: Project, check: str, reason: str, change: Callable[[Json], None]
) -> None:

    register(project, "small-lm", "small", step=2, license="Apache-2.0")
    words.say(project, "small-lm/2", "deprecated")  # a word on a release that the bundle does not hold
    refresh(project, "both")
    assert exit_code(checks_of(project).values()) == 0
    _rewritten(project, change)
    checks = checks_of(project)
    assert checks[check].ok is False, checks[check]
    assert re.search(reason, checks[check].detail), checks[check].detail


def test_a_revocation_of_a_source_cannot_be_left_out(project: Project) -> None:
    words.say(project, "other-lm/1", "revoked")
    refresh(project, "both")
    assert checks_of(project)["revocations"].ok is False
    _rewritten(project, lambda read: _drop(read, "endorse", statement="revoked"))
    checks = checks_of(project)
    assert checks["status"].ok is False and checks["revocations"].ok is False  # the log lists it, too
    _rewritten(project, _drop_status)
    assert checks_of(project)["require-status"].ok is False


def test_a_newer_status_tells_of_every_run(project: Project, tmp_path: Path) -> None:
    words.say(project, "other-lm/1", "revoked")
    with project.open_ledger(writable=True) as ledger:
        note = ledger.sign_checkpoint(project.signer("log"))
        (tmp_path / "status.json").write_bytes(status_file.make(ledger, note).encode())
    checks = checks_of(project, status=tmp_path / "status.json")
    assert checks["revocations"].ok is False
    assert checks["up-to-date"].ok is False and checks["up-to-date"].detail.startswith("run other (")


def test_what_was_derived_and_is_gone_is_derived_again(project: Project) -> None:
    derive.cast(project, "both", "bf16", model="both-bf16")
    kept = {}
    for name in ("both-bf16", "both"):
        kept[name] = {path.name: path.read_bytes() for path in folder(project, name).iterdir()}
        shutil.rmtree(folder(project, name))
    with pytest.raises(NotOnDisk, match=r"a version that it derives from is gone, too: .*both"):
        refresh(project, "both-bf16")
    for name in ("both", "both-bf16"):
        refresh(project, name)
        again = {path.name: path.read_bytes() for path in folder(project, name).iterdir()}
        del kept[name][bundle.FILE_NAME], again[bundle.FILE_NAME]
        assert again == kept[name]
    assert exit_code(checks_of(project).values()) == 0


@pytest.mark.parametrize(("word", "check"), [("revoked", "revoked-here"), ("deprecated", "deprecated-here")])
def test_a_name_goes_by_what_the_ledger_says_of_every_source(
    project: Project, capsys: pytest.CaptureFixture[str], word: str, check: str
) -> None:
    """The bundle is of before: the ledger that has the name knows better."""
    words.say(project, "other-lm/1", word)
    sources = [f"--source={folder(project, name)}" for name in ("small-lm", "other-lm")]
    arguments = ["verify", "both/1", "--policy", str(project.trust_path), *sources, "--json"]
    assert main(["--project", str(project.root), *arguments]) == (1 if word == "revoked" else 0)
    checks = {item["name"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
    assert checks[check]["ok"] is (False if word == "revoked" else None) and "other-lm/1" in checks[check]["detail"]
    assert checks["revocations"]["ok"] is True and "deprecation" not in checks


# What a publisher signs and a log takes in, though no derivation can say it; in the terms of the release `both`.
def _forged(forge: Forge, **changes: Any) -> None:
    forge.change(_release(forge), **changes)
    forge.write()


def _release(forge: Forge) -> int:
    return next(index for index in forge.shown if forge.predicate(index).get("model") == "both")


def _swapped_order(forge: Forge) -> None:
    sources = forge.predicate(_release(forge))["derivation"]["sources"]
    _forged(forge, derivation={"rule": "merge/1", "sources": sources[::-1]})


def _source_after(forge: Forge) -> None:
    """The merge stands before what it derives from: whoever could, would make derivations that end in themselves."""
    at = next(index for index in forge.shown if forge.predicate(index).get("model") == "other-lm")
    merge = _release(forge)
    forge.log[at], forge.log[merge] = forge.log[merge], forge.log[at]
    forge.write()


def _left_out(forge: Forge) -> None:
    """The merge names one release of one run twice as heavy, and the bundle shows the run that it left out."""
    sources = forge.predicate(_release(forge))["derivation"]["sources"][:1]
    _forged(forge, derivation={"rule": "merge/1", "sources": [*sources, {**sources[0], "release": "11" * 32}]})


@pytest.mark.parametrize(
    ("reason", "lie"),
    [
        ("names another run than the first release", _swapped_order),
        ("which is not before it", _source_after),
        ("that .* derives from is not in the bundle|holds 2 releases", _left_out),
        ("names another run", lambda forge: _forged(forge, run=forge.leaf(forge.find("run", 1)))),
        ("0 entries for the released step 2", lambda forge: _forged(forge, step=2)),
    ],
)
def test_merges_that_no_ledger_would_take(project: Project, reason: str, lie: Callable[[Forge], None]) -> None:

    forge = Forge(project, folder(project))
    lie(forge)
    check = checks_of(project)["release"]
    assert check.ok is False and re.search(f"{reason}|names other state", check.detail), check


def test_swapped_factors_give_other_bits(project: Project) -> None:
    forge = Forge(project, folder(project))
    one, other = forge.predicate(_release(forge))["derivation"]["sources"]
    swapped = [{**one, "factor": other["factor"]}, {**other, "factor": one["factor"]}]
    _forged(forge, derivation={"rule": "merge/1", "sources": swapped})
    checks = checks_of(project)
    assert checks["release"].ok is True and checks["derivation"].ok is False, checks["derivation"]


def test_the_ledger_refuses_them_too(project: Project) -> None:
    with project.open_ledger() as ledger:
        good = open_envelope(ledger.entry(find_version(ledger, "both").index)).statement["predicate"]
    one, other = good["derivation"]["sources"]
    for changes in (
        {"derivation": {"rule": "merge/1", "sources": [other, one]}},
        {"derivation": {"rule": "merge/1", "sources": [one, {**other, "release": "11" * 32}]}},
        {"run": other["release"]},
    ):
        with project.open_ledger(writable=True) as ledger, pytest.raises(EntryError):
            ledger.append(
                [seal(statement("release", None, {**good, "version": 2, **changes}), project.signer("publisher"))]
            )


def test_a_source_of_another_log(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = made.make(tmp_path / "elsewhere").project
    release = register(elsewhere, "far-lm", "small").path
    assert main(["--project", str(project.root), "model", "merge", "small-lm/1=0.5", f"{release}=0.5"]) == 2
    said = capsys.readouterr().err
    assert "a derivation names releases of its own ledger" in said and "ledger model import" in said
    assert said.count("\n") == 1
    # Entries of the other log do not stand in this one, and a run that was made for it does not count here.
    far = bundle.parse((release / bundle.FILE_NAME).read_bytes()).entries[-1].model_dump()
    _rewritten(project, lambda read: read["entries"].append({**far, "index": read["entries"][-1]["index"] + 1}))
    assert "is not in the log" in checks_of(project)["inclusion"].detail
    _rewritten(project, lambda read: read["entries"].pop() and None)
    lineage = lineage_of(project)
    foreign = _saying(lineage.runs[1].genesis, origin="log.invalid/2")
    changed = [lineage.runs[0], dataclasses.replace(lineage.runs[1], genesis=foreign)]
    with pytest.raises(LineageBroken, match=r"was made for log log.invalid/2, not for"):
        lineage_checks.check_release(dataclasses.replace(lineage, runs=changed), lineage.genesis.predicate["origin"])


def _saying(entry: Entry, **changes: Any) -> Entry:
    """An entry that says something else, as if it had been signed so."""
    said = {**entry.envelope.statement, "predicate": {**entry.predicate, **changes}}
    return dataclasses.replace(entry, envelope=dataclasses.replace(entry.envelope, statement=said))


def test_runs_of_other_programs_or_tokenizers_are_not_alike(project: Project) -> None:
    one, other = lineage_of(project).runs
    check_alike([one, other])

    def own(line: RunLine, program: str) -> RunLine:
        return dataclasses.replace(line, genesis=_saying(line.genesis, model={"program": program}))

    check_alike([own(one, "aa"), own(other, "aa")])
    for pair in ([one, own(other, "aa")], [own(one, "aa"), other], [own(one, "aa"), own(other, "bb")]):
        with pytest.raises(ProgramRefused, match="of another program than run small"):
            check_alike(pair)
    words_of = [_saying(entry, tokenizer={"name": "words", "vocabulary": 4}) for entry in other.datasets]
    with pytest.raises(ConfigRefused, match="of another tokenizer than run small"):
        check_alike([one, dataclasses.replace(other, datasets=words_of)])


@pytest.fixture
def unlike(project: Project) -> Iterator[Project]:
    """Runs whose weights have the same shapes and mean something else."""
    config = made.CONFIG.resolved()
    model = {**config["model"], "rope_theta": jcs.f64_hex(77.0)}
    add_run(project, "turned", audited=False, config={**config, "model": model})
    register(project, "turned-lm", "turned", license="Apache-2.0")
    wide = {**config, "data": {**config["data"], "window": 16}}
    add_run(project, "longer", audited=False, config=wide)
    register(project, "longer-lm", "longer", license="Apache-2.0")
    yield project


def test_only_runs_of_one_model_are_merged(unlike: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [("small-lm/1", 0.5), ("turned-lm/1", 0.5)]
    with pytest.raises(DerivationRefused, match=r"of another model than run small .*: they differ in rope_theta"):
        derive.merge(unlike, parts)
    derive.merge(unlike, [("small-lm/1", 0.5), ("longer-lm/1", 0.5)], model="long")  # a window is no other function
    with monkeypatch.context() as patch, pytest.raises(DerivationRefused, match="stand on 2 runs; a bundle can show 1"):
        patch.setattr(derive, "RUNS_LIMIT", 1)
        derive.merge(unlike, parts)
    monkeypatch.setattr(derive, "_check_alike", lambda opened: None)
    derive.merge(unlike, parts, model="odd")
    checks = checks_of(unlike, name="odd")
    assert checks["config"].ok is False and "they differ in rope_theta" in checks["config"].detail


def test_all_lineages_are_shown(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    words.say(project, "other-lm/1", "deprecated")
    derive.cast(project, "both", "bf16", model="both-bf16")
    assert main(["--project", str(project.root), "model", "show", "both-bf16"]) == 0
    text = capsys.readouterr().out
    lines = text.split("\n")
    assert lines[3] == "├── cast/1" and lines[4].startswith("│   └── both/1 (") and lines[5] == "│       └── merge/1"
    assert lines[6].startswith("│           ├── small-lm/1 (") and lines[6].endswith("× 0.75")
    assert lines[7].startswith("│           └── other-lm/1 (") and lines[7].endswith("× 0.25, deprecated")
    assert "├── run small (" in text and "└── run other (" in text and "no audit" not in text
    assert main(["--project", str(project.root), "model", "show", "both-bf16", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [item["run"]["name"] for item in shown["lineages"]] == ["small", "other"]
    assert [item["audits"][0]["result"] for item in shown["lineages"]] == ["match", "match"]
    (source,) = shown["derivation"]["sources"]
    assert [item["factor"] for item in source["derivation"]["sources"]] == [0.75, 0.25]
    assert source["derivation"]["sources"][1]["state"] == "deprecated"


def test_the_page_of_a_merge_leads_to_its_sources(project: Project) -> None:
    datasette = make_datasette(project.ledger_path, public=False)

    async def page() -> Any:
        return await datasette.client.get("/models/both/1")

    answer = asyncio.run(page())
    assert answer.status_code == 200 and "what the first source goes back to" in answer.text
    for text in ('0.75 × <a href="/models/small-lm/1">', '0.25 × <a href="/models/other-lm/1">', '/runs/other">other'):
        assert text in answer.text
    # The loss that was measured is of a source's step, not of the merge.
    assert re.search(r"Held-out loss</dt><dd[^>]*>–", answer.text)


def test_what_is_exported_names_every_source(project: Project, tmp_path: Path) -> None:
    export(project, "both", tmp_path / "out", slsa=True, cyclonedx=True)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "A merge of releases of the training runs `small`, `other`." in text
    with project.open_ledger() as ledger:
        leaves = {name: find_version(ledger, name).leaf for name in ("small-lm/1", "other-lm/1")}
        run = find_run(ledger, "other")
    for name, leaf in leaves.items():
        assert f"{name} `{leaf}` × " in text
    assert "`text-of-other`" in text and text.count("| audit |") == 2
    payload = json.loads((tmp_path / "out" / "model.intoto.jsonl").read_text())["payload"]

    made_of = json.loads(base64.b64decode(payload))["predicate"]["buildDefinition"]
    names = [item["name"] for item in made_of["resolvedDependencies"]]
    assert {f"release/{leaf}" for leaf in leaves.values()} <= set(names)
    assert {"weights/step/4", f"run/{run}/weights/step/4", f"run/{run}/dataset/train/text-of-other"} <= set(names)
    assert len(names) == len(set(names))
    assert [item["run"] for item in made_of["externalParameters"]["runs"]] == [run]
    bom = json.loads((tmp_path / "out" / "bom.cdx.json").read_text())
    ancestors = bom["metadata"]["component"]["pedigree"]["ancestors"]
    assert [f"{item['name']}/{item['version']}" for item in ancestors] == ["small-lm/1", "other-lm/1"]
    assert {item["name"] for item in bom["components"] if item["type"] == "data"} == {"text", "text-of-other"}
    checks = {
        check.name: check
        for check in examine(
            tmp_path / "out",
            load_policy(project.trust_path),
            sources=[folder(project, "small-lm"), folder(project, "other-lm")],
        ).checks
    }
    assert exit_code(checks.values()) == 0, checks
    assert "export" in checks


@pytest.mark.parametrize("rule", ["max-loss", "eval-audit"])
def test_losses_of_the_sources_are_none_of_the_merge(project: Project, rule: str) -> None:
    """A source may be good, and 100000 times it with -99999 times another is not; nobody measured that."""
    derive.merge(project, [("small-lm/1", 100000.0), ("other-lm/1", -99999.0)], model="junk")
    derive.cast(project, "small-lm/1", "bf16", model="small-bf16")
    measured = lineage_of(project, "small-lm").own.evals[-1].predicate["dataset"]["dataset"]["root"]
    for name in ("junk", "small-bf16", "both"):
        found = checks_of(project, f'max_loss = {{ "{measured}" = 9.0 }}', "require_eval_audit = true", name=name)[rule]
        assert found.ok is None and found.required and found.detail.startswith("these weights were not measured"), found
        assert "run small (" in found.detail and (rule != "max-loss" or " of at most 9 on " in found.detail)
    assert checks_of(project, f'max_loss = {{ "{measured}" = 9.0 }}', name="small-lm")["max-loss"].ok is True
