"""Rules between the fields of one predicate, each raising EntryError: what a type alone cannot say (kinds.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import keys
from ..commitments import digest_of_checked
from ._fields import fail

Rule = Callable[[Mapping[str, Any]], None]

_DIGESTED = ("control", "optimizer", "weights")


def key_is_its_id(predicate: Mapping[str, Any]) -> None:
    key = predicate["key"]
    if keys.PublicKey.from_hex(key["public"]).keyid != key["keyid"]:
        fail("predicate.key.keyid", "not the SHA-256 of the public key")
    if predicate.get("replaces") == key["keyid"]:
        fail("predicate.replaces", "a key cannot replace itself")


def documents_are_leaves(predicate: Mapping[str, Any]) -> None:
    if predicate["documents"] != predicate["dataset"]["size"]:
        fail("predicate.documents", "not the size of the dataset's tree")


def history_is_before(predicate: Mapping[str, Any]) -> None:
    if predicate["history"]["size"] != predicate["seq"]:
        fail("predicate.history", "its size is not seq, the number of the run's entries before this one")


def genesis_is_first(predicate: Mapping[str, Any]) -> None:
    if predicate["seq"] != 0:
        fail("predicate.seq", "a genesis has seq 0")


def fresh_control(predicate: Mapping[str, Any]) -> None:
    if predicate["init"]["kind"] != "parent" and any(predicate["control"].values()):
        fail("predicate.control", "a run that does not continue another starts at step, tokens and cursor 0")


def imported_weights(predicate: Mapping[str, Any]) -> None:
    init = predicate["init"]
    if init["kind"] == "import" and init["weights"] != predicate["weights"]:
        fail("predicate.init.weights", "not the weights that the run starts from")


def parents_state(predicate: Mapping[str, Any]) -> None:
    init = predicate["init"]
    if init["kind"] != "parent":
        return
    if init["step"] != predicate["control"]["step"]:
        fail("predicate.init.step", "not the step that the run goes on from")
    if init["state"] != predicate["state"]:
        fail("predicate.init.state", "not the state that the run starts from")


def one_training_set(predicate: Mapping[str, Any]) -> None:
    if not any(item["role"] == "train" for item in predicate["datasets"]):
        fail("predicate.datasets", "none has the role 'train'")


def state_is_its_digest(predicate: Mapping[str, Any]) -> None:
    if "optimizer" not in predicate:
        return
    # The kind's schema has checked the three; it comes before every rule.
    if digest_of_checked({name: predicate[name] for name in _DIGESTED}) != predicate["state"]:
        fail("predicate.state", "not the digest of control, optimizer and weights")


def control_is_step(predicate: Mapping[str, Any]) -> None:
    if predicate["control"]["step"] != predicate["step"]:
        fail("predicate.control.step", "not the step of the entry")


def computed(rule: Rule) -> Rule:
    return lambda predicate: rule(predicate["computed"])


def range_ascends(predicate: Mapping[str, Any]) -> None:
    if predicate["first"] > predicate["last"]:
        fail("predicate.first", "after last")


def resumes_backwards(predicate: Mapping[str, Any]) -> None:
    if predicate["from"] > predicate["step"]:
        fail("predicate.from", "after step")


def alias_is_stated(predicate: Mapping[str, Any]) -> None:
    if ("alias" in predicate) != (predicate["statement"] in ("alias", "unalias")):
        fail("predicate.alias", "stands with the statements 'alias' and 'unalias', and only there")


def reason_unless_confirmed(predicate: Mapping[str, Any]) -> None:
    if ("reason" in predicate) != (predicate["result"] != "confirmed"):
        fail("predicate.reason", "stands unless the result is 'confirmed'")


def result_of_units(predicate: Mapping[str, Any]) -> None:
    units = predicate["units"]
    for number, unit in enumerate(units):
        if unit["first"] > unit["last"]:
            fail(f"predicate.units[{number}].first", "after last")
        if "part" in unit and not 1 <= unit["first"] == unit["last"]:
            fail(f"predicate.units[{number}].part", "stands in a unit of one step")
        if unit.get("start", 0) > unit["first"]:
            fail(f"predicate.units[{number}].start", "after first")
        if ("found" in unit) != (unit["outcome"] == "mismatch"):
            fail(f"predicate.units[{number}].found", "stands with the outcome 'mismatch', and only there")
    outcomes = {unit["outcome"] for unit in units}
    result = predicate["result"]
    if "mismatch" in outcomes:
        fits = result == "mismatch"
    else:
        fits = result in outcomes and (result != "match" or outcomes == {"match"})
    if not fits:
        fail("predicate.result", f"{result!r} does not follow from the units' outcomes")
