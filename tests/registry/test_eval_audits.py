"""The rule `require_eval_audit`: what was measured counts once an auditor of the policy computed it again."""

from __future__ import annotations

from typing import Any

import pytest

from bitwitness.ledger import merkle
from bitwitness.ledger.cli import main
from bitwitness.ledger.commitments import tree
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.registry.checks import Check
from bitwitness.registry.policy import PolicyError, Rules, load_policy, parse_policy
from bitwitness.registry.refresh import refresh
from bitwitness.registry.verify import examine
from bitwitness.trainer.auditing.audit import audit

from .conftest import Registered
from .project_fixture import TIME, add_audit, add_intent
from .test_rechecks import recheck

OTHER = Signer.from_seed("auditor", b"\5" * 32)


def eval_check(project: Project, name: str, trusted: tuple[str, ...] | None = None, **rules: Any) -> Check:
    """The check `eval-audit` of a version, for a policy that bounds the loss on what the run was measured on."""
    policy = load_policy(project.trust_path)
    folder = project.models_dir / name / "1"
    traced = examine(folder, policy).traced
    assert traced is not None
    (root,) = {entry.predicate["dataset"]["dataset"]["root"] for entry in traced.lineage.own.evals}
    asked = {"max_loss": {root: 99.0}, "require_eval_audit": True, **rules}
    named = policy.rules.self_chosen_auditors if trusted is None else list(trusted)
    full = {**policy.rules.model_dump(), "self_chosen_auditors": named, **asked}
    checks = examine(folder, policy.model_copy(update={"rules": Rules(**full)})).checks
    (found,) = [check for check in checks if check.name == "eval-audit"]
    assert found.category == "POLICY" and found.required
    return found


def evaluated(registered: Registered, outcome: str = "match", step: int = 4, **changes: Any) -> int:
    """The project's auditor computes the eval of a step again; returns the entry that says so."""
    unit: dict[str, Any] = {"first": step, "last": step, "outcome": outcome, "cause": "chosen", "part": "eval"}
    if outcome == "mismatch":
        unit["found"] = {"step": step, "field": "eval.mean", "expected": "aa" * 32, "computed": "bb" * 32}
    with registered.project.open_ledger(writable=True) as ledger:
        intent = add_intent(registered.project, ledger, registered.run)
        said = {"units": [unit], "steps": 0, "result": outcome, **changes}
        index = add_audit(registered.project, ledger, registered.run, intent, **said)
    refresh(registered.project, "demo-lm")
    return index


def test_an_eval_that_nobody_computed_again(registered: Registered) -> None:
    check = eval_check(registered.project, "demo-lm")  # whose steps were audited, which says nothing of their evals
    assert check.ok is False and "no audit of it is in the bundle (`ledger audit --eval`)" in check.detail
    evaluated(registered, step=2)  # another eval
    assert eval_check(registered.project, "demo-lm").ok is False


def test_an_eval_that_was_confirmed(registered: Registered) -> None:
    index = evaluated(registered)
    check = eval_check(registered.project, "demo-lm")
    assert check.ok is True and f": match (entry {index} (audit))" in check.detail
    own = registered.project.signer("auditor").keyid
    assert eval_check(registered.project, "demo-lm", auditors=[own]).ok is True


@pytest.mark.parametrize("outcome", ["unavailable", "redacted", "inconclusive"])
def test_an_eval_that_could_not_be_computed(registered: Registered, outcome: str) -> None:
    evaluated(registered, outcome)
    check = eval_check(registered.project, "demo-lm")
    assert check.ok is None and outcome in check.detail
    evaluated(registered)
    assert eval_check(registered.project, "demo-lm").ok is True


def test_another_loss_outweighs_every_match(registered: Registered) -> None:
    evaluated(registered)
    evaluated(registered, "mismatch")
    evaluated(registered)
    check = eval_check(registered.project, "demo-lm")
    assert check.ok is False and "got another loss than" in check.detail


def test_whose_word_does_not_count(registered: Registered) -> None:
    evaluated(registered)
    project = registered.project
    check = eval_check(project, "demo-lm", (OTHER.keyid,))
    assert check.ok is False and "only for auditors in self_chosen_auditors" in check.detail
    check = eval_check(project, "demo-lm", auditors=[OTHER.keyid])
    assert check.ok is False and "not among the policy's auditors" in check.detail
    check = eval_check(project, "demo-lm", ())
    assert check.ok is None and "names nobody in self_chosen_auditors" in check.detail


def test_audits_that_cannot_be_about_this_eval(registered: Registered) -> None:
    evaluated(registered, transcript=tree("transcript/1", []).to_json())
    assert "its transcript is empty" in eval_check(registered.project, "demo-lm").detail
    with registered.project.open_ledger() as ledger:
        (measured,) = ledger.connection.execute("SELECT entry FROM evals WHERE step = 4").fetchone()
    with registered.project.open_ledger(writable=True) as ledger:
        auditor = registered.project.signer("auditor")
        early = {
            "run": registered.run, "size": measured, "root": ledger.root(measured).hex(),
            "first": 0, "last": 4, "samples": 0,
            "beacon": {"kind": "none"}, "time": TIME, "signer": auditor.keyid,
        }  # fmt: skip
        data = seal(statement("audit-intent", None, early), auditor)
        ledger.append([data])
        unit = {"first": 4, "last": 4, "outcome": "match", "cause": "chosen", "part": "eval"}
        said = {"units": [unit], "steps": 0, "result": "match"}
        add_audit(registered.project, ledger, registered.run, merkle.leaf_hash(data).hex(), **said)
    refresh(registered.project, "demo-lm")
    check = eval_check(registered.project, "demo-lm")
    assert check.ok is False and "match" not in check.detail  # it was announced before the eval stood there


def test_an_audit_that_was_refuted(registered: Registered) -> None:
    index = evaluated(registered)
    project = registered.project
    with project.open_ledger(writable=True) as ledger:
        ledger.append([enrolment(project.signer("root"), OTHER.public, "auditor", time=TIME)])
        ledger.append([recheck(registered, ledger.leaf_hash(index).hex(), "refuted", OTHER)])
    refresh(project, "demo-lm")
    own = project.signer("auditor").keyid
    assert eval_check(project, "demo-lm").ok is True  # the policy does not know who refuted it
    check = eval_check(project, "demo-lm", (own, OTHER.keyid))
    assert check.ok is False and "refutes it" in check.detail


def test_what_an_auditor_of_evals_signs(tiny: Project) -> None:
    """The real audit, of a run that was trained."""
    assert eval_check(tiny, "tiny-lm").ok is False
    audit(tiny, "tiny", evals="all", threads=1)
    refresh(tiny, "tiny-lm")
    assert eval_check(tiny, "tiny-lm").ok is True


def test_the_rule_names_what_it_needs(registered: Registered, capsys: pytest.CaptureFixture[str]) -> None:
    path = registered.policy
    path.write_text(path.read_text() + "require_eval_audit = true\n")
    with pytest.raises(PolicyError, match="rules: require_eval_audit goes with max_loss, which names the datasets"):
        parse_policy(path.read_bytes(), path)
    assert main(["verify", str(registered.folder), "--policy", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
