"""A small ledger of real form for the tests of store, verifier and command: invented roots, true chains."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitwitness.ledger import jcs, keys, merkle
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.commitments import Commitment, state_digest
from bitwitness.ledger.entry import entries, envelope
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.note import Verifier, sign_note
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.sqlite import derived_schema, nodes, schema
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import Trust

Json = dict[str, Any]
TIME = "2026-01-02T03:04:05Z"
ORIGIN = "example.org/small"
SIGNERS = {role: keys.Signer.from_seed(role, bytes([9, number]) * 16) for number, role in enumerate(keys.ROLES)}

TRUST = Trust(ORIGIN, Verifier(ORIGIN, SIGNERS["log"].public), SIGNERS["root"].public)


def digest(text: str) -> str:
    return merkle.leaf_hash(text.encode("utf-8")).hex()


def tree(kind: str, size: int, text: str) -> Json:
    return {"type": kind, "size": size, "root": digest(text)}


def state(step: int, name: str = "demo") -> Json:
    """control, weights, optimizer and state after `step` updates."""
    control = {"step": step, "tokens": 100 * step, "cursor": 4 * step}
    weights, optimizer = tree("weights/1", 38, f"{name} w {step}"), tree("optimizer/1", 76, f"{name} o {step}")
    digested = state_digest(control, Commitment.from_json(optimizer), Commitment.from_json(weights))
    return {"control": control, "weights": weights, "optimizer": optimizer, "state": digested}


def seal(kind: str, predicate: Mapping[str, Any], role: str | None = None, signer: keys.Signer | None = None) -> bytes:
    signer = signer or SIGNERS[role or entries.KINDS[kind].roles[0]]
    return envelope.seal(entries.statement(kind, None, {**predicate, "signer": signer.keyid}), signer)


def key_entries() -> list[bytes]:
    return [enrolment(SIGNERS["root"], SIGNERS[role].public, role, time=TIME) for role in keys.ROLES]


def revocation(role: str, index: int) -> bytes:
    public = SIGNERS[role].public
    key = {"algorithm": keys.ALGORITHM, "keyid": public.keyid, "public": public.raw.hex(), "role": role}
    return seal("key", {"action": "revoke", "key": key, "from": index, "time": TIME})


def rotation(role: str, fresh: keys.Signer) -> bytes:
    key = {"algorithm": keys.ALGORITHM, "keyid": fresh.keyid, "public": fresh.public.raw.hex(), "role": role}
    return seal("key", {"action": "rotate", "key": key, "replaces": SIGNERS[role].keyid, "time": TIME})


DATASET = seal(
    "dataset",
    {
        "name": "text",
        "dataset": tree("dataset/1", 3, "documents"),
        "documents": 3,
        "tokens": 1000,
        "bytes": 1000,
        "tokenizer": {"name": "bytes", "vocabulary": 257},
        "visibility": "public",
        "time": TIME,
    },
)


def genesis(name: str = "demo") -> Json:
    """The predicate of a run entry without signer and chain fields."""
    used = {"name": "text", "entry": merkle.leaf_hash(DATASET).hex(), "dataset": tree("dataset/1", 3, "documents")}
    return {
        "name": name,
        "config": {"model": {"width": 3}},
        "seed": jcs.u64_hex(1),
        "datasets": [{**used, "role": "train"}],
        "arithmetic": {
            "version": "arith/1",
            "operators": {"add": 1},
            "functions": {"exp": 1},
            "digest": digest("arith"),
        },
        "record": "1",
        "origin": ORIGIN,
        "steps": 100,
        "code": tree("code/1", 5, "code"),
        "init": {"kind": "seeded"},
        "constants": {"rope": digest("rope")},
        "observed": {"time": TIME},
        **state(0, name),
    }


def step(number: int, name: str = "demo") -> Json:
    """The predicate of a step entry without signer and chain fields."""
    computed = {
        "step": number,
        "loss": jcs.f64_hex(5.0 / number),
        "norm": jcs.f64_hex(1.0),
        "tokens": 100,
        "scalars": {"learning_rate": "3b449ba6", "clip": "3f800000"},
        **state(number, name),
    }
    return {"computed": computed, "observed": {"time": TIME, "seconds_us": 1234}}


def end(number: int, name: str = "demo") -> Json:
    return {"step": number, **state(number, name), "observed": {"time": TIME}}


def create(path: Path) -> Ledger:
    """A ledger with all keys enrolled and one dataset, open for writing."""
    ledger = Ledger.create(path, ORIGIN)
    ledger.append([*key_entries(), DATASET])
    return ledger


def begin(ledger: Ledger, name: str = "demo") -> RunWriter:
    return RunWriter.begin(ledger, SIGNERS["trainer"], genesis(name))


def with_run(path: Path, steps: int = 5, name: str = "demo") -> Ledger:
    """`create`, and a run with so many steps."""
    ledger = create(path)
    writer = begin(ledger, name)
    writer.append_all([("step", step(number, name)) for number in range(1, steps + 1)])
    return ledger


def chain(name: str, kinds: list[tuple[str, Json]], signer: keys.Signer | None = None) -> list[bytes]:
    """The sealed entries of a run, without a ledger: the genesis and what follows it."""
    leaves: list[bytes] = []
    made = []
    for kind, predicate in [("run", genesis(name)), *kinds]:
        root = merkle.root(leaves).hex()
        fields: Json = {"seq": len(leaves), "history": {"type": "history/1", "size": len(leaves), "root": root}}
        if leaves:
            fields |= {"run": leaves[0].hex(), "prev": leaves[-1].hex()}
        made.append(seal(kind, predicate | fields, signer=signer))
        leaves.append(merkle.leaf_hash(made[-1]))
    return made


def raw_ledger(path: Path, data: list[bytes], *, covered: list[int] | None = None) -> None:
    """A ledger file that no writer checked: these entries, and checkpoints signed over so many of them."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    schema.create(connection, ORIGIN)
    derived_schema.create(connection)
    leaves = [merkle.leaf_hash(item) for item in data]
    tree = merkle.Frontier()
    for index, item in enumerate(data):
        opened = envelope.open_envelope(item)
        made = nodes.column(tree.append(leaves[index]))
        row = (index, opened.payload.decode("utf-8"), opened.signature, leaves[index], made)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
    for number, size in enumerate(covered or []):
        body = Checkpoint(ORIGIN, size, merkle.root(leaves[:size])).format()
        note = sign_note(body, ORIGIN, SIGNERS["log"])
        connection.execute("INSERT INTO checkpoints (id, size, note) VALUES (?, ?, ?)", (number, size, note))
    connection.execute("COMMIT")
    connection.close()
