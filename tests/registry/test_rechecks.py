"""What a recheck of an audit does at the gate: whose word counts, and that none can be left out."""

from __future__ import annotations

from typing import Any

import pytest

from bitwitness.ledger import merkle
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.errors import EntryError
from bitwitness.ledger.keys import Signer
from bitwitness.registry.catalog import show_model
from bitwitness.registry.catalog_tree import tree_lines
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.policy import Rules, load_policy
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine

from .conftest import Registered
from .project_fixture import ARITHMETIC, CODE, TIME, add_audit, add_intent
from .test_status import _strip

CHECKER = Signer.from_seed("auditor", bytes([71]) * 32)


def say(registered: Registered, result: str, outcome: str = "match") -> None:
    """Another audit by the project's auditor, which CHECKER then computes again, and version 2."""
    project = registered.project
    with project.open_ledger(writable=True) as ledger:
        if ledger.connection.execute("SELECT 1 FROM keys WHERE keyid = ?", (CHECKER.keyid,)).fetchone() is None:
            ledger.append([enrolment(project.signer("root"), CHECKER.public, "auditor", name="checker")])
        intent = add_intent(project, ledger, registered.run)
        audit = add_audit(project, ledger, registered.run, intent, outcome)
        ledger.append([recheck(registered, ledger.leaf_hash(audit).hex(), result, CHECKER)])
    register(project, "demo-lm", "small")


def recheck(registered: Registered, audit: str, result: str, signer: Signer) -> bytes:
    predicate: dict[str, Any] = {
        "run": registered.run,
        "audit": audit,
        "result": result,
        "steps": 4,
        "transcript": {"type": "transcript/1", "size": 1, "root": "ab" * 32},
        "code": CODE.to_json(),
        "arithmetic": ARITHMETIC,
        "observed": {"time": TIME},
        "signer": signer.keyid,
    }
    if result != "confirmed":
        predicate["reason"] = "its transcript is not what the replay gives"
    return seal(statement("recheck", None, predicate), signer)


def gate(registered: Registered, *trusted: str, **rules: Any) -> dict[str, Check]:
    policy = load_policy(registered.policy)
    full = {"self_chosen_auditors": list(trusted), **rules}
    changed = policy.model_copy(update={"rules": Rules(**full)})
    folder = max((registered.project.models_dir / "demo-lm").iterdir(), key=lambda path: int(path.name))
    return {check.name: check for check in examine(folder, changed).checks}


def test_a_refuted_audit_counts_for_nothing_where_the_rechecker_is_trusted(registered: Registered) -> None:
    own = registered.project.signer("auditor").keyid
    say(registered, "refuted")
    # The first audit, which nobody rechecked, still counts; of the second the policy decides.
    said = gate(registered, own, require_audit=True)["audit"].detail
    assert said.count("replayed 2 of 4 steps, no sample drawn: match") == 2
    for trusted, rules in (((own, CHECKER.keyid), {}), ((own,), {"auditors": [own, CHECKER.keyid]})):
        checks = gate(registered, *trusted, require_audit=True, **rules)
        assert checks["audit"].ok is True and checks["audits"].ok is True
        assert checks["audit"].detail.count("replayed 2 of 4 steps, no sample drawn: match") == 1
        assert "a recheck by an auditor of the policy refutes it" in checks["audit"].detail
    shown = "\n".join(tree_lines(show_model(registered.project, "demo-lm/2")))
    assert f"; refuted by {CHECKER.keyid[:16]}…" in shown


@pytest.mark.parametrize("result", ["confirmed", "inconclusive"])
def test_other_words_change_nothing(registered: Registered, result: str) -> None:
    own = registered.project.signer("auditor").keyid
    say(registered, result)
    assert gate(registered, own, CHECKER.keyid, require_audit=True)["audit"].detail.count(": match") == 2


def test_an_accusation_stands_until_a_trusted_auditor_refutes_it(registered: Registered) -> None:
    own = registered.project.signer("auditor").keyid
    say(registered, "refuted", "mismatch")
    found = "does not replay"
    assert found in gate(registered)["audit"].detail  # whoever said it
    assert gate(registered, CHECKER.keyid)["audit"].ok is True
    # Who trusts both has one word against the other: then the model does not pass.
    assert found in gate(registered, own, CHECKER.keyid)["audit"].detail
    say(registered, "confirmed", "mismatch")  # another accusation
    assert found in gate(registered, CHECKER.keyid)["audit"].detail


def test_a_recheck_cannot_be_left_out(registered: Registered) -> None:
    say(registered, "refuted")
    assert exit_code(_strip(registered, lambda kind, item: False).values()) == 0
    checks = _strip(registered, lambda kind, item: kind == "recheck")
    assert checks["status"].ok is False and "left out or added" in checks["status"].detail


def test_nobody_rechecks_himself(registered: Registered) -> None:
    project = registered.project
    own = project.signer("auditor")
    with project.open_ledger(writable=True) as ledger:
        (audit,) = ledger.connection.execute("SELECT min(entry) FROM audits").fetchone()
        leaf = ledger.leaf_hash(audit).hex()
        with pytest.raises(EntryError, match="own audit"):
            ledger.append([recheck(registered, leaf, "confirmed", own)])
        with pytest.raises(EntryError, match="audit"):
            ledger.append([recheck(registered, merkle.leaf_hash(b"none").hex(), "confirmed", own)])
