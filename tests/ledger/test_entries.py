"""The table of kinds: golden bytes of every kind, and every field guarded."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies

from bitwitness.ledger import jcs, keys, merkle
from bitwitness.ledger.entry import entries, envelope
from bitwitness.ledger.entry._fields import Field
from bitwitness.ledger.errors import BitwitnessError, EntryError, JsonError


def test_golden_entries(examples: Any, golden: Any) -> None:
    """The bytes of every kind: payload in full, and the leaf hash of the signed entry."""
    file = golden("ledger-1.json")
    for label, _kind, _statement, data in examples.entries:
        opened = envelope.open_envelope(data)
        file.check(
            f"entry {label}",
            {
                "leaf_hash": merkle.leaf_hash(data).hex(),
                "payload": opened.payload.decode(),
                "sha256": hashlib.sha256(data).hexdigest(),
                "size": len(data),
            },
        )


def test_every_kind_has_an_example_that_passes(examples: Any) -> None:
    assert {kind for _, kind, _, _ in examples.entries} == set(entries.KINDS)
    by_id = {signer.keyid: signer for signer in examples.signers.values()}
    for _label, kind, statement, data in examples.entries:
        opened = envelope.open_envelope(data)
        assert opened.statement == statement
        row = entries.check(opened.statement)
        assert row.name == kind == entries.kind_of(statement)
        signer = by_id[opened.keyid]
        assert signer.role in row.roles
        opened.verify(signer.public)
        assert entries.statement(kind, statement["subject"], statement["predicate"]) == statement
        assert entries.statement(kind, None, statement["predicate"]) == statement


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def optional(fields: tuple[Field, ...], path: tuple[Any, ...]) -> bool:
    """Whether the table lets the field at `path` be left out."""
    names = [key for key in path if isinstance(key, str)]
    for number, name in enumerate(names):
        field = next((field for field in fields if field.name == name), None)
        if field is None:  # an entry of a mapping or of the free config
            return True
        if number == len(names) - 1:
            return field.optional
        fields = field.type.parts
    return True


def test_every_field_is_required_unless_marked_and_none_may_be_added(examples: Any) -> None:
    for _label, kind, statement, _data in examples.entries:
        row = entries.KINDS[kind]
        for path in leaves(statement["predicate"]):
            parent = at(statement["predicate"], path[:-1])
            free = {"config", "versions", "scalars", "constants", "operators", "functions"} & set(path)
            if isinstance(parent, dict) and not free and not optional(row.fields, path):
                changed = copy.deepcopy(statement)
                del at(changed["predicate"], path[:-1])[path[-1]]
                with pytest.raises(EntryError):
                    entries.check(changed)
            if isinstance(at(statement["predicate"], path), dict) and not free:
                changed = copy.deepcopy(statement)
                at(changed["predicate"], path)["surplus"] = 1
                with pytest.raises(EntryError):
                    entries.check(changed)
        changed = copy.deepcopy(statement)
        changed["predicate"]["surplus"] = "x"
        with pytest.raises(EntryError, match="unknown field 'surplus'"):
            entries.check(changed)


WRONG: tuple[Any, ...] = (None, 1.5, -1, 2**53, True, "", "x\n", [], {}, [{}], {"é": 1}, "é", "x" * 201, b"x")


def test_every_field_refuses_what_is_not_of_its_type(examples: Any) -> None:
    """Whatever wrong value stands in whatever field: an EntryError that names it, never another exception."""
    for _label, _kind, statement, _data in examples.entries:
        for path in leaves(statement["predicate"]):
            if "config" in path[:-1] or "versions" in path[:-1]:
                continue
            for value in WRONG:
                if path[-1] in ("config", "versions", "revoked_keys", "revoked_releases", "constants") and not value:
                    continue  # may be empty
                if path[-1] == "config" and isinstance(value, dict):
                    continue  # free; canonical JSON guards what is in it
                changed = copy.deepcopy(statement)
                at(changed["predicate"], path[:-1])[path[-1]] = value
                with pytest.raises(BitwitnessError) as caught:
                    entries.check(changed)
                assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


NEAR: tuple[Any, ...] = (
    0, 1, 10**15 - 1, 10**15, 2**53 - 1, 2**53, "0", "01", "7f800000", "7f800001", "ff8fffff", "7fc00000", "3f80000",
    "7ff0000000000000", "7ff0000000000001", "fff8000000000000", "7ff8000000000000", "3f800000\n", "a" * 64, "A" * 64,
    "a" * 63, "a" * 65, "g" * 64, "2026-02-28T23:59:59Z", "2026-02-29T00:00:00Z", "2026-01-31T00:00:00Z",
    "2028-02-29T00:00:00Z", "2026-02-30T00:00:00Z", "2026-04-31T00:00:00Z", "2026-00-10T00:00:00Z",
    "2026-10-00T00:00:00Z", "2026-01-02T24:00:00Z", "2026-01-02T03:60:05Z", "2026-01-02T03:04:60Z",
    "0000-01-02T03:04:05Z", "2026-01-02T03:04:05", "weights/1", "optimizer/1", {"root": "a" * 64, "size": 1},
    {"root": "a" * 64, "size": 1, "type": "weights/1"}, {"root": "a" * 64, "size": 0, "type": "weights/1"},
    {"clip": "3f800000"}, {"9": "3f800000"}, {"a" * 65: "3f800000"}, {f"a{n}": "3f800000" for n in range(33)},
)  # fmt: skip


def _changes(statement: Any) -> Iterator[Any]:
    """The statement with every value of its predicate changed in many ways, left out, or with another beside it."""
    changed = copy.deepcopy(statement)
    for path in list(leaves(statement["predicate"])):
        parent, name = at(changed["predicate"], path[:-1]), path[-1]
        before = parent[name]
        for value in (*NEAR, *WRONG):
            parent[name] = value
            yield changed
        if isinstance(parent, dict):
            del parent[name]
            yield changed
        parent[name] = before
        if isinstance(before, dict):
            before["surplus"] = 1
            yield changed
            del before["surplus"]
    yield changed


def test_what_the_form_of_a_kind_matches_is_of_the_kind(examples: Any) -> None:
    matched = {}
    for _label, kind, statement, _data in examples.entries:
        row = entries.KINDS[kind]
        for changed in _changes(statement) if row.form else ():
            try:
                payload = jcs.write(changed)
            except (TypeError, JsonError):
                continue
            if row.form is not None and row.form.fullmatch(payload):
                row.schema.validate(jcs.parse(payload)["predicate"], "predicate")
                matched[kind] = matched.get(kind, 0) + 1
    assert matched["step"] > 100 and len(matched) > 6, matched


@pytest.mark.parametrize("kind", sorted(name for name, row in entries.KINDS.items() if row.form))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
@given(data=strategies.data())
def test_whatever_bytes_a_form_matches_are_of_the_kind_if_they_are_canonical(
    kind: str, data: strategies.DataObject
) -> None:
    row = entries.KINDS[kind]
    assert row.form is not None
    drawn = data.draw(strategies.from_regex(row.form, fullmatch=True))
    value = jcs.value_of(drawn)
    payload = jcs.write(value)  # mappings may stand in another order, or hold a key twice
    assert jcs.parse(payload) == value
    if payload == drawn or row.form.fullmatch(payload):
        assert value["predicateType"] == row.predicate_type
        row.schema.validate(value["predicate"], "predicate")


def test_a_step_is_read_the_same_with_and_without_its_form(examples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one byte is another, and where the text around the predicate is not canonical."""

    def outcome(payload: bytes) -> Any:
        data = envelope.assemble(payload, examples.entries[0][2]["predicate"]["signer"], bytes(64))
        try:
            return entries.read(data)
        except BitwitnessError as error:
            return type(error), str(error)

    step = next(data for _label, kind, _statement, data in examples.entries if kind == "step")
    payload = envelope.open_envelope(step).payload
    payload = payload.replace(
        envelope.open_envelope(step).keyid.encode(), examples.entries[0][2]["predicate"]["signer"].encode()
    )
    payloads = [
        payload[:place] + bytes([byte]) + payload[place + 1 :]
        for place in range(len(payload))
        for byte in b'"\\0 ]\xc3'
    ]
    for old, new in (
        (b"https://in-toto", b"https:\\/\\/in-toto"),
        (b"in-toto.io", b"in-toto.\\u0069o"),
        (b'"subject":[{', b'"subject":[ {'),
        (b'"subject":[{', b'"subject":[{"a":1,'),
        (b'"subject":[', b'"subject":[],"subject":['),
        (b'"name":"weights"', b'"name":"weight\\u0073"'),
        (b'"bitwitnessTree1":"', b'"bitwitnessTree1":"0'),
        (b'"bitwitnessTree1":"', b'"sha256":"'),
        (b'"_type"', b'"_Type"'),
        (b'"step":', b'"step":0'),
        (b'"scalars":{', b'"scalars":{"zz":"00000000",'),
        (b'"scalars":{"clip"', b'"scalars":{"clip":"00000000","clip"'),
    ):
        assert old in payload
        payloads.append(payload.replace(old, new))
    quick = [outcome(item) for item in [payload, *payloads]]
    assert isinstance(quick[0][1], entries.Kind)
    monkeypatch.setitem(entries.KINDS["step"].__dict__, "form", None)
    assert quick == [outcome(item) for item in [payload, *payloads]]


def test_a_step_is_written_the_same_with_and_without_its_form(examples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(predicate: Any) -> Any:
        try:
            return copy.deepcopy(entries.canonical("step", predicate))
        except BitwitnessError as error:
            return type(error), str(error)

    steps = [statement for _label, kind, statement, _data in examples.entries if kind == "step"]
    assert steps
    quick = [outcome(changed["predicate"]) for step in steps for changed in _changes(step)]
    monkeypatch.setitem(entries.KINDS["step"].__dict__, "form", None)
    assert quick == [outcome(changed["predicate"]) for step in steps for changed in _changes(step)]
    assert entries.canonical("step", steps[0]["predicate"]) == (steps[0], jcs.encode(steps[0]))


def test_statement_level(examples: Any) -> None:
    good = examples.entries[0][2]
    for change in (
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicateType": "https://bitwitness.dev/key/v2"},
        {"predicateType": "https://bitwitness.dev/nothing/v1"},
        {"predicateType": 1},
        {"predicate": []},
        {"subject": []},
        {"subject": [*good["subject"], *good["subject"]]},
        {"extra": 1},
    ):
        with pytest.raises(EntryError):
            entries.check({**good, **change})
    with pytest.raises(EntryError, match="nothing else"):
        entries.check({"_type": entries.STATEMENT_TYPE})
    with pytest.raises(EntryError, match="unknown kind"):
        entries.statement("nothing", None, {})
    with pytest.raises(EntryError, match="subject"):
        entries.statement("key", [], good["predicate"])
    with pytest.raises(EntryError, match="unknown predicateType"):
        entries.kind_of({"predicateType": "x"})


@pytest.mark.parametrize(
    ("label", "change", "reason"),
    [
        ("key root", lambda p: p["key"].update(keyid="00" * 32), "SHA-256"),
        ("key root", lambda p: p["key"].update(public="00" * 32), "order"),
        ("key root", lambda p: p["key"].update(public="ff" * 32), "canonical"),
        ("key root", lambda p: p.update(replaces="00" * 32), "belongs to action 'rotate'"),
        ("key revoke", lambda p: p.pop("from"), "'from' is missing"),
        ("key rotate", lambda p: p.update(replaces=p["key"]["keyid"]), "itself"),
        ("dataset", lambda p: p.update(documents=2), "tree"),
        ("run seeded", lambda p: p.update(seq=1), "seq 0"),
        ("run seeded", lambda p: p.update(run="00" * 32), "unknown field 'run'"),
        ("run seeded", lambda p: p["control"].update(cursor=1), "0"),
        ("run seeded", lambda p: p["datasets"].pop(0), "role 'train'"),
        ("run seeded", lambda p: p["init"].update(step=1), "belongs to kind 'parent'"),
        ("run seeded", lambda p: p.update(state="00" * 32), "digest"),
        ("run seeded", lambda p: p["weights"].update(type="optimizer/1"), "not weights/1"),
        ("run seeded", lambda p: p["weights"].update(size=0), "empty tree"),
        ("run import", lambda p: p["init"]["weights"].update(size=3), "starts from"),
        ("run import", lambda p: p["init"]["files"][0].update(name="../x"), "file name"),
        ("run import", lambda p: p["init"]["files"][0].update(name="/x"), "file name"),
        ("run import", lambda p: p["init"]["files"][0].update(name="a/.x"), "file name"),
        ("run parent", lambda p: p["control"].update(tokens=3), "digest"),
        ("run parent", lambda p: p["init"].update(step=2), "goes on from"),
        ("run parent", lambda p: p["init"].update(state="00" * 32), "starts from"),
        ("resume", lambda p: p.update({"from": 2}), "after step"),
        ("step", lambda p: p.update(seq=2), "history"),
        ("step", lambda p: p["computed"].update(step=2), "step"),
        ("step", lambda p: p["computed"].update(tokens=0), "from 1"),
        ("step", lambda p: p["computed"].update(loss="7ff8000000000001"), "f64"),
        ("step", lambda p: p["computed"]["scalars"].update(clip="ffc00000"), "f32"),
        ("step", lambda p: p["computed"].update(scalars={}), "1 to 32"),
        ("step", lambda p: p["observed"].update(time="2026-02-30T03:04:05Z"), "time"),
        ("step", lambda p: p["observed"].update(time="2026-01-02T03:04:05+00:00"), "time"),
        ("step", lambda p: p["observed"].update(time="２026-01-02T03:04:05Z"), "time"),
        ("state", lambda p: p.update(step=2), "step"),
        ("audit-intent", lambda p: p.update(first=3), "after last"),
        ("audit-intent", lambda p: p["beacon"].update(round=1), "belongs"),
        ("audit", lambda p: p.update(result="inconclusive"), "follow"),
        ("audit", lambda p: p.update(units=[]), "list"),
        ("audit", lambda p: p["units"][0].update(outcome="unavailable"), "follow"),
        ("audit", lambda p: p["units"][1].update(start=2), "start: after first"),
        ("recheck", lambda p: p.update(reason="none"), "unless the result is 'confirmed'"),
        ("recheck refuted", lambda p: p.pop("reason"), "unless the result is 'confirmed'"),
        ("audit mismatch", lambda p: p.update(result="match"), "follow"),
        ("audit mismatch", lambda p: p["units"][1].pop("found"), "mismatch"),
        ("audit unavailable", lambda p: p.update(result="match"), "follow"),
        ("release", lambda p: p.update(version=0), "from 1"),
        ("release", lambda p: p.update(dtype="F31"), "F32"),
        ("status", lambda p: p["ledger"].update(type="history/1"), "ledger/1"),
    ],
)
def test_rules_between_fields(examples: Any, label: str, change: Any, reason: str) -> None:
    predicate = examples.predicate(label)
    kind = next(kind for name, kind, _, _ in examples.entries if name == label)
    change(predicate)
    with pytest.raises(BitwitnessError, match=reason):
        entries.statement(kind, None, predicate)


def test_subject_must_follow_from_the_predicate(examples: Any) -> None:
    for _label, _kind, statement, _data in examples.entries:
        for path in leaves(statement["subject"]):
            if isinstance(at(statement["subject"], path), str):
                changed = copy.deepcopy(statement)
                at(changed["subject"], path[:-1])[path[-1]] = "00" * 32
                with pytest.raises(EntryError, match="subject"):
                    entries.check(changed)


def test_an_audit_of_many_units_fits_an_entry(examples: Any) -> None:
    """512 units, the most that the table allows, stay below the 65,535 bytes of an entry."""
    predicate = examples.predicate("audit")
    unit = {"first": 10**6, "last": 10**6 + 100, "outcome": "match", "cause": "sample"}
    predicate["units"] = [unit] * 512
    signer = examples.signers["auditor"]
    envelope.seal(entries.statement("audit", None, predicate), signer)
    with pytest.raises(EntryError, match="list"):
        entries.statement("audit", None, {**predicate, "units": [unit] * 513})


def test_floats_anywhere_in_the_config_are_refused(examples: Any) -> None:
    predicate = examples.predicate("run seeded")
    predicate["config"]["rate"] = 0.5
    with pytest.raises(BitwitnessError, match=r"predicate\.config\.rate"):
        envelope.seal(entries.statement("run", None, predicate), examples.signers["trainer"])
    assert jcs.f64_hex(0.5) == "3fe0000000000000"


def test_root_alone_signs_keys() -> None:
    assert entries.KINDS["key"].roles == ("root",)
    assert all(set(kind.roles) <= set(keys.ROLES) for kind in entries.KINDS.values())
