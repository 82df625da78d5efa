"""trust.toml: read strictly, and every rule passes, fails or says that it cannot be checked."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.gating.gate import Request, decide
from bitwitness.registry.policy import Policy, PolicyError, Rules, load_policy, parse_policy
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine

from . import project_fixture
from .conftest import Registered

ROOT_KEY = "ab" * 32
BASE = f'[log]\norigin = "log.invalid/1"\nkey = "log.invalid/1+00000000+AA=="\n[root]\nkey = "{ROOT_KEY}"\n'
DOC = Path(__file__).parents[2] / "docs" / "formats" / "trust-policy.md"


def test_only_log_and_root_are_needed() -> None:
    policy = parse_policy(BASE.encode(), Path("trust.toml"))
    assert policy.rules == Rules()
    assert policy.root.key == ROOT_KEY


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the key log is missing"),
        ("[log", "is not TOML"),
        ("\ufeff", "is not TOML"),
        (BASE.replace("[root]", "[rots]"), "unknown key rots|the key root is missing"),
        (BASE + "[rules]\nrequire_audits = true\n", "unknown key rules.require_audits"),
        (BASE + "[rule]\n", "unknown key rule"),
        (BASE.replace("origin", "origins"), "log.origin is missing|unknown key log.origins"),
        (BASE.replace(ROOT_KEY, ROOT_KEY.upper()), "root.key: must be 64 lower-case hex digits"),
        (BASE.replace(ROOT_KEY, ROOT_KEY[:-1]), "root.key: must be 64 lower-case hex digits"),
        (BASE + '[rules]\nrequire_audit = "yes"\n', "rules.require_audit"),
        (BASE + "[rules]\nmax_checkpoint_age = 0\n", "rules.max_checkpoint_age"),
        (BASE + "[rules]\nmax_checkpoint_age = 1.5\n", "rules.max_checkpoint_age"),
        (BASE + '[rules]\nself_chosen_auditors = ["x"]\n', "rules.self_chosen_auditors.0: must be 64"),
        (BASE + "[rules]\nlicenses = [1]\n", "rules.licenses.0"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text.encode(), Path("trust.toml"))
    assert re.search(reason, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("data", [b"\xff", b"a = 1\n" * 300_000])
def test_bytes_that_are_no_policy(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "trust.toml").write_bytes(data)
    with pytest.raises(PolicyError):
        load_policy(tmp_path / "trust.toml")


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="No such file"):
        load_policy(tmp_path / "trust.toml")
    with pytest.raises(PolicyError, match="directory"):
        load_policy(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(PolicyError, match="not a regular file"):
            load_policy(path)
    with pytest.raises(PolicyError):
        load_policy(Path("/proc/self/mem"))


def _with(policy: Policy, **changes: Any) -> Policy:
    return policy.model_copy(update={"rules": Rules(**changes)})


def _checks(registered: Registered, policy: Policy, now: datetime | None = None) -> dict[str, Check]:
    return {check.name: check for check in examine(registered.folder, policy, now=now).checks}


def test_keys_of_the_policy_that_are_no_keys(registered: Registered) -> None:
    policy = load_policy(registered.policy)
    for broken in (
        policy.model_copy(update={"log": policy.log.model_copy(update={"key": "log+00000000+AA=="})}),
        policy.model_copy(update={"log": policy.log.model_copy(update={"origin": "other.invalid/log"})}),
        policy.model_copy(update={"root": policy.root.model_copy(update={"key": "00" * 32})}),
    ):
        checks = _checks(registered, broken)
        assert exit_code(checks.values()) == 2, checks


def test_another_root_key_is_found(registered: Registered, tmp_path: Path) -> None:
    other = load_policy(project_fixture.make(tmp_path / "other").policy)
    policy = load_policy(registered.policy).model_copy(update={"root": other.root})
    assert _checks(registered, policy)["signatures"].ok is False


def test_an_audit_by_an_auditor_who_is_not_named(registered: Registered) -> None:
    policy = load_policy(registered.policy)
    check = _checks(registered, _with(policy, require_audit=True))["audit"]
    assert check.ok is False
    assert "chose its own sample" in check.detail
    assert _checks(registered, _with(policy))["audit"].ok is True
    assert _checks(registered, policy)["audit"].ok is True


def test_an_audit_of_other_steps_does_not_count(tmp_path: Path) -> None:
    made = project_fixture.make(tmp_path / "project")
    folder = register(made.project, "early", "small", step=2).path
    check = {c.name: c for c in examine(folder, load_policy(made.policy)).checks}["audit"]
    assert check.ok is False
    assert "released step 2 is not among what it replayed" in check.detail


def test_no_audit(tmp_path: Path) -> None:
    made = project_fixture.make(tmp_path / "project", audited=False)
    with made.project.open_ledger(writable=True) as ledger:
        project_fixture.add_intent(made.project, ledger, made.run)
    folder = register(made.project, "demo", "small").path
    checks = {c.name: c for c in examine(folder, load_policy(made.policy)).checks}
    assert checks["audit"].ok is False
    assert "no audit in the bundle" in checks["audit"].detail
    assert "without a result, which count as failed: 1" in checks["audits"].detail


@pytest.mark.parametrize("outcome", ["unavailable", "redacted", "inconclusive", "mismatch"])
def test_only_a_match_counts(tmp_path: Path, outcome: str) -> None:
    made = project_fixture.make(tmp_path / "project", audited=False)
    with made.project.open_ledger(writable=True) as ledger:
        intent = project_fixture.add_intent(made.project, ledger, made.run)
        project_fixture.add_audit(made.project, ledger, made.run, intent, outcome)
    folder = register(made.project, "demo", "small").path
    policy = load_policy(made.policy)
    assert {c.name: c for c in examine(folder, policy).checks}["audit"].ok is False
    relaxed = {c.name: c for c in examine(folder, _with(policy)).checks}["audit"]
    assert relaxed.ok is (outcome != "mismatch")


def test_lists_of_what_is_allowed(registered: Registered) -> None:
    policy = load_policy(registered.policy)
    with registered.project.open_ledger() as ledger:
        (trainer,) = ledger.connection.execute("SELECT keyid FROM keys WHERE role = 'trainer'").fetchone()
        (publisher,) = ledger.connection.execute("SELECT keyid FROM keys WHERE role = 'publisher'").fetchone()
        (dataset,) = ledger.connection.execute("SELECT root FROM datasets").fetchone()
    good = {
        "trainers": [trainer],
        "publishers": [publisher],
        "datasets": [dataset],
        "code": [project_fixture.CODE.root],
        "licenses": ["Apache-2.0"],
        "models": ["demo-lm"],
    }
    assert all(check.ok for name, check in _checks(registered, _with(policy, **good)).items() if name in good)
    for name in good:
        for allowed in ([], ["00" * 32]):
            check = _checks(registered, _with(policy, **{name: allowed}))[name]
            assert check.ok is False
            assert "does not allow" in check.detail


def test_the_lowest_version(registered: Registered) -> None:
    policy = load_policy(registered.policy)
    assert _checks(registered, _with(policy, min_version=1))["min-version"].ok is True
    assert _checks(registered, _with(policy, min_version=2))["min-version"].ok is False


def test_the_policy_that_decided_is_named(registered: Registered, tmp_path: Path) -> None:
    """One that may have come with the model is no assurance, unless it was named; the same file elsewhere is."""
    elsewhere = tmp_path / "mine" / "trust.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(registered.policy.read_bytes())
    for path, found, ok in ((registered.policy, True, None), (registered.policy, False, True), (elsewhere, True, True)):
        line = decide(Request(registered.folder, path, policy_found=found)).checks[0]
        assert (line.name, line.ok, line.category, line.required) == ("policy", ok, "ASSURANCE", False)
        assert str(path) in line.detail
        for role in ("log", "root"):
            assert registered.project.signer(role).keyid[:16] in line.detail


def test_a_licence_that_is_not_named(tmp_path: Path) -> None:
    made = project_fixture.make(tmp_path / "project")
    folder = register(made.project, "demo", "small").path
    policy = _with(load_policy(made.policy), licenses=["MIT"])
    assert {c.name: c for c in examine(folder, policy).checks}["licenses"].ok is False


def test_the_age_of_a_checkpoint(registered: Registered) -> None:
    policy = _with(load_policy(registered.policy), max_checkpoint_age=30)
    now = datetime.now(UTC)
    assert _checks(registered, policy, now)["checkpoint-age"].ok is True
    assert _checks(registered, policy, now + timedelta(days=29))["checkpoint-age"].ok is True
    late = _checks(registered, policy, now + timedelta(days=31))["checkpoint-age"]
    assert late.ok is False
    early = _checks(registered, policy, now - timedelta(days=1))
    assert early["checkpoint-age"].ok is None
    assert exit_code(early.values()) == 2


def test_every_key_is_described() -> None:
    text = DOC.read_text(encoding="utf-8")
    for name in Rules.model_fields:
        assert f"`{name}`" in text, name
    for section in ("log", "root", "rules"):
        assert f"[{section}]" in text
