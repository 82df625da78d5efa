"""Which audits count for a release: made after it, consistent with themselves, and enough of them."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs
from bitwitness.ledger.commitments import tree
from bitwitness.ledger.entry.beacon import sample_seed, seconds
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.note import COSIGNATURE, Verifier
from bitwitness.ledger.project import Project
from bitwitness.registry.bundles import bundle
from bitwitness.registry.catalog import show_model
from bitwitness.registry.catalog_tree import tree_lines
from bitwitness.registry.checks import Check
from bitwitness.registry.policy import Rules, WitnessTrust, load_policy
from bitwitness.registry.register import register
from bitwitness.registry.verify import examine
from bitwitness.registry.words import NotPromoted, set_alias
from bitwitness.trainer.sample import Mark, draw

from ..ledger.beacon_sample import WITNESS, cosign
from . import project_fixture
from .conftest import Registered
from .forge import Forge
from .project_fixture import ARITHMETIC, TIME, add_audit, add_intent

OTHER_WITNESS = Signer.from_seed("witness", bytes([79]) * 32)
INIT = {"first": 0, "last": 0, "outcome": "match", "cause": "init"}
LAST = {"first": 3, "last": 4, "outcome": "match", "cause": "last"}
SAMPLE = {"first": 1, "last": 2, "outcome": "match", "cause": "sample"}


def _with(registered: Registered, **rules: Any) -> dict[str, Check]:
    policy = load_policy(registered.policy)
    full = {"require_audit": True, "self_chosen_auditors": policy.rules.self_chosen_auditors, **rules}
    changed = policy.model_copy(update={"rules": Rules(**full)})
    return {check.name: check for check in examine(registered.folder, changed).checks}


def _audit(**changes: Any) -> Callable[[Forge], None]:
    return lambda forge: forge.change(forge.find("audit"), **changes)


def _intent(**changes: Any) -> Callable[[Forge], None]:
    """Announce otherwise, and answer that."""

    def change(forge: Forge) -> None:
        forge.change(forge.find("audit-intent"), **changes)
        intent = forge.leaf(forge.find("audit-intent"))
        seed = hashlib.sha256(b"bitwitness/sample/v1\0" + bytes.fromhex(intent)).hexdigest()
        forge.change(forge.find("audit"), intent=intent, seed=seed)

    return change


def _seen(forge: Forge, size: int) -> dict[str, Any]:
    return {"size": size, "root": forge.root(size)}


def _units(*units: dict[str, Any], **changes: Any) -> Callable[[Forge], None]:
    return _audit(units=list(units), **changes)


LIES: list[tuple[str, Callable[[Forge], Any]]] = [
    ("before the released step was logged", lambda f: _intent(**_seen(f, f.find("step", 3)))(f)),
    ("chosen by hand", _units({**INIT, "cause": "chosen"}, {**LAST, "cause": "chosen"})),
    ("chosen by hand", _units({**LAST, "cause": "chosen"}, steps=10**9)),
    ("another operator table", _audit(arithmetic=ARITHMETIC | {"digest": "00" * 32})),
    ("its transcript is empty", _audit(transcript=tree("transcript/1", []).to_json())),
    ("claims 5 compared steps", _audit(steps=5)),
    ("claims 1 compared steps", _audit(steps=1)),
    ("overlap", _units(INIT, {**SAMPLE, "last": 3}, LAST)),
    ("steps 0 to 5", _units(INIT, {**LAST, "last": 5})),
    ("steps 0 to 4", _intent(first=1)),
    ("the initial state", _units(LAST)),
    ("the initial state", _units({**INIT, "cause": "last"}, LAST)),
    ("did not replay step 4", _units(INIT, {**LAST, "last": 3}, steps=1)),
    ("a sample of 1 units and replayed 0", _intent(samples=1)),
    ("a sample of 0 units and replayed 1", _units(INIT, SAMPLE, LAST)),
]  # fmt: skip


@pytest.fixture(scope="module")
def _many(tmp_path_factory: pytest.TempPathFactory) -> project_fixture.SmallRun:
    """A run whose every state is stored, so that a sample of one unit leaves two out."""
    return project_fixture.make(tmp_path_factory.mktemp("many") / "project", audited=False, stored=(1, 2, 3, 4))


def _claim(made: project_fixture.SmallRun, pick: Callable[[int], int], *, witnessed: bool) -> tuple[Path, int]:
    """Release after an audit of one sampled unit, announced and signed as any other: the folder, the step claimed."""
    project, beacon, changes = made.project, None, {}
    if witnessed:
        beacon = {"kind": "cosignature", "witness": WITNESS.keyid}
    with project.open_ledger(writable=True) as ledger:
        intent, value = add_intent(project, ledger, made.run, samples=1, beacon=beacon), b""
        if witnessed:
            leaves = [ledger.leaf_hash(number) for number in range(ledger.size)]
            given = cosign(ledger.origin, leaves, ledger.size - 1, seconds(TIME) + 5)
            value = given.beacon
            changes = {"basis": "beacon", "beacon": {"kind": "cosignature", "cosignature": given.to_json()}}
        seed = sample_seed(bytes.fromhex(intent), value)
        (drawn,) = (n + 1 for n in draw(seed, 3, 1))
        step = pick(drawn)
        cause = "release" if ledger.connection.execute("SELECT 1 FROM releases").fetchone() else "last"
        units = [INIT, {**SAMPLE, "first": step, "last": step}, {**LAST, "first": 4, "cause": cause}]
        add_audit(project, ledger, made.run, intent, seed=seed.hex(), units=units, **changes)
    return register(project, "demo-lm", made.run).path, step


@pytest.mark.parametrize("witnessed", [False, True], ids=["self-chosen", "beacon"])
def test_a_unit_that_was_not_drawn(_many: project_fixture.SmallRun, tmp_path: Path, witnessed: bool) -> None:
    """The ledger takes such an audit, since it holds together; it counts for nothing, to the gate or an alias."""
    shutil.copytree(_many.project.root, tmp_path / "p")
    made = project_fixture.SmallRun(Project.find(tmp_path / "p"), _many.run)
    registered, project = Registered(made.project, made.run), made.project
    mine = Verifier("w.example", WITNESS.public, COSIGNATURE).vkey
    if witnessed:
        rules = 'require_status = true\nrequire_audit = true\n[witnesses]\npolicy = "witness w '
        text = project.trust_path.read_text()
        project.trust_path.write_text(text[: text.index("[rules]")] + f'[rules]\n{rules}{mine}\\nquorum none"\n')
    folder, step = _claim(made, lambda drawn: drawn % 3 + 1, witnessed=witnessed)
    checks = {c.name: c for c in examine(folder, load_policy(registered.policy)).checks}
    assert checks["audits"].ok is True and checks["status"].ok is True
    assert checks["audit"].ok is False
    assert f"steps {step} to {step} are not among what its seed draws" in checks["audit"].detail
    with pytest.raises(NotPromoted, match="its seed draws"):
        set_alias(project, "demo-lm/1", "champion", registered.policy)
    shown = show_model(project, "demo-lm/1")
    assert "its seed draws" in shown["lineages"][0]["audits"][0]["misdrawn"]
    assert any("does not count: steps" in line for line in tree_lines(shown))
    honest, _ = _claim(made, lambda drawn: drawn, witnessed=witnessed)
    checks = {c.name: c for c in examine(honest, load_policy(registered.policy)).checks}
    assert checks["audit"].ok is True and "its seed draws" in checks["audit"].detail
    drawn = "drawn by beacon, a witness's cosignature" if witnessed else "self-chosen"
    assert f"replayed 2 of 4 steps, sample {drawn}: match" in checks["audit"].detail
    assert set_alias(project, "demo-lm/2", "champion", registered.policy).new


@pytest.mark.parametrize("left_out", [True, False])
def test_states_that_the_log_does_not_list(_many: project_fixture.SmallRun, tmp_path: Path, left_out: bool) -> None:
    """Whoever makes the bundle cannot choose the states that a sample is drawn from, nor go without."""
    shutil.copytree(_many.project.root, tmp_path / "p")
    made = project_fixture.SmallRun(Project.find(tmp_path / "p"), _many.run)
    folder, _ = _claim(made, lambda drawn: drawn, witnessed=False)
    held = jcs.parse((folder / bundle.FILE_NAME).read_bytes())
    if left_out:
        del held["status"]["runs"][0]["marks"][0]
    else:
        number = next(n for n, item in enumerate(held["entries"]) if item["index"] == bundle_status(held))
        del held["entries"][number], held["status"]
    (folder / bundle.FILE_NAME).write_bytes(jcs.encode(held))
    policy = load_policy(made.policy)
    rules = policy.rules.model_copy(update={"require_status": False})
    checks = {c.name: c for c in examine(folder, policy.model_copy(update={"rules": rules})).checks}
    if left_out:
        assert checks["status"].ok is False and "left out or added" in checks["status"].detail
    assert checks["audit"].ok is None and "no status of the log lists the states" in checks["audit"].detail


def bundle_status(held: dict[str, Any]) -> int:
    """The log index of the newest status in a bundle."""
    return max(item["index"] for item in held["entries"] if b"/status/v1" in base64.b64decode(item["entry"]["payload"]))


def test_a_log_that_leaves_out_a_state_that_the_bundle_shows(registered: Registered) -> None:
    forge = Forge(registered.project, registered.folder)
    forge.restate(marks=[Mark(forge.find("release"), "release", 4)])
    forge.write()
    assert "does not list" in registered.refused("status")


@pytest.mark.parametrize(("reason", "lie"), LIES, ids=[reason for reason, _ in LIES])
def test_an_audit_that_does_not_count(registered: Registered, reason: str, lie: Callable[[Forge], Any]) -> None:
    forge = Forge(registered.project, registered.folder)
    lie(forge)
    forge.write()
    checks = registered.verdict()
    assert checks["audits"].ok is True
    assert checks["audit"].ok is False and reason in checks["audit"].detail, checks["audit"]
    assert _with(registered, require_audit=False, min_audited_steps=1)["audited-steps"].ok is False


@pytest.mark.parametrize("proofs", [None, [], "cut"])
def test_an_audit_of_another_log_of_the_same_owner(registered: Registered, proofs: Any) -> None:
    """The owner signs other steps after the genesis, and keeps what an auditor signed where it stood."""
    forge = Forge(registered.project, registered.folder)
    seen = forge.find("step", 0)
    assert seen not in forge.shown and registered.verdict()["audits"].ok is True
    if proofs is None:
        forge.change(seen, observed={"time": "2026-02-03T04:05:06Z"})
        forge.write()
    else:  # nothing was changed, but it is not shown, or not to the end
        forge.write()
        shown = bundle.parse((registered.folder / bundle.FILE_NAME).read_bytes()).intents
        assert shown is not None
        cut = [{**item.model_dump(), "consistency": item.consistency[:-1]} for item in shown]
        changed = {"intents": cut} if proofs else {"intents": [{"consistency": [], "entry": 0}]}
        forge.write(**changed)
    refused = registered.refused("audits")
    assert ("another log" if proofs is None or proofs else "which log it is of") in refused


def test_a_sample_that_is_all_that_is_left(registered: Registered) -> None:
    forge = Forge(registered.project, registered.folder)
    _intent(samples=9)(forge)
    _units(INIT, SAMPLE, LAST)(forge)
    forge.restate()
    forge.write()
    assert registered.verdict()["audit"].ok is True


def test_how_much_was_audited(registered: Registered) -> None:
    for rule, good, bad, name in (
        ("min_audited_steps", 2, 3, "audited-steps"),
        ("min_audited_fraction", 0.5, 0.51, "audited-fraction"),
    ):
        check = _with(registered, **{rule: good})[name]
        assert check.ok is True and "replayed 2 of the 4 steps" in check.detail
        assert _with(registered, **{rule: bad})[name].ok is False


def test_open_intents_fail_as_audits(registered: Registered) -> None:
    forge = Forge(registered.project, registered.folder)
    forge.add("audit-intent", {**forge.predicate(forge.find("audit-intent")), "size": len(forge.log)})
    forge.write()
    assert "announced without a result" in _with(registered)["audit"].detail
    assert _with(registered)["audit"].ok is False
    assert _with(registered, max_open_intents=1)["audit"].ok is True


def test_two_audits_add_up(registered: Registered) -> None:
    with registered.project.open_ledger(writable=True) as ledger:
        intent = add_intent(registered.project, ledger, registered.run, samples=1)
        add_audit(
            registered.project, ledger, registered.run, intent, units=[INIT, SAMPLE, {**LAST, "cause": "release"}]
        )
    folder = register(registered.project, "demo-lm", registered.run).path
    newer = Registered(registered.project, registered.run)
    policy = load_policy(newer.policy)
    rules = policy.rules.model_copy(update={"min_audited_fraction": 1.0})
    checks = {c.name: c for c in examine(folder, policy.model_copy(update={"rules": rules})).checks}
    assert checks["audited-fraction"].ok is True


def _beacon_audit(registered: Registered, *, kind: str = "cosignature") -> Path:
    """Audit with a beacon by WITNESS, register again; the folder."""
    project = registered.project
    named = {"kind": "cosignature", "witness": WITNESS.keyid}
    if kind == "round":
        named = {"kind": "round", "source": "quicknet", "round": 500_000_000}
    with project.open_ledger(writable=True) as ledger:
        intent = add_intent(project, ledger, registered.run, beacon=named)
        leaves = [ledger.leaf_hash(number) for number in range(ledger.size)]
        given = cosign(ledger.origin, leaves, ledger.size - 1, seconds(TIME) + 5)
        beacon, value = {"kind": kind, "cosignature": given.to_json()}, given.beacon
        if kind == "round":
            value = hashlib.sha256(bytes(48)).digest()
            beacon["round"] = {"randomness": value.hex(), "signature": "00" * 48}
        seed = sample_seed(bytes.fromhex(intent), value).hex()
        add_audit(project, ledger, registered.run, intent, basis="beacon", beacon=beacon, seed=seed)
    return register(project, "demo-lm", registered.run).path


def _judged(registered: Registered, folder: Path, *witnesses: str) -> Check:
    """The check `audit` of a policy that trusts no auditor by name, but these witnesses."""
    policy = load_policy(registered.policy)
    lines = "".join(f"witness w{n} {vkey}\n" for n, vkey in enumerate(witnesses))
    changes = {
        "rules": Rules(require_audit=True),
        "witnesses": WitnessTrust(policy=f"{lines}quorum none\n"),
    }
    return {check.name: check for check in examine(folder, policy.model_copy(update=changes)).checks}["audit"]


def test_a_beacon_by_a_witness_of_the_policy_counts(registered: Registered) -> None:
    folder = _beacon_audit(registered)
    mine, other = (Verifier("w.example", signer.public, COSIGNATURE).vkey for signer in (WITNESS, OTHER_WITNESS))
    assert _judged(registered, folder, mine).ok is True
    for witnesses in ((), (other,)):
        check = _judged(registered, folder, *witnesses)
        assert check.ok is False and "no witness of the policy" in check.detail


def test_a_beacon_is_checked_in_the_bundle(registered: Registered) -> None:
    folder = _beacon_audit(registered)
    honest = Forge(registered.project, folder)
    number = honest.find("audit", 1)
    given = honest.predicate(number)["beacon"]["cosignature"]
    for wrong in ({**given, "time": given["time"] + 1}, {**given, "size": honest.find("audit-intent", 1)}):
        forge = Forge(registered.project, folder)
        forge.change(number, beacon={"kind": "cosignature", "cosignature": wrong})
        forge.write()
        checks = {check.name: check for check in examine(folder, load_policy(registered.policy)).checks}
        assert checks["audits"].ok is False and "its beacon" in checks["audits"].detail
    forge = Forge(registered.project, folder)
    forge.change(number, basis="self-chosen", beacon=None)
    forge.write()
    checks = {check.name: check for check in examine(folder, load_policy(registered.policy)).checks}
    assert checks["audits"].ok is False and "it has none" in checks["audits"].detail


def test_a_round_that_its_network_did_not_sign_does_not_count(
    registered: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("py_ecc") is None:
        pytest.skip("py_ecc is not installed")
    folder = _beacon_audit(registered, kind="round")
    mine = Verifier("w.example", WITNESS.public, COSIGNATURE).vkey
    check = _judged(registered, folder, mine)
    assert check.ok is False and "not signed by quicknet" in check.detail
    monkeypatch.setitem(sys.modules, "py_ecc.bls.hash_to_curve", None)
    check = _judged(registered, folder, mine)
    assert check.ok is None and "pip install" in check.detail
