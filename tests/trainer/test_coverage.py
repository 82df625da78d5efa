"""Coverage: which audits count, for which steps, how many auditors, and whose turn is next."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from bitwitness.ledger import merkle
from bitwitness.ledger.cli import main
from bitwitness.ledger.entry.beacon import sample_seed
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import open_envelope, seal
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.keys import generate
from bitwitness.ledger.project import Project
from bitwitness.ledger.verify import KeyRing
from bitwitness.trainer.auditing.audit import audit
from bitwitness.trainer.auditing.coverage import Coverage, Segment, measure, open_coverage
from bitwitness.trainer.auditing.share import ranking
from bitwitness.trainer.cli.coverage import bar
from bitwitness.trainer.history import Entry, RunHistory, open_run
from bitwitness.trainer.run import train
from bitwitness.trainer.sample import units

from .conftest import small_config

RUN = "ab" * 32
ARITHMETIC = {"digest": "cd" * 32, "functions": {"exp": 1}, "operators": {"add": 1}, "version": "arith/1"}
ROOT = generate("root")
AUDITORS = sorted((generate("auditor") for _ in range(3)), key=lambda signer: signer.keyid)
A, B, C = (signer.keyid for signer in AUDITORS)


def ring(*ended: str) -> KeyRing:
    keys = KeyRing(ROOT.public)
    for number, signer in enumerate(AUDITORS):
        key = {"keyid": signer.keyid, "role": "auditor", "public": signer.public.raw.hex()}
        keys.add(number + 1, {"action": "enrol", "key": key})
    for keyid in ended:
        keys.add(9, {"action": "revoke", "from": 20, "key": {"keyid": keyid, "role": "auditor"}})
    return keys


def entry(index: int, auditor: str, *found: tuple[int, int, str], **changes: Any) -> Entry:
    steps = {step for first, last, outcome in found if outcome == "match" for step in range(max(first, 1), last + 1)}
    predicate = {
        "arithmetic": ARITHMETIC,
        "basis": "self-chosen",
        "intent": "00" * 32,
        "result": "match",
        "signer": auditor,
        "steps": len(steps),
        "transcript": {"size": 1},
        "units": [{"first": a, "last": b, "outcome": o, "cause": "chosen"} for a, b, o in found],
        **changes,
    }
    return Entry(index, "audit", predicate)


def measured(*about: Entry, keys: KeyRing | None = None, trusted: frozenset[str] = frozenset((A, B, C))) -> Coverage:
    genesis = {"arithmetic": ARITHMETIC, "control": {"step": 0}, "init": {"kind": "seeded"}, "name": "r"}
    chain = [Entry(0, "run", genesis)]
    chain += [Entry(i, "step", {"computed": {"step": i}}) for i in range(1, 13)]
    chain += [Entry(20 + i, "state", {"step": i}) for i in (4, 8, 12)]
    intent = Entry(9, "audit-intent", {"beacon": {"kind": "none"}}, bytes(32))
    return measure(RunHistory(RUN, chain, [intent, *about]), keys or ring(), trusted)


def test_distinct_auditors_are_counted_per_step() -> None:
    found = measured(
        entry(10, A, (0, 0, "match"), (1, 4, "match")),
        entry(11, A, (1, 4, "match")),
        entry(12, B, (3, 8, "match"), (9, 12, "unavailable")),
    )
    assert found.segments == (
        Segment(1, 2, (A,)),
        Segment(3, 4, tuple(sorted((A, B)))),
        Segment(5, 8, (B,)),
        Segment(9, 12, ()),
    )
    assert found.histogram() == {0: 4, 1: 6, 2: 2}
    assert found.counted == (10, 11, 12)
    assert bar(found) == "▒▒▓▓▒▒▒▒░░░░"
    assert found.to_json()["covered"] == {"0": 4, "1": 6, "2": 2}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (entry(10, A, (1, 4, "match"), arithmetic={}), "another operator table"),
        (entry(10, A, (1, 4, "match"), transcript={"size": 0}), "transcript is empty"),
        (entry(10, A, (1, 4, "match"), (4, 8, "match")), "overlap"),
        (entry(10, A, (9, 13, "match")), "of which the run has not all"),
        (entry(10, A, (1, 4, "match"), steps=3), "claims 3 compared steps"),
        (entry(30, C, (1, 4, "match")), "revoked"),
    ],
)
def test_an_audit_that_does_not_count_covers_nothing(bad: Entry, reason: str) -> None:
    found = measured(bad, keys=ring(C))
    assert found.histogram() == {0: 12}
    assert reason in found.refused[0][1]
    assert C not in found.auditors


def test_an_auditor_who_is_not_trusted_covers_nothing() -> None:
    found = measured(entry(10, A, (1, 4, "match")), trusted=frozenset((B,)))
    assert found.histogram() == {0: 12} and "self_chosen_auditors" in found.refused[0][1]


def forged(project: Project, like: int, **changes: Any) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    """Announce and answer as the audit at `like`, with the units that were not drawn in the place of those that were.

    Returns the new audit's index, what its seed draws, and what it claims.
    """
    auditor = project.signer("auditor")
    with project.open_ledger(writable=True) as ledger:
        said = open_envelope(ledger.entry(like)).statement["predicate"]
        (old,) = (i for i in range(like) if ledger.leaf_hash(i).hex() == said["intent"])
        intent = open_envelope(ledger.entry(old)).statement["predicate"]
        history = open_run(ledger, "r")
        cut = units(history.states, 6)
        seen = {"size": ledger.size, "root": ledger.root().hex()}
        data = seal(statement("audit-intent", None, {**intent, **seen}), auditor)
        ledger.append([data])
        leaf = merkle.leaf_hash(data)
        seed = sample_seed(leaf)
        drawn = [(u.first, u.last) for u in history.select(6, seed, 2) if u.cause == "sample"]
        claimed = [unit for unit in cut[:-1] if unit not in drawn][:2]
        kept = [unit for unit in said["units"] if unit["cause"] != "sample"]
        wanted = changes.get("units", claimed)
        mine = [{"cause": "sample", "first": a, "last": b, "outcome": "match"} for a, b in (wanted or drawn)]
        listed = sorted([*kept, *mine], key=lambda unit: int(unit["first"]))
        answer = {**said, "intent": leaf.hex(), "seed": seed.hex(), "units": listed}
        (index,) = ledger.append([seal(statement("audit", None, answer), auditor)])
        ledger.sign_checkpoint(project.signer("log"))
    return index, drawn, claimed


def test_a_sample_that_its_seed_does_not_draw_covers_nothing(project: Project) -> None:
    train(project, small_config(state_every=1, checkpoint_every=1), threads=2)
    honest = audit(project, "r", samples=2, threads=2)
    assert honest.entry is not None
    index, drawn, claimed = forged(project, honest.entry)
    also, _, _ = forged(project, honest.entry, units=[])
    with project.open_ledger() as ledger:
        found = open_coverage(project, ledger, "r")
    assert not set(drawn) & set(claimed) and found.counted == (honest.entry, also)
    assert [entry for entry, _ in found.refused] == [index] and "its seed draws" in found.refused[0][1]


def test_mismatches_are_named_whoever_found_them() -> None:
    wrong = entry(10, A, (1, 4, "mismatch"), (5, 8, "match"), result="mismatch")
    found = measured(wrong, trusted=frozenset())
    assert found.mismatches == (10,) and found.histogram() == {0: 12}
    assert measured(wrong).segments[1] == Segment(5, 8, (A,))


def test_the_chance_that_tampering_was_met() -> None:
    found = measured(entry(10, A, (1, 4, "match")))
    assert found.caught(0.25) == pytest.approx(1 - math.comb(8, 3) / math.comb(12, 3))
    assert found.caught(0.001) == pytest.approx(4 / 12)  # one step at least
    assert found.caught_together(0.25) == pytest.approx(1 / 3)  # 3 steps fit in one of 3 intervals
    assert found.caught_together(0.5) == pytest.approx(2 / 3)
    everything = measured(entry(10, A, (1, 12, "match")))
    assert everything.caught(0.001) == everything.caught_together(0.001) == 1.0
    assert measured().caught(0.5) == measured().caught_together(0.5) == 0.0


def test_auditors_share_a_run() -> None:
    found = measured(entry(10, A, (1, 4, "match")))
    for auditor in (A, B, C):
        turns = found.next_turns(auditor, 9)
        assert [turn.covered for turn in turns] == sorted(turn.covered for turn in turns)
        assert {(t.first, t.last) for t in turns} == {(5, 8), (9, 12)} | (set() if auditor == A else {(1, 4)})
        assert all(ranking(RUN, t.first, t.last, (A, B, C))[t.rank] == auditor for t in turns)
    many = measured()
    owners = {ranking(RUN, first, last, many.auditors)[0] for first, last in units(range(1, 100), 100)}
    assert owners == {A, B, C}


def test_an_interval_keeps_its_owner_when_another_auditor_leaves() -> None:
    every = units(range(1, 60), 60)
    before = [ranking(RUN, *unit, (A, B, C))[0] for unit in every]
    after = [ranking(RUN, *unit, (A, B))[0] for unit in every]
    assert all(new == old for new, old in zip(after, before, strict=True) if old != C)


def test_coverage_of_a_real_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(project, small_config(), threads=2)
    audit(project, "r", steps=(3, 4), threads=2)
    auditor = project.signer("auditor").keyid
    with project.open_ledger() as ledger:
        found = open_coverage(project, ledger, "r")
    assert found.histogram() == {0: 4, 1: 2}
    assert [(turn.first, turn.last) for turn in found.next_turns(auditor, 9)] == [(1, 2), (5, 6)]
    monkeypatch.chdir(project.root)
    assert main(["coverage", "r"]) == 0
    shown = capsys.readouterr().out
    assert "░░▒▒░░" in shown and "next for auditor" in shown
    assert main(["coverage", "r", "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert as_json["covered"] == {"0": 4, "1": 2} and as_json["next"][0]["first"] == 1
    for due in ((1, 2), (5, 6)):
        report = audit(project, "r", uncovered=True, threads=2)
        assert [(item.unit.first, item.unit.last) for item in report.units] == [due]
    with pytest.raises(BitwitnessError, match="covered every step"):
        audit(project, "r", uncovered=True, threads=2)
    project.trust_path.write_text(project.trust_path.read_text().replace(auditor, "00" * 32))
    with project.open_ledger() as ledger:
        assert open_coverage(project, ledger, "r").histogram() == {0: 6}
    project.trust_path.unlink()
    with project.open_ledger() as ledger:
        assert open_coverage(project, ledger, "r").histogram() == {0: 0, 1: 6}
