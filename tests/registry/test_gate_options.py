"""What a gate may have besides a folder and a policy: a memory, a newer status, single tensors; and its reports."""

from __future__ import annotations

import base64
import json
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bitwitness.ledger import jcs
from bitwitness.ledger.cli import main
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files import reports
from bitwitness.registry import load_file, load_verified, words
from bitwitness.registry.bundles import bundle
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.gating.gate import Request, decide
from bitwitness.registry.load import NotVerified
from bitwitness.registry.policy import load_policy
from bitwitness.registry.refresh import refresh
from bitwitness.registry.register import register

from . import project_fixture
from .conftest import Registered
from .forge import Forge
from .project_fixture import add_audit, add_intent

Json = dict[str, Any]


def _decide(registered: Registered, version: int = 1, **options: Any) -> dict[str, Check]:
    folder = registered.project.models_dir / "demo-lm" / str(version)
    verdict = decide(Request(folder, registered.policy, **options))
    assert len({(check.name, check.category) for check in verdict.checks}) == len(verdict.checks)
    return {check.name: check for check in verdict.checks}


# The memory ------------------------------------------------------------------------------------------------


def test_a_gate_with_a_memory_refuses_what_is_older(registered: Registered, tmp_path: Path) -> None:
    state = tmp_path / "seen.json"
    old = tmp_path / "old.json"
    shutil.copy(registered.folder / bundle.FILE_NAME, old)
    register(registered.project, "demo-lm", "small")
    assert "the first that this gate sees" in _decide(registered, state=state)["memory"].detail
    refresh(registered.project, "demo-lm/1")
    assert exit_code(_decide(registered, state=state).values()) == 0
    # The same version under an older checkpoint: what came since is left out.
    shutil.copy(old, registered.folder / bundle.FILE_NAME)
    checks = _decide(registered, state=state)
    assert checks["memory"].ok is False and "what came since is left out" in checks["memory"].detail
    assert exit_code(checks.values()) == 1
    # An older version, once a newer one was verified.
    assert exit_code(_decide(registered, 2, state=state).values()) == 0
    refresh(registered.project, "demo-lm/1")
    before = state.read_bytes()
    checks = _decide(registered, state=state)
    assert "version 1 of demo-lm is older than 2" in checks["memory"].detail and checks["memory"].ok is False
    assert state.read_bytes() == before
    # Another model of the same log is not held back by that.
    register(registered.project, "other", "small")
    other = Request(registered.project.models_dir / "other" / "1", registered.policy, state=state)
    assert exit_code(decide(other).checks) == 0


def test_two_logs_under_one_name(registered: Registered, tmp_path: Path) -> None:
    """A log that shows another tree of the same size is found by who has seen the first."""
    state = tmp_path / "seen.json"
    assert exit_code(_decide(registered, state=state).values()) == 0
    forge = Forge(registered.project, registered.folder)
    unseen = next(i for i in range(len(forge.log)) if i not in forge.shown)
    forge.log[unseen] = b"{}"
    forge.write()
    assert "another root" in _decide(registered, state=state)["memory"].detail


def test_what_one_bundle_told_of_a_revocation_holds_for_the_next(registered: Registered, tmp_path: Path) -> None:
    state = tmp_path / "seen.json"
    register(registered.project, "other", "small")
    words.say(registered.project, "demo-lm/1", "revoked")  # its bundle on disk does not say so
    assert exit_code(_decide(registered).values()) == 0
    refresh(registered.project, "other/1")
    other = Request(registered.project.models_dir / "other" / "1", registered.policy, state=state)
    assert exit_code(decide(other).checks) == 0
    checks = _decide(registered, state=state)
    assert checks["revocations"].ok is False and "which this gate remembers" in checks["revocations"].detail


def test_what_a_refused_bundle_told_of_its_revocation_holds(registered: Registered, tmp_path: Path) -> None:
    """The sender cannot take a revocation back by putting the bundle of before in its place."""
    state, old = tmp_path / "seen.json", tmp_path / "old.json"
    shutil.copy(registered.folder / bundle.FILE_NAME, old)
    assert exit_code(_decide(registered, state=state).values()) == 0
    words.say(registered.project, "demo-lm/1", "revoked")
    refresh(registered.project, "demo-lm/1")
    assert exit_code(_decide(registered, state=state).values()) == 1
    shutil.copy(old, registered.folder / bundle.FILE_NAME)
    checks = _decide(registered, state=state)
    assert checks["revocations"].ok is False and "which this gate remembers" in checks["revocations"].detail


def test_what_a_status_took_back_holds_without_it(
    registered: Registered, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the model passed with the status or not; an earlier status in its place changes nothing."""
    early = _status(registered, tmp_path / "early.json", capsys)
    register(registered.project, "other", "small")
    words.say(registered.project, "demo-lm/1", "revoked")
    news = _status(registered, tmp_path / "status.json", capsys)
    other = registered.project.models_dir / "other" / "1"
    assert exit_code(decide(Request(other, registered.policy, state=tmp_path / "passed", status=news)).checks) == 1
    refresh(registered.project, "other/1")
    news = _status(registered, tmp_path / "status.json", capsys)
    assert exit_code(decide(Request(other, registered.policy, state=tmp_path / "passed", status=news)).checks) == 0
    assert exit_code(_decide(registered, state=tmp_path / "refused", status=news).values()) == 1
    for state in (tmp_path / "passed", tmp_path / "refused"):
        assert _decide(registered, state=state)["revocations"].ok is False
        assert _decide(registered, state=state, status=early)["revocations"].ok is False


def test_a_model_that_is_not_verified_is_not_remembered(registered: Registered, tmp_path: Path) -> None:
    state = tmp_path / "seen.json"
    (registered.folder / "config.json").write_text("{}")
    assert exit_code(_decide(registered, state=state).values()) == 1
    assert not state.exists()


def test_a_version_of_which_parts_were_read_is_not_remembered(registered: Registered, tmp_path: Path) -> None:
    """Its other bytes may be anything. What the log took back is kept, and an older world is refused all the same."""
    state, old = tmp_path / "seen.json", tmp_path / "old.json"
    shutil.copy(registered.folder / bundle.FILE_NAME, old)
    register(registered.project, "demo-lm", "small")
    tensors = ["model.norm.weight"]
    assert exit_code(_decide(registered, 2, state=state, tensors=tensors).values()) == 0
    assert not state.exists()
    assert exit_code(_decide(registered, state=state).values()) == 0
    before = state.read_bytes()
    assert exit_code(_decide(registered, 2, state=state, tensors=tensors).values()) == 0
    assert state.read_bytes() == before
    assert exit_code(_decide(registered, state=state).values()) == 0
    assert exit_code(_decide(registered, 2, state=state).values()) == 0
    assert exit_code(_decide(registered, state=state, tensors=tensors).values()) == 1
    words.say(registered.project, "demo-lm/1", "revoked")
    refresh(registered.project, "demo-lm/2")
    fresh = tmp_path / "fresh.json"
    assert exit_code(_decide(registered, 2, state=fresh, tensors=tensors).values()) == 0
    shutil.copy(old, registered.folder / bundle.FILE_NAME)
    checks = _decide(registered, state=fresh)
    assert checks["revocations"].ok is False and "which this gate remembers" in checks["revocations"].detail


def test_a_memory_may_be_a_link(registered: Registered, tmp_path: Path) -> None:
    """What it leads to is read, locked and written, and the link stays; also where nothing is there yet."""
    real, link, again = (tmp_path / name for name in ("kept/seen.json", "link", "again"))
    real.parent.mkdir()
    link.symlink_to("kept/seen.json")
    again.symlink_to("link")
    assert exit_code(_decide(registered, state=again).values()) == 0
    assert link.is_symlink() and again.is_symlink()
    first = real.read_bytes()
    register(registered.project, "demo-lm", "small")
    assert exit_code(_decide(registered, 2, state=link).values()) == 0
    assert real.read_bytes() != first and link.is_symlink()
    assert _decide(registered, state=real)["memory"].ok is False
    assert sorted(path.name for path in real.parent.iterdir()) == ["seen.json", "seen.json.lock"]
    link.unlink()
    link.symlink_to("again")
    with pytest.raises(BitwitnessError, match="symbolic links"):
        _decide(registered, state=again)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"format":"bitwitness/gate-memory/2","logs":{}}', b'{"format":"x"}', b"[" * 100]
)
def test_a_memory_that_cannot_be_read_is_exit_2(
    registered: Registered, tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seen.json").write_bytes(data)
    arguments = ["verify", str(registered.folder), "--policy", str(registered.policy)]
    assert main([*arguments, "--state", str(tmp_path / "seen.json")]) == 2
    assert "gate memory" in capsys.readouterr().err
    assert main([*arguments, "--state", str(tmp_path / "nowhere" / "seen.json")]) == 2


# A newer status --------------------------------------------------------------------------------------------


def _status(registered: Registered, path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["--project", str(registered.project.root), "status", "--out", str(path)]) == 0
    capsys.readouterr()
    return path


def test_a_newer_status(registered: Registered, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    news = _status(registered, tmp_path / "status.json", capsys)
    assert exit_code(_decide(registered, status=news).values()) == 0
    # An alias takes nothing away from bundles that were handed out.
    words.set_alias(registered.project, "demo-lm/1", "champion")
    assert exit_code(_decide(registered, status=_status(registered, news, capsys)).values()) == 0
    # A mismatch that was found later: the old bundle does not have it.
    with registered.project.open_ledger(writable=True) as ledger:
        intent = add_intent(registered.project, ledger, registered.run)
        add_audit(registered.project, ledger, registered.run, intent, "mismatch")
    checks = _decide(registered, status=_status(registered, news, capsys))
    assert checks["newest-status"].ok is True and exit_code(checks.values()) == 1
    assert checks["up-to-date"].ok is False and "ask for a refreshed bundle" in checks["up-to-date"].detail
    words.say(registered.project, "demo-lm/1", "revoked")
    checks = _decide(registered, status=_status(registered, news, capsys))
    assert checks["revocations"].ok is False and "the release is revoked" in checks["revocations"].detail
    # Of another log.
    other = project_fixture.make(tmp_path / "other")
    register(other.project, "demo-lm", "small")
    assert main(["--project", str(other.project.root), "status", "--out", str(news)]) == 0
    assert "not one of the policy's log" in _decide(registered, status=news)["newest-status"].detail


def _forged(change: Callable[[Json], None]) -> Callable[[Json], Json]:
    def apply(value: Json) -> Json:
        change(value)
        return value

    return apply


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: v["runs"].clear(), "not those that"),
        (lambda v: v["runs"].append(v["runs"][0]), "not those that"),
        (lambda v: v["runs"][0]["records"].update(size=1), "not those that"),
        (lambda v: v["runs"][0]["records"].update(type="history/1"), "its runs"),
        (lambda v: v["entries"].pop(), "one status entry"),
        (lambda v: v["entries"][0].update(proof=[]), "is not in the log"),
        (lambda v: v.update(more=1), "more"),
        (lambda v: v.update(format="bitwitness/status/2"), "format"),
        (lambda v: v.update(checkpoint="x"), "checkpoint"),
    ],
)
def test_a_status_file_that_was_changed(
    registered: Registered,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Json], None],
    reason: str,
) -> None:
    path = _status(registered, tmp_path / "status.json", capsys)
    path.write_bytes(jcs.encode(_forged(change)(jcs.parse(path.read_bytes()))))
    check = _decide(registered, status=path)["newest-status"]
    assert check.ok is False and reason in check.detail


def test_a_policy_that_asks_for_a_status(
    registered: Registered, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registered.policy.write_text(registered.policy.read_text() + '[status]\nfile = "status.json"\nmax_age = 2\n')
    checks = _decide(registered)
    assert checks["newest-status"].ok is None and exit_code(checks.values()) == 2
    assert "no such file" in checks["newest-status"].detail
    _status(registered, registered.project.root / "status.json", capsys)
    assert exit_code(_decide(registered).values()) == 0
    late = _decide(registered, now=datetime.now(UTC) + timedelta(days=3))
    assert late["newest-status-age"].ok is False and exit_code(late.values()) == 1


# Rules -----------------------------------------------------------------------------------------------------


def _rule(registered: Registered, text: str) -> dict[str, Check]:
    held = registered.policy.read_text()
    registered.policy.write_text(f"{held}{text}\n")
    try:
        return _decide(registered)
    finally:
        registered.policy.write_text(held)


def test_rules_on_auditors_precision_results_and_what_is_forbidden(registered: Registered) -> None:
    auditor, trainer = (registered.project.signer(role).keyid for role in ("auditor", "trainer"))
    forge = Forge(registered.project, registered.folder)
    root = forge.predicate(forge.find("dataset"))["dataset"]["root"]
    cases = [
        (f'auditors = ["{auditor}"]', "audit", True),
        (f'auditors = ["{trainer}"]', "audit", False),
        ("min_auditors = 1", "auditors", True),
        ("min_auditors = 2", "auditors", False),
        ('precisions = ["bfp"]', "precisions", True),
        ('precisions = ["fp32"]', "precisions", False),
        (f'max_loss = {{"{root}" = 2.5}}', "max-loss", True),
        (f'max_loss = {{"{root}" = 2.4}}', "max-loss", False),
        (f'max_loss = {{"{"ab" * 32}" = 9}}', "max-loss", False),
        (f'forbidden_keys = ["{"ab" * 32}"]', "forbidden-keys", True),
        (f'forbidden_keys = ["{trainer}"]', "forbidden-keys", False),
        ('forbidden_versions = ["demo-lm/2"]', "forbidden-versions", True),
        ('forbidden_versions = ["demo-lm/1"]', "forbidden-versions", False),
        ("refuse_deprecated = true", "deprecation", True),
    ]
    for text, name, ok in cases:
        checks = _rule(registered, text)
        assert checks[name].ok is ok and checks[name].category == "POLICY", (text, checks[name])
        assert exit_code(checks.values()) == (0 if ok else 1)


@pytest.mark.parametrize(
    "text",
    [
        'forbidden_versions = ["demo-lm"]',
        'max_loss = {"x" = 1}',
        "max_loss = 2",
        "min_auditors = 0",
        'auditors = ["x"]',
        "refuse_deprecated = 1",
        "[status]\nmax_age = 1",
        "[status]\nfiles = 1",
    ],
)
def test_rules_that_are_no_rules(registered: Registered, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    registered.policy.write_text(f"{registered.policy.read_text()}{text}\n")
    assert main(["verify", str(registered.folder), "--policy", str(registered.policy)]) == 2
    assert "policy" in capsys.readouterr().err


def test_a_rule_that_can_no_longer_be_checked_says_so(registered: Registered) -> None:
    """Without evidence to apply it to, every rule that is set is reported as not checkable."""
    registered.policy.write_text(registered.policy.read_text() + "min_version = 1\nmax_checkpoint_age = 9\n")
    (registered.folder / bundle.FILE_NAME).unlink()
    checks = _decide(registered)
    for name in ("audit", "require-status", "min-version", "checkpoint-age"):
        assert checks[name].ok is None and checks[name].category == "POLICY"


def _certificate() -> str:
    """A root of nobody, as PEM."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def test_every_rule_has_the_name_of_its_check(registered: Registered) -> None:
    """What is reported when nothing can be checked are the checks that are made otherwise."""
    from bitwitness.registry.gating import rules

    registered.policy.write_text(
        registered.policy.read_text()
        + "min_audited_steps = 1\nmin_audited_fraction = 0.5\nmin_auditors = 1\nmax_status_age = 9\nmin_version = 1\n"
        'max_checkpoint_age = 9\ntrainers = []\npublishers = []\ndatasets = []\ncode = []\nmodels = ["x"]\n'
        'licenses = []\nprecisions = []\nrefuse_deprecated = true\nforbidden_versions = ["x/1"]\n'
        f'forbidden_keys = ["{"ab" * 32}"]\nmax_loss = {{ "{"ab" * 32}" = 9 }}\nrequire_eval_audit = true\n'
        f'[timestamps]\nauthorities = """\n{_certificate()}"""\n'
    )
    checks = decide(Request(registered.folder, registered.policy)).checks
    made = [check.name for check in checks if check.category == "POLICY"]
    assert sorted(made) == sorted(rules.check_names(load_policy(registered.policy)))


# Tensors and shards ----------------------------------------------------------------------------------------


def _sharded(registered: Registered) -> Path:
    made = register(registered.project, "demo-lm", "small", shard_bytes=100)
    assert len(list(made.path.glob("model-*.safetensors"))) > 2
    return made.path


@pytest.mark.parametrize("sharded", [False, True])
def test_single_tensors(registered: Registered, sharded: bool) -> None:
    """Only what is named is read: damage elsewhere goes unseen, and the verdict says that nothing else was read."""
    folder = _sharded(registered) if sharded else registered.folder
    version = int(folder.name)
    wanted = ["model.norm.weight", "model.embed_tokens.weight"]
    checks = _decide(registered, version, tensors=wanted)
    assert exit_code(checks.values()) == 0 and "files" not in checks and "weights" not in checks
    assert "2 of " in checks["tensors"].detail and "no other byte was read" in checks["tensors"].detail
    assert "no tensor 'nothing'" in _decide(registered, version, tensors=["nothing"])["tensors"].detail
    path = sorted(folder.glob("model*.safetensors"))[-1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the last byte of model.norm.weight, which stands last
    path.write_bytes(data)
    assert "model.norm.weight is not as signed" in _decide(registered, version, tensors=wanted)["tensors"].detail
    assert _decide(registered, version, tensors=wanted[1:])["tensors"].ok is True


def _index(folder: Path, change: Callable[[Json], None]) -> None:
    """The publisher signs an index that lies: the release is forged to hold its digest."""
    path = folder / "model.safetensors.index.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_shards(registered: Registered) -> None:
    folder = _sharded(registered)
    assert exit_code(_decide(registered, 2).values()) == 0
    whole, parts = load_verified(registered.folder, registered.policy), load_verified(folder, registered.policy)
    assert whole.keys() == parts.keys() and all(whole[name].equal(parts[name]) for name in whole)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for file in sorted(set(index["weight_map"].values())):
        held = load_file(folder / file, policy=registered.policy)
        assert set(held) == {name for name, place in index["weight_map"].items() if place == file}
    (folder / "model-00002-of-00099.safetensors").touch()
    assert "is not listed" in _decide(registered, 2)["files"].detail


def _move(value: Json) -> None:
    first, *_, last = sorted(value["weight_map"])
    value["weight_map"][first] = value["weight_map"][last]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_move, "is not where it says"),
        (lambda v: v["weight_map"].update(more="model-00001-of-00002.safetensors"), "'more' is not where it says"),
        (lambda v: v["weight_map"].update(more="../../x"), "'more' is not where it says"),
        (lambda v: v["metadata"].update(total_size=1), "total_size"),
        (lambda v: v.update(code="x.py"), "exactly the keys"),
    ],
)
def test_an_index_that_lies(registered: Registered, change: Callable[[Json], None], reason: str) -> None:
    folder = _sharded(registered)
    _index(folder, change)
    data = (folder / "model.safetensors.index.json").read_bytes()
    _resign(registered, folder, "model.safetensors.index.json", data)
    checks = _decide(registered, 2)
    assert checks["files"].ok is True
    assert checks["weights"].ok is False and reason in checks["weights"].detail


def _resign(registered: Registered, folder: Path, name: str, data: bytes | None) -> None:
    """A publisher who signs other files for the same weights."""
    import hashlib

    forge = Forge(registered.project, folder)
    release = forge.find("release", 1)
    files = [item for item in forge.predicate(release)["files"] if item["name"] != name]
    if data is not None:
        files.append({"name": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)})
    forge.change(release, files=sorted(files, key=lambda item: item["name"]))
    forge.status = None
    forge.shown = {i for i in forge.shown if forge.log[i] != forge.log[forge.find("status", 1)]}
    forge.write()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.safetensors.index.json", "index.json is missing"),
        ("model-00001-of-0000N.safetensors", "the shards are not"),
    ],
)
def test_shards_that_are_not_all_listed(registered: Registered, name: str, reason: str) -> None:
    folder = _sharded(registered)
    count = len(list(folder.glob("model-*.safetensors")))
    name = name.replace("0000N", f"{count:05d}")
    (folder / name).unlink()
    _resign(registered, folder, name, None)
    assert reason in _decide(registered, 2)["files"].detail


def test_load_file(registered: Registered) -> None:
    path = registered.folder / "model.safetensors"
    from safetensors.torch import load_file as plain

    ours, theirs = load_file(path, policy=registered.policy), plain(path)
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(NotVerified):
        load_file(path, policy=registered.policy)


# Reports ---------------------------------------------------------------------------------------------------


def _report(registered: Registered, tmp_path: Path, code: int, *options: str) -> dict[str, Path]:
    files = {name: tmp_path / f"report.{name}" for name in ("junit", "sarif", "vsa")}
    given = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    assert main(["verify", str(registered.folder), "--policy", str(registered.policy), *given, *options]) == code
    return files


@pytest.mark.parametrize("wrong", [False, True])
def test_reports(registered: Registered, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: bool) -> None:
    if wrong:
        (registered.folder / "config.json").write_text("{}")
        registered.policy.write_text(registered.policy.read_text() + '[status]\nfile = "no<&>where"\n')
    files = _report(registered, tmp_path, 1 if wrong else 0, "--json")
    answer = json.loads(capsys.readouterr().out)
    checks = answer["checks"]
    assert answer["kind"] == "model"

    suite = ElementTree.fromstring(files["junit"].read_text())
    assert [(item.get("name"), item.get("value")) for item in suite.findall("./testsuite/properties/property")] == [
        ("kind", "model")
    ]
    cases = suite.findall("./testsuite/testcase")
    assert [case.get("name") for case in cases] == [check["name"] for check in checks]
    assert {case.get("classname") for case in cases} == {f"bitwitness.{c}" for c in ("CRYPTO", "POLICY", "ASSURANCE")}
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert (
        failed == [check["name"] for check in checks if check["ok"] is False] == (["files", "config"] if wrong else [])
    )
    errors = [case.get("name") for case in cases if case.find("error") is not None]
    assert errors == (["newest-status", "up-to-date"] if wrong else [])
    assert (suite.get("failures"), suite.get("errors")) == (str(len(failed)), str(len(errors)))

    sarif = json.loads(files["sarif"].read_text())
    (run,) = sarif["runs"]
    assert run["properties"] == {"kind": "model"}
    assert sarif["version"] == "2.1.0" and sarif["$schema"].endswith("sarif-schema-2.1.0.json")
    rules = run["tool"]["driver"]["rules"]
    for result, check in zip(run["results"], checks, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == f"{check['category']}/{check['name']}"
        assert result["kind"] in {"pass", "fail", "open", "informational"}
        # SARIF 3.27.10: the level is none unless the kind is fail.
        assert (result["level"] == "none") == (result["kind"] != "fail")
        assert result["message"]["text"] and result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert (run["invocations"][0]["exitCode"] == 0) is not wrong

    vsa = json.loads(files["vsa"].read_text())
    assert vsa["_type"] == "https://in-toto.io/Statement/v1"
    assert vsa["predicateType"] == "https://slsa.dev/verification_summary/v1"
    said = vsa["predicate"]
    assert {"verifier", "timeVerified", "resourceUri", "policy", "verificationResult", "verifiedLevels"} <= said.keys()
    assert said["verificationResult"] == ("FAILED" if wrong else "PASSED")
    assert said["verifiedLevels"] == (
        ["FAILED"] if wrong else ["SLSA_BUILD_LEVEL_UNEVALUATED", "BITWITNESS_VERIFIED", "BITWITNESS_SELF_ASSERTED"]
    )
    import hashlib

    for subject in vsa["subject"]:
        data = (registered.folder / subject["name"]).read_bytes()
        assert subject["digest"] == {"sha256": hashlib.sha256(data).hexdigest()}
    assert {subject["name"] for subject in vsa["subject"]} == {"config.json", "model.safetensors"}
    assert said["policy"]["digest"] == {"sha256": hashlib.sha256(registered.policy.read_bytes()).hexdigest()}


def test_a_summary_speaks_of_whole_files(
    registered: Registered, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", str(registered.folder), "--policy", str(registered.policy), "--tensor", "model.norm.weight"]
    assert main(arguments) == 0
    assert main([*arguments, "--vsa", str(tmp_path / "vsa.json")]) == 2
    assert "--vsa speaks of whole files" in capsys.readouterr().err
    # A folder that proves nothing is still somebody's subject: FAILED, of the bundle that was read.
    (registered.folder / bundle.FILE_NAME).write_bytes(b"{}")
    assert main([*arguments[:-2], "--vsa", str(tmp_path / "vsa.json")]) == 1
    vsa = json.loads((tmp_path / "vsa.json").read_text())
    assert [subject["name"] for subject in vsa["subject"]] == ["provenance.json"]
    assert vsa["predicate"]["verificationResult"] == "FAILED"


def test_options_of_models_are_refused_elsewhere(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verify", str(registered.project.ledger_path), "--policy", str(registered.policy)]
    assert main([*arguments, "--state", "x"]) == 2
    assert "--state is for models" in capsys.readouterr().err


def test_a_summary_is_signed_by_who_ran_the_gate(
    registered: Registered, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The payload is the statement, the signature DSSE's by an auditor's key; any other role's is refused first."""
    path, keys = tmp_path / "vsa.json", registered.project.keys_dir
    arguments = ["verify", str(registered.folder), "--policy", str(registered.policy), "--vsa", str(path)]
    assert main([*arguments, "--sign-with", str(keys / "log.pem")]) == 2
    assert "not a auditor key" in capsys.readouterr().err and not path.exists()
    assert main([*arguments[:-2], "--sign-with", str(keys / "auditor.pem")]) == 2
    assert "--sign-with signs the summary of --vsa" in capsys.readouterr().err
    assert main([*arguments, "--sign-with", str(keys / "auditor.pem")]) == 0
    signed, auditor = json.loads(path.read_text()), registered.project.signer("auditor")
    payload, said = base64.b64decode(signed["payload"]), signed["signatures"][0]
    assert json.loads(payload)["predicate"]["verificationResult"] == "PASSED"
    assert signed["payloadType"] == "application/vnd.in-toto+json" and said["keyid"] == auditor.keyid
    pae = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)
    auditor.public.verify(base64.b64decode(said["sig"]), pae)
    with registered.project.open_ledger(writable=True) as ledger, pytest.raises(BitwitnessError):
        ledger.append([path.read_bytes().strip()])  # no verdict passes for an entry


def test_a_report_of_a_path_that_is_no_text() -> None:
    check = {"name": "a", "ok": None, "detail": "\ud800\x00\u2028"}
    for text in (reports.junit([check], "model", "\udcff"), reports.sarif([check], "model", "\udcff", 2)):
        assert text.encode("ascii") and text.replace("\n", "").isprintable()
    ElementTree.fromstring(reports.junit([check], "model", "\udcff"))
