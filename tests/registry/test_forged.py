"""Bundles made by someone who holds keys, but lies: each refused by the check that names the lie."""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bitwitness.ledger import jcs, keys, merkle
from bitwitness.ledger.commitments import tree
from bitwitness.registry.bundles import bundle
from bitwitness.registry.checks import exit_code

from . import project_fixture
from .conftest import Registered
from .forge import Forge

ZERO = "00" * 32


@pytest.fixture
def forge(registered: Registered) -> Forge:
    return Forge(registered.project, registered.folder)


def test_a_forge_that_changes_nothing_is_verified(registered: Registered, forge: Forge) -> None:
    before = (registered.folder / bundle.FILE_NAME).read_bytes()
    forge.write()
    assert (registered.folder / bundle.FILE_NAME).read_bytes() == before
    assert exit_code(registered.verdict().values()) == 0


# Each lie: (check that finds it, part of its reason, what the liar does).
Lie = Callable[[Forge], Any]


def _step(forge: Forge, number: int) -> int:
    return forge.find("step", number - 1)


def _revoke(forge: Forge, role: str, start: int) -> None:
    signer = forge.project.signer(role)
    key = {"algorithm": "ed25519", "keyid": signer.keyid, "public": signer.public.raw.hex(), "role": role}
    forge.add("key", {"action": "revoke", "key": key, "from": start, "time": project_fixture.TIME})


def _second_release(forge: Forge) -> None:
    forge.add("release", {**forge.predicate(forge.find("release")), "version": 2})


def _release_other_step(forge: Forge) -> None:
    """The publisher claims the shown weights for step 2, and the bundle shows step 2."""
    forge.change(forge.find("release"), step=2)
    forge.shown |= {_step(forge, 2)}


def _enrol_twice(forge: Forge) -> None:
    forge.add("key", {**forge.predicate(1), "time": "2026-02-02T03:04:05Z"})


def _self_enrolled(forge: Forge) -> None:
    """The log enrols a publisher of its own, without the root."""
    stranger = keys.Signer.from_seed("publisher", b"\7" * 32)
    key = {"algorithm": "ed25519", "keyid": stranger.keyid, "public": stranger.public.raw.hex(), "role": "publisher"}
    forge.log[4] = forge.sign("key", {"action": "enrol", "key": key, "time": project_fixture.TIME}, role="log")
    forge.change(forge.find("release"), signer=stranger)


def _late_enrolment(forge: Forge) -> None:
    enrolment = forge.log[4]
    assert forge.predicate(4)["key"]["role"] == "publisher"
    forge.shown.remove(4)
    forge.log.append(enrolment)
    forge.shown.add(len(forge.log) - 1)


def _twice_in_the_log(forge: Forge) -> None:
    forge.log.append(forge.log[forge.find("dataset")])
    forge.shown.add(len(forge.log) - 1)


def _foreign_run(forge: Forge) -> None:
    genesis = forge.predicate(forge.find("run"))
    forge.add("run", {**genesis, "name": "other"})


def _audit_without_intent(forge: Forge) -> None:
    forge.shown.remove(forge.find("audit-intent"))


def _chosen_seed(forge: Forge) -> None:
    forge.change(forge.find("audit"), seed=ZERO)


def _answer_twice(forge: Forge) -> None:
    forge.add("audit", {**forge.predicate(forge.find("audit")), "transcript": tree("transcript/1", [b"x"]).to_json()})


def _intent_after(forge: Forge) -> None:
    """The intent is moved behind its audit: whoever knows the sample can announce it."""
    audit, intent = forge.find("audit"), forge.find("audit-intent")
    forge.log[audit], forge.log[intent] = forge.log[intent], forge.log[audit]


def _fork(forge: Forge) -> None:
    """A second entry for the place of step 4 in the run, with the same content but another time."""
    index = _step(forge, 4)
    forge.log.append(forge.log[index])
    forge.change(len(forge.log) - 1, observed={"time": "2026-02-02T03:04:05Z"})
    forge.shown.add(len(forge.log) - 1)


def _other_genesis_history(forge: Forge) -> None:
    forge.change(
        _step(forge, 4), history={"type": "history/1", "size": forge.predicate(_step(forge, 4))["seq"], "root": ZERO}
    )


def _wrong_state(forge: Forge) -> None:
    step = _step(forge, 4)
    computed = {**forge.predicate(step)["computed"]}
    del computed["optimizer"]
    forge.change(step, computed={**computed, "state": ZERO})
    forge.change(forge.find("release"), state=ZERO)


def _other_dataset(forge: Forge) -> None:
    other = tree("dataset/1", [b"other document"]).to_json()
    forge.change(forge.find("dataset"), dataset=other)
    _release_genesis(forge)


def _traversal(forge: Forge) -> None:
    _files(forge, "../../secret")


def _absolute(forge: Forge) -> None:
    _files(forge, "/etc/passwd")


def _nested(forge: Forge) -> None:
    _files(forge, "sub/model.safetensors")


def _files(forge: Forge, name: str) -> None:
    release = forge.find("release")
    files = [*forge.predicate(release)["files"], {"name": name, "sha256": ZERO, "bytes": 1}]
    forge.change(release, files=files)


def _listed_twice(forge: Forge) -> None:
    release = forge.find("release")
    forge.change(release, files=forge.predicate(release)["files"] * 2)


def _no_weights(forge: Forge) -> None:
    release = forge.find("release")
    forge.change(release, files=forge.predicate(release)["files"][:1])


def _foreign_origin(forge: Forge) -> None:
    forge.change(forge.find("run"), origin="elsewhere.invalid/log")
    _release_genesis(forge)


def _release_genesis(forge: Forge) -> None:
    """After a change to the run or its dataset: point to both anew, and release step 0, so that all else agrees."""
    genesis, release, dataset = forge.find("run"), forge.find("release"), forge.find("dataset")
    used = [{**item, "entry": forge.leaf(dataset)} for item in forge.predicate(genesis)["datasets"]]
    forge.change(genesis, datasets=used)
    start = {name: forge.predicate(genesis)[name] for name in ("state", "weights")}
    forge.change(release, run=forge.leaf(genesis), step=0, **start)
    forge.shown &= {*range(5), dataset, genesis, release}
    forge.original = forge.original.model_copy(update={"history": []})


LIES: list[tuple[str, str, Lie]] = [
    ("release", "holds 2 releases", _second_release),
    ("release", "holds 0 releases", lambda f: f.shown.remove(f.find("release"))),
    ("release", "names other state", _release_other_step),
    ("release", "not in the bundle", lambda f: f.shown.remove(f.find("run"))),
    ("release", "0 entries for the released step", lambda f: f.shown.remove(_step(f, 4))),
    ("release", "belongs to another run", _foreign_run),
    ("release", "a dataset that the run does not use", lambda f: f.add("dataset", {**f.predicate(5), "name": "odd"})),
    ("release", "made for log elsewhere.invalid", _foreign_origin),
    ("signatures", "enrolled a second time", _enrol_twice),
    ("signatures", "a log key signed it, not a root key", _self_enrolled),
    ("signatures", "was enrolled later", _late_enrolment),
    ("signatures", "is not enrolled", lambda f: f.shown.remove(4)),
    ("signatures", "revoked", lambda f: _revoke(f, "publisher", f.find("release"))),
    ("signatures", "revoked", lambda f: _revoke(f, "trainer", 0)),
    ("signatures", "a trainer key signed it", lambda f: f.change(f.find("release"), role="trainer")),
    ("signatures", "a publisher key signed it", lambda f: f.change(f.find("audit"), role="publisher")),
    ("signatures", "the pinned log key is not enrolled", lambda f: f.shown.difference_update({1, f.find("status")})),
    ("signatures", "the log key is revoked from entry 20 on", lambda f: _revoke(f, "log", 20)),
    ("signatures", "there is no", lambda f: (f.shown.remove(4), _revoke(f, "publisher", 99))),
    ("inclusion", "one statement under two signatures", _twice_in_the_log),
    ("inclusion", "../../secret", _traversal),
    ("inclusion", "/etc/passwd", _absolute),
    ("inclusion", "predicate.version", lambda f: f.change(f.find("release"), version=0)),
    ("chain", "not in the history", _other_genesis_history),
    ("chain", "no proof that", lambda f: f.shown.add(_step(f, 2))),
    ("chain", "a fork", lambda f: (f.shown.add(_step(f, 3)), f.add("halt", _halt(f)))),
    ("state", "its parts give", _wrong_state),
    ("data", "names another tree", _other_dataset),
    ("data", "is not in the bundle", lambda f: f.shown.remove(f.find("dataset"))),
    ("audits", "is not in the bundle", _audit_without_intent),
    ("audits", "did not draw its sample", _chosen_seed),
    ("audits", "second answer", _answer_twice),
    ("audits", "was not made before", _intent_after),
    ("files", "sub/model.safetensors is none of the files that a release may hold", _nested),
    ("files", "modeling_x.py is none of the files", lambda f: _files(f, "modeling_x.py")),
    ("files", "tokenizer_config.json is none of the files", lambda f: _files(f, "tokenizer_config.json")),
    ("weights", "the release says that its tensors are I8", lambda f: f.change(f.find("release"), dtype="I8")),
    ("config", "does not describe", lambda f: f.change(f.find("release"), dtype="I8")),
    ("config", "torch_dtype", lambda f: f.change(f.find("release"), dtype="BF16")),
    ("files", "lists a file twice", _listed_twice),
    ("files", "not listed in the release", _no_weights),
    ("audit", "no audit in the bundle", lambda f: f.shown.difference_update({f.find("audit"), f.find("audit-intent")})),
]  # fmt: skip


def _halt(forge: Forge) -> dict[str, Any]:
    """A halt in the place that step 3 has in the run."""
    step = forge.predicate(_step(forge, 3))
    chain = {key: step[key] for key in ("run", "seq", "prev", "history")}
    return {**chain, "step": 2, "state": ZERO, "reason": "nan", "observed": {"time": project_fixture.TIME}}


@pytest.mark.parametrize(("check", "reason", "lie"), LIES, ids=[f"{c}: {r}" for c, r, _ in LIES])
def test_every_lie_is_found(registered: Registered, forge: Forge, check: str, reason: str, lie: Lie) -> None:
    lie(forge)
    forge.write()
    assert reason in registered.refused(check)


def test_another_log_key(registered: Registered, forge: Forge) -> None:
    forge.write(log_signer=keys.Signer.from_seed("log", b"\1" * 32))
    assert "no known key signed it" in registered.refused("checkpoint")


def test_another_origin(registered: Registered, forge: Forge) -> None:
    forge.write(origin="elsewhere.invalid/log")
    registered.refused("checkpoint")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"checkpoint": "x"}, "checkpoint"),
        ({"checkpoint": "x\n\n— y z\n"}, "checkpoint"),
        ({"history": []}, "chain"),
        ({"weights": []}, "weights"),
        ({"format": "bitwitness/provenance/2"}, "bundle"),
        ({"extra": 1}, "bundle"),
        ({"entries": []}, "signatures"),
        ({"entries": {}}, "bundle"),
        ({"entries": [{"index": -1, "proof": [], "entry": {}}]}, "bundle"),
        ({"entries": [{"index": 0, "proof": [ZERO] * 64, "entry": {}}]}, "bundle"),
        ({"entries": [{"index": 0, "proof": ["x"], "entry": {}}]}, "bundle"),
        ({"entries": [{"index": 0, "proof": [], "entry": {}}]}, "inclusion"),
        ({"entries": [{"index": 10**15, "proof": [], "entry": {}}]}, "inclusion"),
    ],
)
def test_a_malformed_bundle(registered: Registered, forge: Forge, changes: dict[str, Any], reason: str) -> None:
    forge.write(**changes)
    registered.refused(reason)


def test_a_deep_text_where_a_library_has_raised_the_recursion_limit(registered: Registered) -> None:
    """The parser recurses in C and would end the process, so it is not asked."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        for name, check in ((bundle.FILE_NAME, "bundle"), ("config.json", "config"), ("model.safetensors", "weights")):
            held = (registered.folder / name).read_bytes()
            length = 300_000 if check == "bundle" else len(held)
            text = b"[" * (length if check != "weights" else length - 8)
            (registered.folder / name).write_bytes(text if check != "weights" else struct.pack("<Q", len(text)) + text)
            assert "nested" in registered.refused(check), name
            (registered.folder / name).write_bytes(held)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"{}", "its format is 'None'"),
        (b"[]", "valid dictionary"),
        (b"\xff", "UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"a":1,"a":1}', "twice"),
        (b'{"a":1.5}', "not an integer"),
        (b'{ "a":1}', "canonical"),
    ],
)
def test_bytes_that_are_no_bundle(registered: Registered, data: bytes, reason: str) -> None:
    (registered.folder / bundle.FILE_NAME).write_bytes(data)
    assert reason in registered.refused("bundle")


def test_proofs_under_another_size(registered: Registered, forge: Forge) -> None:
    """Valid proofs of a smaller tree do not pass under a larger checkpoint."""
    forge.write()
    honest = jcs.parse((registered.folder / bundle.FILE_NAME).read_bytes())
    forge.log.append(forge.sign("dataset", {**forge.predicate(forge.find("dataset")), "name": "more"}))
    forge.write(entries=honest["entries"])
    assert "is not in the log" in registered.refused("inclusion")


def test_a_bundle_of_another_project(registered: Registered, tmp_path: Any) -> None:
    other = project_fixture.make(tmp_path / "other")
    (registered.policy).write_bytes(other.policy.read_bytes())
    registered.refused("checkpoint")


def test_an_auditor_who_found_a_mismatch_cannot_be_outvoted(registered: Registered, forge: Forge) -> None:
    first = forge.predicate(forge.find("audit-intent"))
    forge.add("audit-intent", {**first, "size": len(forge.log)})
    intent = forge.leaf(len(forge.log) - 1)
    audit = forge.predicate(forge.find("audit"))
    unit = {"first": 1, "last": 4, "outcome": "mismatch", "cause": "sample",
            "found": {"step": 3, "expected": ZERO, "computed": ZERO}}  # fmt: skip
    seed = hashlib.sha256(b"bitwitness/sample/v1\0" + bytes.fromhex(intent)).hexdigest()
    forge.add("audit", {**audit, "intent": intent, "seed": seed, "result": "mismatch", "units": [unit]})
    forge.write()
    assert "step 3 does not replay" in registered.refused("audit")


def _status(forge: Forge, **changes: Any) -> None:
    everything = tree("ledger/1", forge.log).to_json()
    said = {
        "sequence": 0,
        "time": project_fixture.TIME,
        "ledger": everything,
        "revoked_keys": [],
        "revoked_releases": [],
        "runs": tree("runs/1", []).to_json(),
    }
    forge.add("status", {**said, **changes})
    forge.write()


def test_a_status_that_takes_back(registered: Registered, forge: Forge) -> None:
    _status(forge)
    assert registered.verdict()["revocations"].ok is True
    _status(forge, sequence=1, revoked_releases=[forge.leaf(forge.find("release"))])
    assert "the release is revoked" in registered.refused("revocations")
    keyid = forge.project.signer("publisher").keyid
    _status(forge, sequence=2, revoked_keys=[{"keyid": keyid, "from": len(forge.log)}])
    assert registered.verdict()["revocations"].ok is True
    _status(forge, sequence=3, revoked_keys=[{"keyid": keyid, "from": forge.find("release")}])
    assert "is revoked from entry" in registered.refused("revocations")


def test_weights_of_another_step_under_a_valid_release(registered: Registered) -> None:
    """The folder of step 4 gets the weights of step 2: every tensor is named, up to five."""
    from bitwitness.ledger.files.safetensors_header import write_file

    path = registered.folder / "model.safetensors"
    path.unlink()
    write_file(path, project_fixture.weights_at(2), {"format": "pt"})
    detail = registered.refused("weights")
    assert "has other values" in detail
    assert "more" in detail


def test_a_list_of_tensors_that_is_not_the_signed_one(registered: Registered, forge: Forge) -> None:
    forge.weights = [forge.weights[0].model_copy(update={"digest": ZERO}), *forge.weights[1:]]
    forge.write()
    assert "the bundle's list of them does not" in registered.refused("weights")


def test_leaf_hash_is_what_names_an_entry(forge: Forge) -> None:
    assert forge.predicate(forge.find("release"))["run"] == merkle.leaf_hash(forge.log[forge.find("run")]).hex()
