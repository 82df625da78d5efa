"""A fixed example of every entry kind: the keys of known seeds, a tiny run, and what is said about it.

And a log with its mirror.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import commitments, jcs, keys, merkle
from bitwitness.ledger.entry import entries, envelope
from bitwitness.ledger.follow.mirror import Mirror

from .followed import Log

Json = dict[str, Any]
TIME = "2026-01-02T03:04:05Z"
ARITHMETIC = {"version": "arith/1", "operators": {"add": 1}, "functions": {"exp": 1}, "digest": "a7" * 32}


def signers() -> dict[str, keys.Signer]:
    """One key per role; the seed is the role's number, 32 times."""
    return {role: keys.Signer.from_seed(role, bytes([number]) * 32) for number, role in enumerate(keys.ROLES, 1)}


@dataclass
class Examples:
    """`entries` in ledger order: (label, kind, statement, sealed bytes)."""

    signers: dict[str, keys.Signer] = field(default_factory=signers)
    entries: list[tuple[str, str, Json, bytes]] = field(default_factory=list)

    def add(self, label: str, kind: str, predicate: Json, role: str | None = None) -> str:
        """Seal one more entry; return its leaf hash in hex."""
        signer = self.signers[role or entries.KINDS[kind].roles[0]]
        statement = entries.statement(kind, None, {**predicate, "signer": signer.keyid})
        data = envelope.seal(statement, signer)
        self.entries.append((label, kind, statement, data))
        return merkle.leaf_hash(data).hex()

    def predicate(self, label: str) -> Json:
        """The predicate of an example; a fresh copy."""
        (data,) = [data for name, _kind, _statement, data in self.entries if name == label]
        predicate: Json = envelope.open_envelope(data).statement["predicate"]
        return predicate


def key_of(signer: keys.Signer, name: str | None = None) -> Json:
    key = {
        "algorithm": "ed25519",
        "keyid": signer.keyid,
        "public": signer.public.raw.hex(),
        "role": signer.role,
    }
    return key if name is None else {**key, "name": name}


def f32(values: list[float]) -> bytes:
    return b"".join(bytes.fromhex(jcs.f32_hex(value))[::-1] for value in values)


def state(step: int) -> Json:
    """control, weights, optimizer and state of a model with two tensors after `step` updates."""
    weight, bias = f32([step / 2.0] * 6), f32([-0.0, float(step)])
    weights = commitments.tensors("weights/1", {"w": ("F32", (2, 3), weight), "b": ("F32", (2,), bias)})
    moments: dict[str, commitments.TensorView] = {}
    for name in ("m", "v"):
        moments |= {f"{name}/w": ("F32", (2, 3), weight), f"{name}/b": ("F32", (2,), bias)}
    optimizer = commitments.tensors("optimizer/1", moments)
    control = {"step": step, "tokens": 100 * step, "cursor": 4 * step}
    return {
        "control": control,
        "weights": weights.to_json(),
        "optimizer": optimizer.to_json(),
        "state": commitments.state_digest(control, optimizer, weights),
    }


def build() -> Examples:
    made = Examples()
    run_hashes: list[bytes] = []

    def chained(label: str, kind: str, predicate: Json) -> str:
        chain: Json = {
            "seq": len(run_hashes),
            "history": commitments.from_leaf_hashes("history/1", run_hashes).to_json(),
        }
        if run_hashes:
            chain |= {"run": run_hashes[0].hex(), "prev": run_hashes[-1].hex()}
        leaf = made.add(label, kind, {**predicate, **chain})
        run_hashes.append(bytes.fromhex(leaf))
        return leaf

    observed = {"time": TIME, "host": "00112233445566ff", "threads": 2, "versions": {"python": "3.11.2"}}
    for role in keys.ROLES:
        enrolled = key_of(made.signers[role], f"{role}-1")
        made.add(f"key {role}", "key", {"action": "enrol", "key": enrolled, "time": TIME})

    text, salt = b"Hello, world.\n", bytes(32)
    tokens = b"".join(byte.to_bytes(2, "little") for byte in text)
    leaf = commitments.document_leaf(
        start=0,
        count=len(text),
        source=commitments.document_digest(text, salt),
        tokens=commitments.document_digest(tokens, salt),
    )
    corpus = commitments.tree("dataset/1", [leaf]).to_json()
    dataset = made.add(
        "dataset",
        "dataset",
        {
            "name": "hello",
            "dataset": corpus,
            "documents": 1,
            "tokens": len(text),
            "bytes": len(text),
            "tokenizer": {"name": "bytes", "vocabulary": 256},
            "visibility": "public",
            "license": "CC0-1.0",
            "time": TIME,
        },
    )
    use = {"name": "hello", "entry": dataset, "dataset": corpus}
    code = commitments.tree("code/1", [commitments.file_leaf("ledger/merkle.py", "ab" * 32)]).to_json()
    genesis: Json = {
        "name": "first",
        "config": {"model": {"width": 3, "rope_theta": jcs.f64_hex(10000.0)}, "optimizer": {"frozen": []}},
        "seed": jcs.u64_hex(7),
        "datasets": [{**use, "role": "train"}, {**use, "role": "held-out"}],
        "arithmetic": ARITHMETIC,
        "record": "1",
        "origin": "bitwitness.invalid/0123456789abcdef",
        "steps": 2,
        "code": code,
        "constants": {"rope": "cd" * 32},
        "observed": observed,
    }
    run = chained("run seeded", "run", {**genesis, "init": {"kind": "seeded"}, **state(0)})
    for step in (1, 2):
        computed = {
            **state(step),
            "step": step,
            "loss": jcs.f64_hex(2.5),
            "norm": jcs.f64_hex(0.1),
            "tokens": 100,
            "scalars": {"learning_rate": jcs.f32_hex(0.5), "clip": jcs.f32_hex(1.0), "decay": jcs.f32_hex(0.0)},
        }
        if step == 2:
            del computed["optimizer"]
            computed["parts"] = {"type": "parts/1", "size": 3, "root": "ee" * 32}
        label = "step" if step == 1 else "step thinned, parts"
        chained(label, "step", {"computed": computed, "observed": {"time": TIME, "seconds_us": 1234567}})
        if step == 1:
            stored = chained("state", "state", {"step": 1, "bytes": 96, **state(1)})
            chained(
                "halt",
                "halt",
                {
                    "step": 1,
                    "state": state(1)["state"],
                    "reason": "nan",
                    "observed": observed,
                    "loss": jcs.f64_hex(float("nan")),
                    "norm": jcs.f64_hex(float("inf")),
                },
            )
            chained("resume", "resume", {"from": 1, "step": 1, "state": state(1)["state"], "observed": observed})
    last = state(2)
    chained(
        "eval",
        "eval",
        {
            "step": 2,
            "state": last["state"],
            "weights": last["weights"],
            "dataset": {**use, "role": "held-out"},
            "computed": {"windows": 1, "tokens": 13, "nll": jcs.f64_hex(13.0), "mean": jcs.f64_hex(1.0)},
            "observed": observed,
        },
    )
    chained("end", "end", {"step": 2, **last, "observed": observed})

    for label, init, start in (
        (
            "run parent",
            {"kind": "parent", "run": run, "step": 1, "entry": stored, "state": state(1)["state"]},
            state(1),
        ),
        (
            "run import",
            {
                "kind": "import",
                "weights": state(0)["weights"],
                "files": [{"name": "model.safetensors", "sha256": "12" * 32}],
            },
            state(0),
        ),
    ):
        empty = dict(entries.EMPTY_HISTORY)
        made.add(label, "run", {**genesis, "name": "second", "init": init, **start, "seq": 0, "history": empty})

    intent: Json = {"run": run, "size": 15, "root": "4f" * 32, "first": 0, "last": 2, "samples": 1, "time": TIME}
    announced = made.add("audit-intent", "audit-intent", {**intent, "beacon": {"kind": "none"}})
    witness = {"kind": "cosignature", "witness": made.signers["witness"].keyid}
    made.add("audit-intent cosignature", "audit-intent", {**intent, "beacon": witness})
    chain = {"kind": "round", "source": "drand-quicknet", "round": 12345}
    made.add("audit-intent round", "audit-intent", {**intent, "beacon": chain})
    audit: Json = {
        "run": run,
        "intent": announced,
        "basis": "self-chosen",
        "seed": "5e" * 32,
        "steps": 2,
        "transcript": commitments.tree("transcript/1", [b"tap"]).to_json(),
        "code": code,
        "arithmetic": ARITHMETIC,
        "observed": observed,
    }
    unit = {"first": 1, "last": 2, "cause": "last", "start": 0}
    init_unit = {"first": 0, "last": 0, "cause": "init", "outcome": "match", "start": 0}
    whole = {**audit, "result": "match", "units": [init_unit, {**unit, "outcome": "match"}]}
    audited = made.add("audit", "audit", whole)
    found = {"step": 2, "field": "weights", "expected": last["state"], "computed": "77" * 32}
    found |= {"tap": "update/w", "operator": "adamw"}
    wrong = {**unit, "outcome": "mismatch", "reason": "step 2 differs", "found": found}
    made.add("audit mismatch", "audit", {**audit, "result": "mismatch", "units": [init_unit, wrong]})
    lost = {"first": 1, "last": 2, "cause": "last", "outcome": "unavailable", "reason": "the stored state is gone"}
    made.add("audit unavailable", "audit", {**audit, "result": "unavailable", "units": [init_unit, lost], "steps": 0})

    kept = {name: audit[name] for name in ("run", "steps", "transcript", "code", "arithmetic", "observed")}
    again: Json = {**kept, "audit": audited}
    made.add("recheck", "recheck", {**again, "result": "confirmed"})
    made.add("recheck refuted", "recheck", {**again, "result": "refuted", "reason": "its transcript is another one"})

    release = made.add(
        "release",
        "release",
        {
            "model": "demo-lm",
            "version": 1,
            "run": run,
            "step": 2,
            "state": last["state"],
            "weights": last["weights"],
            "dtype": "F32",
            "files": [{"name": "model.safetensors", "sha256": "34" * 32, "bytes": 4096}],
            "license": "Apache-2.0",
            "time": TIME,
        },
    )
    endorsement = {"release": release, "statement": "approved", "time": TIME}
    made.add("endorse auditor", "endorse", endorsement, "auditor")
    made.add("endorse publisher", "endorse", endorsement, "publisher")

    fresh = keys.Signer.from_seed("trainer", b"\x21" * 32)
    made.add(
        "key rotate",
        "key",
        {"action": "rotate", "key": key_of(fresh), "replaces": made.signers["trainer"].keyid, "time": TIME},
    )
    revoked = key_of(made.signers["auditor"])
    made.add("key revoke", "key", {"action": "revoke", "key": revoked, "from": 20, "time": TIME})

    said = [
        merkle.leaf_hash(data)
        for _, kind, _, data in made.entries
        if kind in ("audit-intent", "audit", "recheck", "eval")
    ]
    records, marks = commitments.from_leaf_hashes("records/1", said), commitments.tree("marks/1", [])
    made.add(
        "status",
        "status",
        {
            "sequence": 0,
            "time": TIME,
            "ledger": commitments.tree("ledger/1", (data for *_, data in made.entries)).to_json(),
            "revoked_keys": [{"keyid": made.signers["auditor"].keyid, "from": 20}],
            "revoked_releases": [release],
            "runs": commitments.tree("runs/1", [commitments.run_records_leaf(run, records, marks)]).to_json(),
        },
    )
    return made


@pytest.fixture(scope="session")
def examples() -> Examples:
    """One ledger's worth of examples, every kind and every variant of it."""
    return build()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    folder = tmp_path / "log"
    folder.mkdir()
    return Log(folder)


@pytest.fixture
def mirror(log: Log, tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "copy", log.policy)
