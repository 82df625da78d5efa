"""Drawing a sample again: what an audit may list, by one rule for whoever counts it."""

from __future__ import annotations

from typing import Any

import pytest

from bitwitness.trainer.sample import Mark, always_audited, misdrawn, select

SEED = bytes(range(32))
# Stored at 10, 20, …, 60; gone on with at step 23; step 40 was released, and after the intent step 60, too.
STATES = [Mark(100 + step, "state", step) for step in range(10, 70, 10)]
MARKS = [*STATES[:2], Mark(125, "resume", 23), *STATES[2:], Mark(170, "release", 40)]
GENESIS = {"control": {"step": 0}, "init": {"kind": "seeded"}}
LATER = [Mark(201, "release", 60), Mark(202, "state", 55)]
INTENT = {"last": 60, "samples": 1, "size": 180}


def audit(**changes: Any) -> dict[str, Any]:
    units = [{**vars(unit), "outcome": "match"} for unit in select(GENESIS, MARKS, 60, SEED, 1)]
    return {"basis": "beacon", "seed": SEED.hex(), "units": units, **changes}


def units(*leave: int, **changes: Any) -> list[dict[str, Any]]:
    return [{**unit, **changes} for n, unit in enumerate(audit()["units"]) if n not in leave]


def test_what_was_drawn() -> None:
    assert always_audited(GENESIS, MARKS, 60) == {60: "last", 40: "release", 23: "resume", 24: "resume"}
    listed = [(unit["first"], unit["last"], unit["cause"]) for unit in audit()["units"]]
    drawn = (1, 10, "sample")
    assert listed == [(0, 0, "init"), drawn, (21, 30, "resume"), (31, 40, "release"), (51, 60, "last")]
    assert misdrawn(audit(), INTENT, GENESIS, MARKS) is None
    assert misdrawn(audit(), INTENT, GENESIS, [*MARKS, *LATER]) is None  # what came after its intent is beyond it
    assert misdrawn(audit(basis="self-chosen", units=units(cause="chosen")), INTENT, GENESIS, MARKS) is None
    found = {"first": 41, "last": 50, "cause": "chosen", "outcome": "mismatch"}
    assert misdrawn(audit(units=[*units(), found]), INTENT, GENESIS, MARKS) is None


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (audit(units=[*units(1), {**units()[1], "first": 11, "last": 20}]), "steps 11 to 20 are not among"),
        (audit(units=[*units(), {**units()[1], "first": 41, "last": 50}]), "steps 41 to 50 are not among"),
        (audit(units=[*units(), {**units()[1], "first": 1, "last": 2}]), "steps 1 to 2 are not among"),
        (audit(units=[*units(1), {**units()[1], "cause": "release"}]), "steps 1 to 10 are not among"),
        (audit(units=units(1)), "steps 1 to 10, which its seed draws (sample), are not among what it replayed"),
        (audit(units=units(2)), "steps 21 to 30, which its seed draws (resume)"),
        (audit(units=units(3)), "steps 31 to 40, which its seed draws (release)"),
        (audit(units=units(0)), "steps 0 to 0, which its seed draws (init)"),
        (audit(units=units(cause="chosen")), "chosen by hand"),
        (audit(seed="13" * 32), "are not among what its seed draws"),
    ],
)
def test_what_was_not(said: dict[str, Any], reason: str) -> None:
    assert reason in str(misdrawn(said, INTENT, GENESIS, [*MARKS, *LATER]))


def test_marks_of_a_hostile_log_take_little_time() -> None:
    """Every step stored, resumed and released, beyond the calendar: linear, not the product of them."""
    far = [Mark(n, kind, n // 3) for n in range(60_000) for kind in ("state", "resume", "release")[n % 3 : n % 3 + 1]]
    said = audit(units=units(cause="sample"))
    assert misdrawn(said, {"last": 2**53 - 1, "samples": 2**53 - 1, "size": 2**53 - 1}, GENESIS, far) is not None


def test_a_run_that_goes_on_from_another_and_one_that_others_go_on_from() -> None:
    """Both sides of a fork are always audited; the initial state is that of the step gone on from."""
    child = {"control": {"step": 20}, "init": {"kind": "parent"}}
    marks = [*STATES, Mark(165, "fork", 40)]
    drawn = [(unit.first, unit.last, unit.cause) for unit in select(child, marks, 60, SEED, 0)]
    assert drawn == [(20, 20, "init"), (21, 30, "fork"), (31, 40, "fork"), (51, 60, "last")]
