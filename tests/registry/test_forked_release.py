"""The release of a run that goes on from another one: its proof shows the line, and holds to it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.cli import main
from bitwitness.ledger.project import Project
from bitwitness.registry import derive, words
from bitwitness.registry.bundles import bundle, collect, completeness, status_file
from bitwitness.registry.bundles.lineage import LineageBroken
from bitwitness.registry.catalog import show_model
from bitwitness.registry.checks import Check
from bitwitness.registry.policy import load_policy
from bitwitness.registry.refresh import refresh
from bitwitness.registry.register import register
from bitwitness.registry.status import append_status
from bitwitness.registry.verify import examine
from bitwitness.trainer.auditing.ancestry_audit import audit_ancestry
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.venue import LocalVenue
from bitwitness.trainer.config import parse_config
from bitwitness.trainer.history import open_run
from bitwitness.trainer.run import train

from . import project_fixture as made
from .trained import TABLE


@pytest.fixture(scope="module")
def half_audited(_trained_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of a run `child` that goes on from step 4 of `middle`, and this from step 2 of `tiny`; `child-lm`.

    `tiny` was audited before `middle` began, `middle` never was.
    """
    root = tmp_path_factory.mktemp("forked") / "project"
    shutil.copytree(_trained_template, root)
    project = Project.find(root)
    for name, begun, precision in (("middle", "tiny@2", "fp32"), ("child", "middle@4", "bfp")):
        table = {**TABLE, "run": {**TABLE["run"], "name": name, "from": begun, "steps": 6, "precision": precision}}
        train(project, parse_config(table, where="test"), threads=1)
    audit(project, "child", samples=9, threads=1)
    register(project, "child-lm", "child")
    return root


@pytest.fixture(scope="module")
def folder(half_audited: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, audited across the boundaries."""
    root = tmp_path_factory.mktemp("audited") / "project"
    shutil.copytree(half_audited, root)
    project = Project.find(root)
    assert audit_ancestry(LocalVenue(project), "child", samples=9, threads=1).result == "match"
    refresh(project, "child-lm/1")
    return root


@pytest.fixture
def project(folder: Path, tmp_path: Path) -> Project:
    shutil.copytree(folder, tmp_path / "project")
    return Project.find(tmp_path / "project")


def gate(project: Project, **rules: Any) -> dict[str, Check]:
    """The checks of child-lm/1 under the project's policy with other rules."""
    policy = load_policy(project.trust_path)
    changed = policy.model_copy(update={"rules": policy.rules.model_copy(update=rules)})
    return {check.name: check for check in examine(project.models_dir / "child-lm" / "1", changed).checks}


def verify(model: Path, root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["verify", str(model), "--policy", str(root / "trust.toml"), "--json", *arguments])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_the_proof_shows_the_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, checks = verify(folder / "models" / "child-lm" / "1", folder, capsys)
    assert code == 0, [check for check in checks.values() if not check["ok"]]
    assert "origin" not in checks  # all of it is here, down to the seed
    said = checks["release"]["detail"]
    assert "step 6 of run child" in said
    assert said.index("goes on from step 4 of run middle") < said.index("goes on from step 2 of run tiny")
    assert checks["audit"]["detail"].count("replayed 2 of 2 steps: match") >= 3
    monkeypatch.chdir(folder)
    assert main(["model", "show", "child-lm/1"]) == 0
    shown = capsys.readouterr().out
    assert "parent: run middle" in shown and "at step 2, began: seeded" in shown
    tree = re.sub(r"[0-9a-f]{16}…", "…", shown)
    assert re.search(r"parent: run middle \(…\) at step 4, began: parent\n[ │]+└── audit by …: match, 2 steps", tree)


def test_a_merge_of_a_run_and_one_that_it_goes_back_to(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tiny` is both a source and where the other source began: its state there lies on its own line."""
    shutil.copytree(folder, tmp_path / "project")
    project = Project.find(tmp_path / "project")
    made = derive.merge(project, [("tiny-lm/1", 0.5), ("child-lm/1", 0.5)], license="Apache-2.0")
    sources = [f"--source={project.models_dir / name / '1'}" for name in ("tiny-lm", "child-lm")]
    code, checks = verify(made.path, project.root, capsys, *sources)
    assert code == 0, [check for check in checks.values() if not check["ok"]]
    assert "origin" not in checks
    said = checks["release"]["detail"]
    assert (
        said.index("step 6 of run child") < said.index("goes on from step 4 of run middle") < said.index("; and from")
    )
    assert "; and from step 4 of run tiny" in said
    _change(made.path, lambda b: b.update(entries=_drop("state", 2)(b["entries"])))
    code, checks = verify(made.path, project.root, capsys, *sources)
    assert code == 1 and "begins with is not in the bundle" in checks["release"]["detail"]


def _change(model: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = model / bundle.FILE_NAME
    read = jcs.parse(path.read_bytes(), max_bytes=bundle.SIZE_LIMIT)
    change(read)
    path.write_bytes(jcs.encode(read))


def _drop(kind: str, step: int) -> Callable[[list[Any]], list[Any]]:
    def drop(entries: list[Any]) -> list[Any]:
        kept = []
        for item in entries:
            said = json.loads(base64.b64decode(item["entry"]["payload"]))
            predicate = said["predicate"]
            if f"/{kind}/" in said["predicateType"] and predicate["control"]["step"] == step:
                continue
            kept.append(item)
        assert len(kept) < len(entries)
        return kept

    return drop


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.update(entries=_drop("run", 0)(b["entries"])), "that .* goes on from is not in the bundle"),
        (lambda b: b.update(entries=_drop("state", 2)(b["entries"])), "begins with is not in the bundle"),
        (lambda b: b["history"].pop(0), "no proof that"),
    ],
)
def test_a_proof_without_its_line_is_refused(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    says: str,
) -> None:
    model = tmp_path / "1"
    shutil.copytree(folder / "models" / "child-lm" / "1", model)
    _change(model, change)
    code, checks = verify(model, folder, capsys)
    assert code == 1
    assert any(re.search(says, check["detail"]) for check in checks.values() if check["ok"] is False)


# -- every step that the weights come from ---------------------------------------------------------------------------


def test_steps_before_the_fork_that_nobody_audited_are_missed(half_audited: Path) -> None:
    """What was audited of the child alone says nothing of two thirds of the steps."""
    project = Project.find(half_audited)
    checks = gate(project, min_audited_fraction=1.0, min_audited_steps=5, min_auditors=1)
    (shown,) = show_model(project, "child-lm/1")["lineages"]
    assert [(parent["run"], len(parent["audits"])) for parent in shown["parents"]] == [("middle", 0), ("tiny", 1)]
    said = checks["audit"].detail
    assert checks["audit"].ok is False and said.startswith(
        "an audit is required, of each run that the weights come from"
    )
    assert re.search(r"run middle \(.{17}\): no audit in the bundle", said)
    assert re.search(r"run tiny \(.{17}\): auditor .{17} replayed 2 of 2 steps: match", said)
    for name in ("audited-fraction", "audited-steps"):
        assert checks[name].ok is False
        assert "replayed 4 of the 6 steps up to the released one" in checks[name].detail
        assert re.search(r"run middle \(.{17}\): 0 of 2,", checks[name].detail)
    assert checks["auditors"].ok is False and "audits of run middle" in checks["auditors"].detail
    assert gate(project, min_audited_fraction=0.66)["audited-fraction"].ok is True
    assert gate(project, require_audit=False)["audit"].ok is True


def test_the_whole_history_was_audited(project: Project) -> None:
    checks = gate(project, min_audited_fraction=1.0, min_auditors=1)
    assert all(checks[name].ok for name in ("audit", "audited-fraction", "auditors", "status", "chain"))
    assert "replayed 6 of the 6 steps" in checks["audited-fraction"].detail
    # Two auditors of whom each saw another part are not two for any step.
    assert gate(project, min_auditors=2)["auditors"].ok is False


def test_the_rules_on_runs_hold_for_all_of_them(project: Project) -> None:
    """`middle` computed in another precision than the run that is released."""
    checks = gate(project, precisions=["bfp"])
    assert checks["precisions"].ok is False and checks["precisions"].detail.startswith("run middle")
    assert gate(project, precisions=["bfp", "fp32"])["precisions"].ok is True
    with project.open_ledger() as ledger:
        genesis = open_run(ledger, "tiny").genesis
    roots = [item["dataset"]["root"] for item in genesis["datasets"] if item["role"] == "train"]
    trainer = project.signer("trainer").keyid
    allowed = gate(project, datasets=roots, code=[genesis["code"]["root"]], trainers=[trainer])
    assert all(allowed[name].ok for name in ("datasets", "code", "trainers"))
    refused = gate(project, datasets=["ab" * 32], code=["ab" * 32], trainers=["ab" * 32])
    for name in ("datasets", "code", "trainers"):
        assert refused[name].ok is False
        assert all(f"run {run}" in refused[name].detail for run in ("tiny", "middle", "child"))


def _say(project: Project, run: str, first: int, last: int, found: dict[str, Any] | None) -> None:
    """An intent on steps of a run, and where something was `found`, the audit that says so; then a new bundle."""
    signer = project.signer("auditor")
    with project.open_ledger(writable=True) as ledger:
        name = open_run(ledger, run).run
        said = {
            "run": name,
            "size": ledger.size,
            "root": ledger.root().hex(),
            "first": first,
            "last": last,
            "samples": 0,
        }
        _, intent = made.append(ledger, signer, "audit-intent", {**said, "beacon": {"kind": "none"}, "time": made.TIME})
        if found is not None:
            unit = {"first": first, "last": last, "cause": "chosen", "outcome": "mismatch", "found": found}
            made.add_audit(project, ledger, name, intent, "mismatch", units=[unit], steps=1)
    refresh(project, "child-lm/1")


@pytest.mark.parametrize(
    ("run", "first", "last", "found", "counts"),
    [
        ("tiny", 1, 2, {"step": 2}, True),
        ("tiny", 3, 4, {"step": 3}, False),  # the next run went on from step 2
        ("tiny", 3, 4, {"step": 2}, True),  # found on the way there
        ("tiny", 3, 4, {"step": 4, "field": "screen"}, True),  # since which state is not told
        ("middle", 5, 6, {"step": 5}, False),
        ("child", 5, 6, {"step": 6}, True),
    ],
)
def test_what_does_not_replay(
    project: Project, run: str, first: int, last: int, found: dict[str, Any], counts: bool
) -> None:
    """Before a fork it refuses all that came of it; what a run did after it concerns nobody who went on from before."""
    _say(project, run, first, last, {"expected": "aa" * 32, "computed": "bb" * 32, **found})
    checks = gate(project)
    assert checks["status"].ok is True
    assert checks["audit"].ok is not counts, checks["audit"].detail
    if counts:
        assert f"found that step {found['step']} of run {run}" in checks["audit"].detail


def test_announced_audits_of_all_runs_are_counted(project: Project) -> None:
    _say(project, "middle", 5, 6, None)  # beyond the fork
    assert gate(project)["audit"].ok is True
    _say(project, "middle", 3, 4, None)
    assert "1 audits were announced without a result" in gate(project)["audit"].detail
    _say(project, "tiny", 0, 4, None)
    assert gate(project, max_open_intents=2)["audit"].ok is True
    assert "2 audits were announced" in gate(project, max_open_intents=1)["audit"].detail


def test_nothing_that_was_said_of_a_run_before_can_be_left_out(project: Project) -> None:
    """Neither an audit nor a word, nor the proof of what the log lists for the run."""
    words.say(project, "tiny-lm/1", "deprecated")
    refresh(project, "child-lm/1")
    whole = (project.models_dir / "child-lm" / "1" / bundle.FILE_NAME).read_bytes()
    assert gate(project)["status"].ok is True
    with project.open_ledger() as ledger:
        tiny, middle = open_run(ledger, "tiny").run, open_run(ledger, "middle").run

    def said(item: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(base64.b64decode(item["entry"]["payload"]))
        return found

    def without(kind: str, run: str) -> Callable[[dict[str, Any]], None]:
        def change(read: dict[str, Any]) -> None:
            kept = [
                item
                for item in read["entries"]
                if not (f"/{kind}/" in said(item)["predicateType"] and said(item)["predicate"].get("run", run) == run)
            ]
            assert len(kept) < len(read["entries"])
            read["entries"] = kept

        return change

    def swapped(read: dict[str, Any]) -> None:
        (one,) = (item for item in read["status"]["runs"] if "words" in item)
        assert one["run"] == tiny
        (other,) = (item for item in read["status"]["runs"] if item["run"] == middle)
        other["words"] = one.pop("words")

    for change, check, says in [
        (without("audit", middle), "status", "left out or added"),
        (without("eval", tiny), "status", "left out or added"),
        (without("endorse", tiny), "status", "no word that needs it"),
        (without("dataset", ""), "data", "is not in the bundle"),
        (lambda read: read["status"]["runs"].pop(0), "status", "for other runs than"),
        (swapped, "status", "left out or added"),
    ]:
        read = jcs.parse(whole, max_bytes=bundle.SIZE_LIMIT)
        change(read)
        (project.models_dir / "child-lm" / "1" / bundle.FILE_NAME).write_bytes(jcs.encode(read))
        found = gate(project)[check]
        assert found.ok is False and says in found.detail, found


def test_a_newer_status_asks_for_all_runs(project: Project, tmp_path: Path) -> None:
    """What was said of a run before since the bundle was made is missed by a gate that has the log's newest status."""
    with project.open_ledger(writable=True) as ledger:
        log = project.signer("log")
        append_status(ledger, log)
        (tmp_path / "old.json").write_bytes(status_file.make(ledger, ledger.sign_checkpoint(log)).encode())
        made.add_intent(project, ledger, open_run(ledger, "tiny").run)
        append_status(ledger, log)
        (tmp_path / "new.json").write_bytes(status_file.make(ledger, ledger.sign_checkpoint(log)).encode())
    policy = load_policy(project.trust_path)
    for name, fits in (("old", True), ("new", False)):
        model = project.models_dir / "child-lm" / "1"
        checks = {check.name: check for check in examine(model, policy, status=tmp_path / f"{name}.json").checks}
        assert checks["up-to-date"].ok is fits, checks["up-to-date"].detail
    assert "run tiny" in checks["up-to-date"].detail and "ask for a refreshed bundle" in checks["up-to-date"].detail


def test_a_status_that_lists_no_fork_is_refused(project: Project) -> None:
    """Where a log hides the fork, audits would be drawn as if nobody went on from there."""
    traced = examine(project.models_dir / "child-lm" / "1", load_policy(project.trust_path)).traced
    assert traced is not None and traced.told is not None
    marks = {run: [m for m in of if m.kind != "fork"] for run, of in traced.told.marks.items()}
    completeness.check_forks(traced.lineage, traced.told.entry, traced.told.marks)
    with pytest.raises(LineageBroken, match="among the forks of the run that it goes on from"):
        completeness.check_forks(traced.lineage, traced.told.entry, marks)


# -- what was said of a release that a run goes on from --------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "step", "word", "counts"),
    [
        ("middle", 4, "revoked", True),  # just what `child` begins with
        ("tiny", 2, "revoked", True),  # just what `middle` began with
        ("tiny", 2, "deprecated", True),
        ("middle", 4, "deprecated", True),
        ("middle", 6, "revoked", False),  # beyond the fork
    ],
)
def test_what_goes_on_from_a_release_goes_with_it(
    project: Project, run: str, step: int, word: str, counts: bool
) -> None:
    register(project, "before-lm", run, step=step)
    refresh(project, "child-lm/1")
    assert gate(project, refuse_deprecated=True)["deprecation"].ok is True
    words.say(project, "before-lm/1", word, "bad data")
    refresh(project, "child-lm/1")
    checks = gate(project, refuse_deprecated=True)
    name = "revocations" if word == "revoked" else "deprecation"
    assert checks[name].ok is not counts, checks[name].detail
    failed = [check.name for check in checks.values() if not check.ok and check.required]
    assert failed == ([name] if counts else [])
    if counts:
        assert f"before-lm/1, of step {step} of a run that it goes on from," in checks[name].detail
        assert "bad data" in checks[name].detail


def test_a_release_that_a_run_goes_on_from_can_not_be_left_out(project: Project) -> None:
    """Nor put in where it has no place, nor made the one that the bundle is about."""
    register(project, "before-lm", "middle", step=4)
    words.say(project, "before-lm/1", "revoked")
    refresh(project, "child-lm/1")
    path = project.models_dir / "child-lm" / "1" / bundle.FILE_NAME
    whole = path.read_bytes()
    (position,) = bundle.parse(whole).before or ()

    def left_out(read: dict[str, Any]) -> None:
        read["entries"] = [item for item in read["entries"] if item["index"] != position]
        del read["before"]
        said = [json.loads(base64.b64decode(item["entry"]["payload"])) for item in read["entries"]]
        (word,) = (i["index"] for i, s in zip(read["entries"], said, strict=True) if "/endorse/" in s["predicateType"])
        with project.open_ledger() as ledger:
            middle = open_run(ledger, "middle").run
        (one,) = (item for item in read["status"]["runs"] if item["run"] == middle)
        one["words"] = [word]

    for change, check, says in [
        (left_out, "status", f"lists entry {position}, a release of run middle"),
        (lambda read: read.pop("before"), "release", "holds 2 releases, not one"),
        (lambda read: read.update(before=[position, position + 1]), "release", "that it does not hold"),
        (lambda read: read.update(before=[_own(read, position)]), "release", "belongs to another run"),
    ]:
        read = jcs.parse(whole, max_bytes=bundle.SIZE_LIMIT)
        change(read)
        path.write_bytes(jcs.encode(read))
        found = gate(project)[check]
        assert found.ok is False and says in found.detail, found


def test_no_other_release_is_shown_with_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One beyond the fork has no place here, and one that the log does not list so may lie about its step."""
    register(project, "before-lm", "middle", step=4)
    refresh(project, "child-lm/1")
    traced = examine(project.models_dir / "child-lm" / "1", load_policy(project.trust_path)).traced
    assert traced is not None and traced.told is not None and len(traced.lineage.before) == 1
    marks = {run: [m for m in of if m.kind != "release"] for run, of in traced.told.marks.items()}
    completeness.check_before(traced.lineage, traced.told.entry, traced.told.marks)
    with pytest.raises(LineageBroken, match="among the releases of the run that is gone on from"):
        completeness.check_before(traced.lineage, traced.told.entry, marks)
    late = register(project, "late-lm", "middle", step=6)
    released = collect._released
    monkeypatch.setattr(collect, "_released", lambda ledger, fork: [*released(ledger, fork), late.index])
    refresh(project, "child-lm/1")
    found = gate(project)["release"]
    assert found.ok is False and "is not a release that the run goes on from" in found.detail


def _own(read: dict[str, Any], other: int) -> int:
    """The position of the release that a bundle is about."""
    for item in read["entries"]:
        kind = json.loads(base64.b64decode(item["entry"]["payload"]))["predicateType"]
        if "/release/" in kind and item["index"] != other:
            return int(item["index"])
    raise AssertionError


def test_a_merge_with_a_run_that_goes_on_from_its_other_source(project: Project) -> None:
    """A release of the run that is gone on from is a source, another one not; a cast of it says nothing of the rest."""
    register(project, "before-lm", "middle", step=4, license="Apache-2.0")
    register(project, "early-lm", "tiny", step=2)
    derive.cast(project, "before-lm/1", "bf16", model="cast-lm")
    made = derive.merge(project, [("before-lm/1", 0.5), ("child-lm/1", 0.5)], license="Apache-2.0", model="mixed")
    policy = load_policy(project.trust_path)

    def checks() -> dict[str, Check]:
        sources = [project.models_dir / name / "1" for name in ("before-lm", "child-lm")]
        return {check.name: check for check in examine(made.path, policy, sources=sources).checks}

    words.say(project, "cast-lm/1", "revoked")
    refresh(project, "mixed/1")
    assert all(check.ok for check in checks().values() if check.required), checks()
    words.say(project, "early-lm/1", "revoked")
    refresh(project, "mixed/1")
    assert checks()["revocations"].ok is False and "early-lm/1, of step 2 of" in checks()["revocations"].detail


# -- what a policy or the ledger here says of a release that a run goes on from --------------------------------------


@pytest.mark.parametrize(
    ("run", "step", "counts"),
    [("middle", 4, True), ("middle", 2, True), ("tiny", 2, True), ("middle", 6, False), ("tiny", 4, False)],
)
def test_a_version_that_the_policy_forbids(project: Project, run: str, step: int, counts: bool) -> None:
    """Wherever in the line it was released, up to where the next run goes on."""
    register(project, "before-lm", run, step=step)
    refresh(project, "child-lm/1")
    found = gate(project, forbidden_versions=["before-lm/1"])["forbidden-versions"]
    assert found.ok is not counts, found
    if counts:
        expected = f"the policy forbids before-lm/1, of step {step} of a run that it goes on from"
        assert found.detail == expected


@pytest.mark.parametrize(
    ("run", "licence", "counts"),
    [("middle", "CC-BY-NC-4.0", True), ("tiny", "CC-BY-NC-4.0", True), ("middle", "MIT", False), ("tiny", None, False)],
)
def test_a_licence_that_the_weights_were_given_out_under(
    project: Project, run: str, licence: str | None, counts: bool
) -> None:
    register(project, "before-lm", run, step=2, license=licence)
    made = register(project, "child-lm", "child", license="Apache-2.0")
    policy = load_policy(project.trust_path)
    rules = policy.rules.model_copy(update={"licenses": ["Apache-2.0", "MIT"]})
    checks = {check.name: check for check in examine(made.path, policy.model_copy(update={"rules": rules})).checks}
    assert checks["licenses"].ok is not counts, checks["licenses"]
    if counts:
        assert checks["licenses"].detail == "before-lm/1: the policy does not allow licence CC-BY-NC-4.0"


def test_without_a_status_releases_before_may_have_been_left_out(project: Project) -> None:
    """A release names what it derives from, so that nothing of this is missing; not what its run goes on from."""
    rules = {"forbidden_versions": ["before-lm/1"], "licenses": ["Apache-2.0"]}
    register(project, "child-lm", "child", license="Apache-2.0")
    names = ("forbidden-versions", "licenses")
    for model, results in (("child-lm/2", {None}), ("tiny-lm/1", {True})):
        path = project.models_dir / model / bundle.FILE_NAME
        read = jcs.parse(path.read_bytes(), max_bytes=bundle.SIZE_LIMIT)
        del read["status"]
        kinds = [json.loads(base64.b64decode(item["entry"]["payload"]))["predicateType"] for item in read["entries"]]
        read["entries"] = [e for e, kind in zip(read["entries"], kinds, strict=True) if "/status/" not in kind]
        path.write_bytes(jcs.encode(read))
        policy = load_policy(project.trust_path)
        changed = policy.model_copy(update={"rules": policy.rules.model_copy(update=rules)})
        found = {check.name: check for check in examine(path.parent, changed).checks}
        assert {found[name].ok for name in names} == results, [found[name] for name in names]


@pytest.mark.parametrize("run", ["middle", "tiny"])
@pytest.mark.parametrize(
    ("word", "check", "code"), [("revoked", "revoked-here", 1), ("deprecated", "deprecated-here", 0)]
)
def test_a_name_goes_by_what_the_ledger_says_of_what_the_run_goes_on_from(
    project: Project, capsys: pytest.CaptureFixture[str], run: str, word: str, check: str, code: int
) -> None:
    """The bundle is of before the word, and before the release that it is on: the ledger here knows both."""
    register(project, "before-lm", run, step=2)
    register(project, "late-lm", run, step=6 if run == "middle" else 4)
    for model in ("before-lm/1", "late-lm/1"):
        words.say(project, model, word, "bad data")
    arguments = ["--project", str(project.root), "verify", "child-lm/1", "--policy", str(project.trust_path), "--json"]
    capsys.readouterr()
    assert main(arguments) == code
    checks = {item["name"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["revocations"]["ok"] is True and "deprecation" not in checks
    assert checks[check]["ok"] is (False if code else None)
    said = checks[check]["detail"]
    assert "before-lm/1, of step 2 of a run that it goes on from, " in said and said.endswith(": bad data")


def test_a_name_goes_by_the_versions_that_the_ledger_has_before_it(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was released of an earlier run after the bundle was made, and is forbidden, is found all the same."""
    register(project, "before-lm", "tiny", step=2)
    with project.trust_path.open("a", encoding="utf-8") as file:
        file.write('forbidden_versions = ["before-lm/1"]\n')
    arguments = ["--project", str(project.root), "verify", "child-lm/1", "--policy", str(project.trust_path), "--json"]
    capsys.readouterr()
    assert main(arguments) == 1
    checks = {item["name"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
    assert [name for name, item in checks.items() if item["ok"] is False] == ["forbidden-here"]
    assert "comes of before-lm/1, of step 2 of a run that it goes on from" in checks["forbidden-here"]["detail"]


def test_a_version_is_promoted_only_if_nothing_that_it_comes_of_was_taken_back(project: Project) -> None:
    """The alias asks the gate with all that its policy and the ledger here say, not the bundle alone."""
    with project.open_ledger(writable=True) as ledger:
        append_status(ledger, project.signer("log"))
    words.set_alias(project, "child-lm/1", "champion", project.trust_path)
    register(project, "before-lm", "tiny", step=2)
    words.say(project, "before-lm/1", "revoked", "bad data")
    with pytest.raises(words.NotPromoted, match=r"revoked-here: .*before-lm/1, of step 2") as refused:
        words.set_alias(project, "child-lm/1", "next", project.trust_path)
    assert refused.value.exit_code == 1
    with project.trust_path.open("a", encoding="utf-8") as file:
        file.write('[status]\nfile = "no-such-status.json"\n')
    with pytest.raises(words.NotPromoted, match=r"newest-status: .*no-such-status\.json"):
        words.set_alias(project, "child-lm/1", "next", project.trust_path)
