"""The verifier of a whole ledger file, against files that no honest writer makes."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bitwitness.ledger import keys, merkle
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.note import Verifier, add_signatures, sign_note, signature_line
from bitwitness.ledger.trust import Trust
from bitwitness.ledger.verify import KeyRing, exit_code, verify_entry
from bitwitness.ledger.verify_ledger import LedgerReport, verify_ledger
from bitwitness.ledger.verify_rows import examine

from . import serve_sample
from . import small_ledger as small

START = [*small.key_entries(), small.DATASET]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def wrong(report: LedgerReport) -> dict[str, str]:
    return {item.name: item.detail for item in report.checks if not item.ok}


def steps(count: int, name: str = "demo") -> list[tuple[str, small.Json]]:
    return [("step", small.step(number, name)) for number in range(1, count + 1)]


def test_a_sound_ledger_verifies(tmp_path: Path) -> None:
    project = serve_sample.build(tmp_path / "sample", 44)
    report = verify_ledger(project.ledger_path, None)
    assert exit_code(report.checks) == 0, wrong(report)
    with project.open_ledger() as ledger:
        assert (report.size, report.root) == (ledger.size, ledger.root())


def test_a_raw_file_of_the_same_entries_verifies(path: Path) -> None:
    data = [*START, *small.chain("demo", [*steps(9), ("end", small.end(9))])]
    small.raw_ledger(path, data, covered=[6, 9, len(data)])
    report = verify_ledger(path, small.TRUST)
    assert exit_code(report.checks) == 0, wrong(report)
    assert (report.size, report.root) == (len(data), merkle.root([merkle.leaf_hash(item) for item in data]))


def test_several_processes_say_the_same(path: Path) -> None:
    with small.create(path) as ledger:
        writer = small.begin(ledger)
        writer.append_all(steps(2100))
        ledger.sign_checkpoint(small.SIGNERS["log"])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TRIGGER entries_no_update")
    connection.execute("UPDATE entries SET signature = zeroblob(64) WHERE idx = 2050")
    connection.close()
    one, two = (verify_ledger(path, small.TRUST, processes=count) for count in (1, 2))
    assert one.faults == two.faults
    assert (one.size, one.root) == (two.size, two.root)
    assert any(fault.index == 2050 for fault in one.faults)


def test_a_fork_is_evidence(path: Path) -> None:
    chain = small.chain("demo", steps(4))
    other = small.chain("demo", [*steps(3), ("step", small.step(4) | {"observed": {"time": "2027-01-01T00:00:00Z"}})])
    small.raw_ledger(path, [*START, *chain, other[-1]])
    assert "a second entry 4" in wrong(verify_ledger(path, small.TRUST))["runs"]


@pytest.mark.parametrize(
    ("data", "check", "says"),
    [
        (lambda run: [*START, *run[:2], run[3]], "runs", "follows entry 1"),
        (lambda run: [*START, *run[1:]], "runs", "which is not before it"),
        (lambda run: [*small.key_entries(), *run], "links", "names the dataset"),
        (lambda run: [*START, *run, run[2]], "runs", "a second entry 2"),
        (lambda run: [*START, small.DATASET], "links", "a second time"),
        (lambda run: [*START, *run, *small.chain("demo", [], small.SIGNERS["trainer"])], "runs", "a second run named"),
        (lambda run: [*START, *small.chain("demo", [("end", small.end(0)), *steps(1)])], "runs", "after the run's end"),
        (lambda run: [small.key_entries()[0], small.DATASET, *small.key_entries()[1:]], "signatures", "enrolled later"),
        (lambda run: [*START, *run, small.revocation("trainer", 3), *run], "signatures", "revoked"),
        (lambda run: small.key_entries()[1:], "signatures", "not enrolled"),
    ],
)  # fmt: skip
def test_what_no_writer_may_do_is_found(
    path: Path, data: Callable[[list[bytes]], list[bytes]], check: str, says: str
) -> None:
    small.raw_ledger(path, data(small.chain("demo", steps(3))))
    found = wrong(verify_ledger(path, small.TRUST))
    assert says in found[check], found


def _sealed_after() -> dict[str, small.Json]:
    """Predicates without signer that fit after START and a run of three steps."""
    run = merkle.leaf_hash(small.chain("demo", steps(3))[0]).hex()
    before = [*START, *small.chain("demo", steps(3))]
    root = merkle.root(map(merkle.leaf_hash, before[:9])).hex()
    intent = {"run": run, "size": 9, "root": root, "first": 0, "last": 3, "samples": 1, "beacon": {"kind": "none"}}
    intent["time"] = small.TIME
    leaf = merkle.leaf_hash(small.seal("audit-intent", intent)).hex()
    released = {key: value for key, value in small.state(2).items() if key in ("state", "weights")}
    release = {"model": "m", "version": 1, "run": run, "step": 2, **released, "dtype": "F32", "time": small.TIME}
    release["files"] = [{"name": "model.safetensors", "sha256": "00" * 32, "bytes": 1}]
    audit = {
        "run": run,
        "intent": leaf,
        "basis": "self-chosen",
        "seed": hashlib.sha256(b"bitwitness/sample/v1\0" + bytes.fromhex(leaf)).hexdigest(),
        "steps": 3,
        "result": "match",
        "units": [{"first": 1, "last": 3, "outcome": "match", "cause": "last"}],
        "transcript": small.tree("transcript/1", 3, "t"),
        "code": small.tree("code/1", 5, "code"),
        "arithmetic": {
            "version": "arith/1",
            "operators": {"add": 1},
            "functions": {"exp": 1},
            "digest": small.digest("arith"),
        },
        "observed": {"time": small.TIME},
    }
    return {"audit-intent": intent, "audit": audit, "release": release}


def _after(path: Path, changes: dict[str, small.Json], *more: bytes) -> LedgerReport:
    made = [small.seal(kind, {**said, **changes.get(kind, {})}) for kind, said in _sealed_after().items()]
    data = [*START, *small.chain("demo", steps(3)), *made, *more]
    small.raw_ledger(path, data, covered=[len(data)])
    return verify_ledger(path, small.TRUST)


def test_releases_and_audits_say_what_their_run_says(path: Path) -> None:
    assert exit_code(_after(path, {}).checks) == 0
    other = small.state(3)
    for kind, change, says in (
        ("release", {"weights": other["weights"]}, "did not make at step 2"),
        ("release", {"state": other["state"]}, "did not make at step 2"),
        ("release", {"step": 3}, "did not make at step 3"),
        ("release", {"step": 50}, "did not make at step 50"),
        ("audit", {"seed": "5e" * 32}, "did not draw its sample"),
        ("audit-intent", {"root": "5e" * 32}, "other entries than those of this ledger"),
    ):
        path.unlink()
        report = _after(path, {kind: change})
        assert says in wrong(report)["links"], (kind, change)
    path.unlink()
    again = small.seal("audit", {**_sealed_after()["audit"], "steps": 2})
    assert "a second answer" in wrong(_after(path, {}, again))["links"]


def test_a_recheck_is_of_an_audit_of_another_auditor(path: Path) -> None:
    audit = _sealed_after()["audit"]
    kept = {name: audit[name] for name in ("run", "steps", "transcript", "code", "arithmetic", "observed")}
    said = {**kept, "audit": merkle.leaf_hash(small.seal("audit", audit)).hex(), "result": "confirmed"}
    signer = keys.Signer.from_seed("auditor", bytes([72]) * 32)
    other = enrolment(small.SIGNERS["root"], signer.public, "auditor", time=small.TIME)
    assert exit_code(_after(path, {}, other, small.seal("recheck", said, signer=signer)).checks) == 0
    for more, says in (
        ([small.seal("recheck", said)], "its own auditor's audit"),
        ([other, small.seal("recheck", {**said, "audit": "ab" * 32}, signer=signer)], "names the audit"),
    ):
        path.unlink()
        assert says in wrong(_after(path, {}, *more))["links"]


def test_the_content_of_links_is_checked(path: Path) -> None:
    uses = small.genesis()["datasets"][0]
    for change, says in (
        ({"datasets": [{**uses, "dataset": small.tree("dataset/1", 3, "others")}]}, "names another tree for dataset"),
        ({"origin": "example.org/other"}, "was made for the log example.org/other"),
    ):
        path.unlink(missing_ok=True)
        empty = {"seq": 0, "history": {"type": "history/1", "size": 0, "root": merkle.EMPTY_ROOT.hex()}}
        small.raw_ledger(path, [*START, small.seal("run", small.genesis() | change | empty)])
        assert says in wrong(verify_ledger(path, small.TRUST))["links"]


def test_a_run_goes_on_from_what_another_one_stored(path: Path) -> None:
    """The `state` entry that the genesis names must be its parent's, of that step and state, and on its one chain."""
    stored = ("state", {"step": 1, "bytes": 96, **small.state(1)})
    parent = small.chain("demo", [*steps(1), stored])
    other = small.chain("other", [*steps(1, "other"), ("state", {"step": 1, "bytes": 96, **small.state(1, "other")})])
    branch = small.chain("demo", [*steps(1), ("state", {**stored[1], "bytes": 97})])[-1]
    good = {
        "kind": "parent",
        "run": merkle.leaf_hash(parent[0]).hex(),
        "step": 1,
        "entry": merkle.leaf_hash(parent[-1]).hex(),
        "state": small.state(1)["state"],
    }
    empty = {"seq": 0, "history": {"type": "history/1", "size": 0, "root": merkle.EMPTY_ROOT.hex()}}
    for change, says in (
        ({}, None),
        ({"entry": merkle.leaf_hash(other[-1]).hex()}, "stored no such state"),
        ({"run": merkle.leaf_hash(other[0]).hex()}, "stored no such state"),
        ({"entry": merkle.leaf_hash(branch).hex()}, "stored no such state"),
        ({"entry": "ab" * 32}, "names the state"),
    ):
        genesis = small.genesis() | small.state(1) | empty | {"name": "child", "init": good | change}
        more = [branch] if "entry" in change else []
        small.raw_ledger(path, [*START, *parent, *other, *more, small.seal("run", genesis)])
        found = wrong(verify_ledger(path, small.TRUST))
        assert ("links" not in found) if says is None else says in found["links"], (change, found)
        path.unlink()


def test_the_rules_of_runs_are_applied(path: Path) -> None:
    jumped = small.chain("demo", [*steps(2), ("step", small.step(9))])
    small.raw_ledger(path, [*START, *jumped])
    assert "is step 9, where step 3 must follow" in wrong(verify_ledger(path, small.TRUST))["runs"]


def test_history_and_prev_are_recomputed(path: Path) -> None:
    honest = small.chain("demo", steps(3))
    forged = small.chain(
        "demo", [*steps(1), ("step", small.step(2) | {"observed": {"time": "2027-01-01T00:00:00Z"}}), *steps(3)[2:]]
    )
    small.raw_ledger(path, [*START, *honest[:3], forged[3]])
    found = wrong(verify_ledger(path, small.TRUST))
    assert "prev is not" in found["runs"] and "history is not" in found["runs"]


def test_another_trainer_cannot_continue_a_run(path: Path) -> None:
    other = keys.Signer.from_seed("trainer", b"\x55" * 32)
    enrolled = small.enrolment(small.SIGNERS["root"], other.public, "trainer", time=small.TIME)
    mine, theirs = small.chain("demo", steps(1)), small.chain("demo", steps(2), other)
    opened = small.envelope.open_envelope(theirs[2]).statement["predicate"]
    leaves = [merkle.leaf_hash(item) for item in mine]
    history = {"type": "history/1", "size": 2, "root": merkle.root(leaves).hex()}
    opened |= {"run": leaves[0].hex(), "prev": leaves[1].hex(), "history": history}
    small.raw_ledger(path, [*START, enrolled, *mine, small.seal("step", opened, signer=other)])
    assert "another key" in wrong(verify_ledger(path, small.TRUST))["runs"]


def test_a_late_revocation_is_told_but_is_no_fault(path: Path) -> None:
    run = small.chain("demo", steps(3))
    small.raw_ledger(path, [*START, *run, small.revocation("trainer", 9)], covered=[12])
    report = verify_ledger(path, small.TRUST)
    assert exit_code(report.checks) == 0, wrong(report)
    assert report.disowned == 2
    assert any("2 no longer count" in item.detail for item in report.checks)


@pytest.mark.parametrize("edit", ["size", "signer", "root", "order", "garbage", "future"])
def test_checkpoints_are_checked_against_the_entries(path: Path, edit: str) -> None:
    run = small.chain("demo", steps(3))
    small.raw_ledger(path, [*START, *run], covered=[7, 9])
    connection = sqlite3.connect(path, isolation_level=None)
    notes = [row[0] for row in connection.execute("SELECT note FROM checkpoints ORDER BY id")]
    stranger = keys.Signer.from_seed("log", b"\x66" * 32)
    body = notes[1].split("\n\n")[0] + "\n"
    log = small.SIGNERS["log"]
    change = {
        "size": (8, notes[1]),
        "signer": (9, sign_note(body, small.ORIGIN, stranger)),
        "root": (9, sign_note(body.replace("\n9\n", "\n8\n"), small.ORIGIN, log)),
        "order": (6, sign_note(small.Checkpoint(small.ORIGIN, 6, bytes(32)).format(), small.ORIGIN, log)),
        "garbage": (9, "garbage"),
        "future": (99, sign_note(small.Checkpoint(small.ORIGIN, 99, bytes(32)).format(), small.ORIGIN, log)),
    }[edit]
    connection.execute("DROP TRIGGER checkpoints_no_update")
    connection.execute("UPDATE checkpoints SET size = ?, note = ? WHERE id = 1", change)
    connection.close()
    assert list(wrong(verify_ledger(path, small.TRUST))) == ["checkpoints", "uncovered"]


def _logs(path: Path, data: list[bytes], notes: list[tuple[int, list[keys.Signer]]]) -> LedgerReport:
    """The verdict on a file of these entries with a checkpoint for each (size, signers)."""
    small.raw_ledger(path, data)
    leaves = [merkle.leaf_hash(item) for item in data]
    connection = sqlite3.connect(path, isolation_level=None)
    for number, (size, signers) in enumerate(notes):
        body = small.Checkpoint(small.ORIGIN, size, merkle.root(leaves[:size])).format()
        made = sign_note(body, small.ORIGIN, signers[0])
        made = add_signatures(made, [signature_line(body, small.ORIGIN, item) for item in signers[1:]])
        connection.execute("INSERT INTO checkpoints (id, size, note) VALUES (?, ?, ?)", (number, size, made))
    connection.close()
    return verify_ledger(path, small.TRUST)


def test_only_the_pinned_log_key_covers_entries(path: Path) -> None:
    """Another log key that the root enrolled does not stand in for the pinned one."""
    log, other = small.SIGNERS["log"], keys.Signer.from_seed("log", b"\x67" * 32)
    enrolled = small.enrolment(small.SIGNERS["root"], other.public, "log", time=small.TIME)
    data = [*START, enrolled]
    assert exit_code(_logs(path, data, [(8, [log])]).checks) == 0
    for notes, said in (
        ([], "no sound checkpoint by the pinned log key"),
        ([(8, [other])], "no sound checkpoint by the pinned log key"),
        ([(5, [log]), (8, [other])], "3 entries came after"),
    ):
        path.unlink()
        report = _logs(path, data, notes)
        assert not report.faults and exit_code(report.checks) == 2
        assert said in wrong(report)["uncovered"]
    path.unlink()
    early = _logs(path, data, [(7, [other])])
    assert "enrols later" in wrong(early)["checkpoints"] and exit_code(early.checks) == 1


def test_a_key_that_replaced_the_pinned_one_carries_on(path: Path) -> None:
    log, new = small.SIGNERS["log"], keys.Signer.from_seed("log", b"\x68" * 32)
    data = [*START, small.rotation("log", new), small.revocation("witness", 8)]
    assert exit_code(_logs(path, data, [(7, [log]), (8, [log, new]), (9, [new])]).checks) == 0
    path.unlink()
    assert "both signatures" in wrong(_logs(path, data, [(9, [new])]))["checkpoints"]
    path.unlink()
    ended = _logs(path, [*START, small.revocation("log", 5)], [(5, [log]), (8, [log])])
    assert "which ended at entry 5" in wrong(ended)["checkpoints"] and "3 entries" in wrong(ended)["uncovered"]


def test_other_keys_than_the_pinned_ones_are_not_believed(path: Path) -> None:
    small.raw_ledger(path, START, covered=[7])
    other = keys.Signer.from_seed("root", b"\x61" * 32)
    found = wrong(verify_ledger(path, Trust(small.ORIGIN, small.TRUST.log, other.public)))
    assert "signatures" in found
    renamed = Trust("example.org/x", Verifier("example.org/x", small.TRUST.log.key), small.TRUST.root)
    assert set(wrong(verify_ledger(path, renamed))) == {"file", "checkpoints", "uncovered"}


def test_every_changed_byte_of_a_stored_entry_is_found() -> None:
    ring = KeyRing(small.TRUST.root)
    for index, data in enumerate(small.key_entries()):
        ring.add(index, verify_entry(data, ring, index).statement["predicate"])
    opened = small.envelope.open_envelope(small.DATASET)
    row = (6, opened.payload, opened.signature, merkle.leaf_hash(small.DATASET))
    assert examine(row, ring).faults == ()
    for column in (1, 2, 3):
        for position in range(len(row[column])):
            changed = bytearray(row[column])
            changed[position] ^= 1
            edited = (*row[:column], bytes(changed), *row[column + 1 :])
            assert any(name == "entries" for name, _detail in examine(edited, ring).faults), (column, position)
    for edited in ((6, None, *row[2:]), (6, 7, *row[2:]), (6, row[1], "text", row[3]), (6, *row[1:3], None)):
        assert examine(edited, ring).faults


def test_a_damaged_file_is_reported_not_raised(path: Path) -> None:
    with small.with_run(path, 60) as ledger:
        ledger.sign_checkpoint(small.SIGNERS["log"])
    data = path.read_bytes()
    for start in range(100, len(data) - 64, len(data) // 40):
        path.write_bytes(data[:start] + b"\xa5" * 64 + data[start + 64 :])
        report = verify_ledger(path, small.TRUST, processes=1)
        assert exit_code(report.checks) in (0, 1)
        if not report.complete:
            assert {item.ok for item in report.checks} == {False, None}
