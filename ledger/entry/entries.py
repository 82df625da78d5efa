"""Statements: a kind of the table and its predicate, made and checked (docs/formats/entries.md).

Used by the writer and by the verifier alike, so what one may sign is what the other accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import jcs
from ..errors import EntryError, JsonError
from ..merkle import EMPTY_ROOT
from .envelope import MAX_ENTRY, Envelope, open_envelope
from .kinds import BY_PREDICATE_TYPE, KINDS, Kind

__all__ = ["EMPTY_HISTORY", "KINDS", "STATEMENT_TYPE", "Kind", "check", "kind_of", "read", "statement", "subject_of"]

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


def subject_of(kind: str, predicate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The subject that a predicate must have, by the kind's rule."""
    return [{"name": rule.name, "digest": {rule.algorithm: _at(predicate, rule.path)}} for rule in _kind(kind).subjects]


def statement(kind: str, subject: list[dict[str, Any]] | None, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto Statement v1 of `kind`, checked. With `subject` None it is derived from the predicate.

    Raises EntryError if anything does not fit the table.
    """
    row = _kind(kind)
    made = _made(row, predicate, [] if subject is None else subject)
    _check_predicate(row, made["predicate"])
    derived = subject_of(kind, predicate)
    if subject is None:
        made["subject"] = derived
    elif subject != derived:
        raise EntryError("not what the predicate says it is", "subject")
    return made


def canonical(kind: str, predicate: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """statement() with the subject that follows from the predicate, and its canonical bytes. Raises EntryError."""
    row = _kind(kind)
    if row is _STEP:
        try:
            made = _made(row, predicate, subject_of(kind, predicate))
            payload = jcs.write(made)
        except (JsonError, LookupError, TypeError, ValueError, RecursionError):
            payload = b""
        if _is_plain_step(payload):
            _check_rules(row, predicate)
            return made, payload
    made = statement(kind, None, predicate)
    return made, jcs.write(made)  # the schema leaves nothing else in it


_STEP = KINDS["step"]


def _is_plain_step(payload: bytes) -> bool:
    """Steps are nearly all entries: one expression over their bytes takes a third of the time that looking at each
    value does, and makes sure of the same. What it does not match is looked at.
    """
    return _STEP.form is not None and _STEP.form.fullmatch(payload) is not None


def read(data: bytes) -> tuple[Envelope, Kind]:
    """Open an entry's bytes, strictly, and check() what it states. Raises EntryError, JsonError.

    The signature is not checked here.
    """
    plain = False

    def parse(payload: bytes) -> Any:
        nonlocal plain
        if _is_plain_step(payload):
            value = jcs.value_of(payload)
            plain = jcs.write(value) == payload  # keys of a mapping may stand in any order for the form, and twice
            if plain:
                return value
        return jcs.parse(payload, max_bytes=MAX_ENTRY)

    envelope = open_envelope(data, parse)
    if not plain:
        return envelope, check(envelope.statement)
    _check_type(envelope.statement)
    _check_rules(_STEP, envelope.statement["predicate"])
    _check_subject(_STEP, envelope.statement)
    return envelope, _STEP


def check(statement: Mapping[str, Any]) -> Kind:
    """Check a statement against the table and return its kind. Raises EntryError naming the field.

    Signatures, roles of keys, and links to other entries are the verifier's business.
    """
    if statement.keys() != {"_type", "subject", "predicateType", "predicate"}:
        raise EntryError('a statement is {"_type","predicate","predicateType","subject"} and nothing else')
    _check_type(statement)
    predicate_type = statement["predicateType"]
    row = BY_PREDICATE_TYPE.get(predicate_type) if isinstance(predicate_type, str) else None
    if row is None:
        raise EntryError(f"unknown predicateType {str(predicate_type)[:100]!r}")
    predicate = statement["predicate"]
    _check_predicate(row, predicate)
    _check_subject(row, statement)
    return row


def kind_of(statement: Mapping[str, Any]) -> str:
    """The kind's name, from the predicate type alone."""
    row = BY_PREDICATE_TYPE.get(statement["predicateType"])
    if row is None:
        raise EntryError(f"unknown predicateType {str(statement['predicateType'])[:100]!r}")
    return row.name


EMPTY_HISTORY: Mapping[str, Any] = {"type": "history/1", "size": 0, "root": EMPTY_ROOT.hex()}
"""The history of a genesis."""


def _made(row: Kind, predicate: Mapping[str, Any], subject: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "_type": STATEMENT_TYPE,
        "subject": subject,
        "predicateType": row.predicate_type,
        "predicate": dict(predicate),
    }


def _check_type(statement: Mapping[str, Any]) -> None:
    if statement["_type"] != STATEMENT_TYPE:
        raise EntryError(f"_type is not {STATEMENT_TYPE}")


def _check_subject(row: Kind, statement: Mapping[str, Any]) -> None:
    if statement["subject"] != subject_of(row.name, statement["predicate"]):
        raise EntryError("not what the predicate says it is", "subject")


def _check_predicate(row: Kind, predicate: Any) -> None:
    row.schema.validate(predicate, "predicate")
    _check_rules(row, predicate)


def _check_rules(row: Kind, predicate: Mapping[str, Any]) -> None:
    for _text, rule in row.rules:
        rule(predicate)


def _kind(name: str) -> Kind:
    try:
        return KINDS[name]
    except KeyError:
        raise EntryError(f"unknown kind {name!r}") from None


def _at(predicate: Mapping[str, Any], path: str) -> Any:
    value: Any = predicate
    for part in path.split("."):
        value = value[part]
    return value
