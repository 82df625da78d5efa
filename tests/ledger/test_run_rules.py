"""What the entries of a run must say of each other, one contradiction at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bitwitness.ledger.commitments import Commitment, state_digest
from bitwitness.ledger.entry.run_rules import RunRuleBroken, RunRules, check_parent, essence
from bitwitness.ledger.errors import FoundWrong

from . import small_ledger as small

Entry = tuple[str, small.Json]


def said(kind: str, step: int) -> Entry:
    """An entry of `kind` that speaks of a step, with all that any kind says of it."""
    return kind, {"step": step, **small.state(step)}


def step(number: int) -> Entry:
    return "step", small.step(number)


def resume(origin: int, number: int) -> Entry:
    return "resume", {"from": origin, "step": number, "state": small.state(origin)["state"]}


def halt(number: int) -> Entry:
    return "halt", {"step": number, "state": small.state(number)["state"]}


def sound() -> list[Entry]:
    return [
        said("eval", 0),
        step(1),
        step(2),
        said("state", 2),
        said("eval", 2),
        step(3),
        halt(3),
        resume(2, 3),
        resume(0, 3),
        step(4),
        said("state", 4),
        said("state", 4),
        said("end", 4),
    ]


def follow(entries: list[Entry], genesis: small.Json | None = None) -> RunRules:
    rules = RunRules(essence("run", genesis or small.genesis()))
    for index, (kind, predicate) in enumerate(entries, 10):
        rules.follow(index, kind, essence(kind, predicate))
    return rules


def test_a_sound_run() -> None:
    rules = follow(sound())
    assert rules.last_step == 4
    for number in range(5):
        made = small.state(number)
        assert rules.made(number, made["state"], made["weights"])
        assert not rules.made(number + 1, made["state"], made["weights"])
        assert not rules.made(number - 1, made["state"], made["weights"])


OTHER = small.tree("weights/1", 38, "other")
_COMPUTED = "computed"


@pytest.mark.parametrize(
    ("place", "change", "says"),
    [
        (2, {_COMPUTED: {**small.step(2)[_COMPUTED], **small.state(3), "step": 3}}, "is step 3, where step 2 must"),
        (2, {_COMPUTED: {**small.step(2)[_COMPUTED], "tokens": 99}}, r"not 100 \+ 99"),
        (2, {_COMPUTED: {**small.step(2)[_COMPUTED], "control": {"step": 2, "tokens": 200, "cursor": 9}}}, "cursor"),
        (1, {_COMPUTED: {**small.step(1)[_COMPUTED], "control": {"step": 1, "tokens": 100, "cursor": 0}}}, "cursor"),
        (3, {"weights": OTHER}, "other weights"),
        (3, {"control": {"step": 2, "tokens": 5, "cursor": 8}}, "another control"),
        (3, {"optimizer": small.tree("optimizer/1", 76, "other")}, "other moments"),
        (3, {"state": "ab" * 32}, "another state"),
        (3, {"step": 500}, "speaks of step 500 after step 2"),
        (4, {"weights": OTHER}, "other weights"),
        (4, {"state": "ab" * 32}, "another state"),
        (4, {"step": 1}, "speaks of step 1 after step 2"),
        (6, {"state": "ab" * 32}, "another state"),
        (6, {"step": 77}, "speaks of step 77"),
        (7, {"from": 1}, "which no entry before it stores"),
        (7, {"from": 40, "step": 50}, "speaks of step 50"),
        (7, {"state": "ab" * 32}, "another state than the one stored at step 2"),
        (8, {"state": "ab" * 32}, "another state than the one stored at step 0"),
        (12, {"weights": OTHER}, "other weights"),
        (12, {"state": "ab" * 32}, "another state"),
        (12, {"optimizer": small.tree("optimizer/1", 76, "other")}, "other moments"),
        (12, {"step": 99}, "speaks of step 99"),
    ],
)
def test_every_contradiction_is_found(place: int, change: small.Json, says: str) -> None:
    entries = sound()
    kind, predicate = entries[place]
    entries[place] = kind, {**predicate, **change}
    with pytest.raises(RunRuleBroken, match=says) as raised:
        follow(entries)
    assert raised.value.index == 10 + place


def test_steps_come_once_each_and_nothing_after_the_end() -> None:
    for change, says in (
        (lambda run: run[:2] + run[1:], "where step 2 must follow"),
        (lambda run: run[:2] + run[3:], "speaks of step 2"),
        (lambda run: [*run, step(5)], "after the run's end"),
        (lambda run: [*run, said("end", 4)], "after the run's end"),
    ):
        altered: Callable[[list[Entry]], list[Entry]] = change
        with pytest.raises(RunRuleBroken, match=says):
            follow(altered(sound()))


def thinned(number: int) -> Entry:
    kind, predicate = step(number)
    computed: dict[str, Any] = dict(predicate["computed"])
    del computed["optimizer"]
    weights = Commitment.from_json(computed["weights"], type="weights/1")
    computed["state"] = state_digest(computed["control"], None, weights)
    return kind, {**predicate, "computed": computed}


def test_a_thinned_step_leaves_its_moments_to_the_stored_state() -> None:
    own = thinned(1)[1]["computed"]["state"]
    for entries in (
        [thinned(1), said("state", 1), halt(1), resume(1, 1), step(2)],
        [thinned(1), halt(1)],  # nothing says what its full digest is
        [thinned(1), ("eval", {**said("eval", 1)[1], "state": own}), said("end", 1)],
    ):
        follow(entries)
    other = small.tree("optimizer/1", 76, "other")
    again = {**said("state", 1)[1], "optimizer": other, "state": "cd" * 32}
    for entries, says in (
        ([thinned(1), said("state", 1), ("state", again)], "another state"),
        ([thinned(1), said("state", 1), ("halt", {**halt(1)[1], "state": "cd" * 32})], "another state"),
        ([thinned(1), ("eval", {**said("eval", 1)[1], "state": "cd" * 32})], "another state"),
        ([thinned(1), ("state", {**again, "weights": OTHER})], "other weights"),
    ):
        with pytest.raises(RunRuleBroken, match=says):
            follow(entries)


def test_a_run_with_a_parent_begins_with_what_the_parent_stored() -> None:
    made = small.state(3)
    init = {"kind": "parent", "run": "00" * 32, "step": 3, "entry": "22" * 32, "state": made["state"]}
    genesis = {**small.genesis(), **made, "init": init}
    check_parent(genesis, ("00" * 32, 3, made["state"]))
    child = follow([step(4)], genesis)
    assert child.last_step == 4
    for stored in (None, ("11" * 32, 3, made["state"]), ("00" * 32, 4, made["state"]), ("00" * 32, 3, "11" * 32)):
        with pytest.raises(FoundWrong):
            check_parent(genesis, stored)
