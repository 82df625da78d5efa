"""A status entry after the release: a bundle that leaves something out is refused, or says that it might."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bitwitness.ledger import jcs, merkle
from bitwitness.ledger.commitments import tree
from bitwitness.ledger.entry.key_entries import revocation
from bitwitness.ledger.errors import FoundWrong
from bitwitness.registry.bundles import bundle
from bitwitness.registry.checks import Check, exit_code
from bitwitness.registry.policy import load_policy
from bitwitness.registry.register import register
from bitwitness.registry.status import RunSaid, append_status, run_records
from bitwitness.registry.verify import examine
from bitwitness.trainer.sample import Mark

from .conftest import Registered
from .forge import Forge
from .project_fixture import add_audit, add_dataset, add_intent, add_run

Json = dict[str, Any]


def _kind(item: Json) -> str:
    statement = json.loads(base64.b64decode(item["entry"]["payload"]))
    return str(statement["predicateType"].rsplit("/", 2)[1])


def _strip(registered: Registered, drop: Callable[[str, Json], bool], *, proof: bool = False) -> dict[str, Check]:
    """Take entries out of version 2's bundle, as whoever hands it over can."""
    folder = registered.project.models_dir / "demo-lm" / "2"
    held = jcs.parse((folder / bundle.FILE_NAME).read_bytes())
    held["entries"] = [item for item in held["entries"] if not drop(_kind(item), item)]
    left = {item["index"] for item in held["entries"]}
    held["history"] = [item for item in held["history"] if {item["entry"], item["within"]} <= left]
    if proof:
        del held["status"]
    (folder / bundle.FILE_NAME).write_bytes(jcs.encode(held))
    return {check.name: check for check in examine(folder, load_policy(registered.policy)).checks}


def _second(registered: Registered, outcome: str | None = None) -> None:
    """Another audit, or only its announcement, and version 2."""
    with registered.project.open_ledger(writable=True) as ledger:
        intent = add_intent(registered.project, ledger, registered.run)
        if outcome is not None:
            add_audit(registered.project, ledger, registered.run, intent, outcome)
    register(registered.project, "demo-lm", "small")


def test_what_is_honest_passes(registered: Registered) -> None:
    _second(registered, "match")
    checks = _strip(registered, lambda kind, item: False)
    assert exit_code(checks.values()) == 0
    assert checks["completeness"].ok is True and checks["require-status"].ok is True


@pytest.mark.parametrize("outcome", ["mismatch", None])
def test_an_audit_that_is_left_out(registered: Registered, outcome: str | None) -> None:
    """What speaks against the model is dropped: a mismatch with its intent, or an audit that was given up."""
    _second(registered, outcome)
    path = registered.project.models_dir / "demo-lm" / "2" / bundle.FILE_NAME
    first = [item.index for item in bundle.parse(path.read_bytes()).entries][-3 if outcome is None else -4]
    checks = _strip(registered, lambda kind, item: kind.startswith("audit") and item["index"] >= first)
    assert checks["audit"].ok is None  # nor is it known what the audit that is left was drawn from
    assert checks["status"].ok is False and "left out or added" in checks["status"].detail
    # Without the status, nothing contradicts it, but the policy asks for one, and the assurance says so.
    checks = _strip(registered, lambda kind, item: kind == "status", proof=True)
    assert "status" not in checks and checks["require-status"].ok is False
    line = checks["completeness"]
    assert (line.ok, line.category, line.required) == (None, "ASSURANCE", False) and "left out" in line.detail


@pytest.mark.parametrize(("proof", "reason"), [(True, "no proof of what"), (False, "is not in it")])
def test_entry_and_proof_stand_together(registered: Registered, proof: bool, reason: str) -> None:
    register(registered.project, "demo-lm", "small")
    checks = _strip(registered, lambda kind, item: kind == "status" and not proof, proof=proof)
    assert checks["status"].ok is False and reason in checks["status"].detail


def test_a_status_from_before_the_release_is_not_enough(registered: Registered) -> None:
    """An older status would hide what was said between it and the release."""
    forge = Forge(registered.project, registered.folder)
    release, status = forge.find("release"), forge.find("status")
    said, before = forge.predicate(status), forge.log[release]
    forge.log[release] = forge.sign("status", {**said, "ledger": tree("ledger/1", forge.log[:release]).to_json()})
    forge.log[status], forge.status = before, release
    forge.write()
    checks = registered.verdict()
    assert checks["status"].ok is True
    assert checks["completeness"].ok is None and checks["require-status"].ok is False
    assert exit_code(checks.values()) == 1


def _status(**changes: Any) -> Callable[[Forge], Any]:
    return lambda forge: forge.change(forge.find("status"), **changes)


def _again(forge: Forge) -> None:
    forge.add("status", {**forge.predicate(forge.find("status")), "time": "2026-02-02T03:04:05Z"})


LIES: list[tuple[str, Callable[[Forge], Any]]] = [
    ("left out or added", _status(runs=tree("runs/1", []).to_json())),
    ("left out or added", lambda f: _status(runs=_runs(f, 1).to_json())(f)),
    ("another log", lambda f: _status(ledger=tree("ledger/1", [b"x"] * f.find("status")).to_json())(f)),
    ("speaks of 3 entries", lambda f: _status(ledger=tree("ledger/1", f.log[:3]).to_json())(f)),
    ("no higher number", _again),
    ("leaves out the entry", lambda f: _status(revoked_keys=[{"keyid": "ab" * 32, "from": 9}])(f)),
]  # fmt: skip


def _runs(forge: Forge, less: int) -> Any:
    records = [forge.log[forge.find(kind, n)] for kind, n in (("eval", 0), ("eval", 1), ("audit-intent", 0))]
    marks = [Mark(item.entry, item.kind, item.step) for item in forge.original.status.runs[0].marks]
    leaf = RunSaid(tree("records/1", records[less:]), marks).leaf(forge.leaf(forge.find("run")))
    return tree("runs/1", [leaf])


@pytest.mark.parametrize(("reason", "lie"), LIES)
def test_a_status_that_lies(registered: Registered, reason: str, lie: Callable[[Forge], Any]) -> None:
    forge = Forge(registered.project, registered.folder)
    lie(forge)
    forge.write()
    assert reason in registered.refused("status")


def test_a_revocation_that_is_left_out(registered: Registered) -> None:
    root, auditor = registered.project.signer("root"), registered.project.signer("auditor")
    with registered.project.open_ledger(writable=True) as ledger:
        ledger.append([revocation(root, auditor.public, "auditor", ledger.size)])
        ended = ledger.size - 1
    register(registered.project, "demo-lm", "small")
    checks = _strip(registered, lambda kind, item: False)
    assert exit_code(checks.values()) == 0
    checks = _strip(registered, lambda kind, item: item["index"] == ended)
    assert checks["status"].ok is False and "leaves out the entry that ended it" in checks["status"].detail


def test_the_age_of_a_status(registered: Registered) -> None:
    policy = load_policy(registered.policy)
    policy = policy.model_copy(update={"rules": policy.rules.model_copy(update={"max_status_age": 30})})
    for days, good in ((29, True), (31, False)):
        now = datetime.now(UTC) + timedelta(days=days)
        checks = {check.name: check for check in examine(registered.folder, policy, now=now).checks}
        assert checks["status-age"].ok is good and checks["status-age"].category == "POLICY"


def test_what_a_status_lists(registered: Registered) -> None:
    project = registered.project
    with project.open_ledger(writable=True) as ledger:
        assert append_status(ledger, project.signer("log")) == ledger.size - 1  # nothing happened since
        add_run(project, ledger, add_dataset(ledger, project.signer("trainer"), "more"), "other")
        records = run_records(ledger, ledger.size)
        assert list(records) == sorted(records) and sorted(said.records.size for said in records.values()) == [0, 4]
        listed = [
            data
            for index, data in ledger.entries()
            if any(f"/{kind}/v1".encode() in base64.b64decode(jcs.parse(data)["payload"]) for kind in _LISTED)
        ]
        assert records[registered.run].records == tree("records/1", listed)
        assert [(mark.kind, mark.step) for mark in records[registered.run].marks] == [
            ("state", 2), ("state", 4), ("release", 4)
        ]  # fmt: skip
        index = append_status(ledger, project.signer("log"))
        signed = jcs.parse(base64.b64decode(jcs.parse(ledger.entry(index))["payload"]))["predicate"]
        assert signed["sequence"] == 1 and signed["ledger"]["size"] == index
        assert signed["ledger"]["root"] == merkle.root(ledger.leaf_hash(i) for i in range(index)).hex()
        leaves = [said.leaf(run) for run, said in records.items()]
        assert signed["runs"] == tree("runs/1", leaves).to_json()


_LISTED = ("audit-intent", "audit", "eval")


def test_a_database_that_hides_a_stored_state_is_not_signed(registered: Registered) -> None:
    """The log goes by its tables; of the run that is released they are held against the entries themselves."""
    with closing(sqlite3.connect(registered.project.ledger_path)) as connection:
        connection.execute("DROP TRIGGER states_no_delete")
        connection.execute("DELETE FROM states WHERE step = 2")
        connection.commit()
    with pytest.raises(FoundWrong, match="its tables list other states"):
        register(registered.project, "demo-lm", "small")
