"""Makes a small real project through the ledger's own API: keys, dataset, run, steps, audit, stored states.

The tensors are random bytes of a tiny Llama's names and shapes; nothing is trained, since the gate does not
care where bits come from, only that they are the signed ones.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.ledger import merkle
from bitwitness.ledger.commitments import document_leaf, state_digest, tensors, tree
from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.files.safetensors_header import write_file
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.store import Ledger
from bitwitness.trainer.config import Data, Model, Run, RunConfig
from bitwitness.trainer.models.layout import Layout

Json = dict[str, Any]
TIME = "2026-01-02T03:04:05Z"
CODE = tree("code/1", [b"one source file"])
ARITHMETIC = {"version": "arith/1", "operators": {"add": 1}, "functions": {"exp": 1}, "digest": "ab" * 32}
CONFIG = RunConfig(
    run=Run(name="small", steps=4, state_every=2),
    data=Data(train="text", held_out="text", window=8),
    model=Model(layers=1, width=4, heads=2, kv_heads=1, hidden=4, vocabulary=4),
)


@dataclass(frozen=True)
class SmallRun:
    """A project with one finished run of 4 steps, states stored at 2 and 4."""

    project: Project
    run: str

    @property
    def policy(self) -> Path:
        return self.project.trust_path


def weights_at(step: int, name: str = "small") -> dict[str, tuple[str, tuple[int, ...], memoryview]]:
    """Tensors that look like float32 weights after ``step`` updates; a function of step and run name."""
    rng = random.Random(f"{name} {step}")
    return {
        tensor: (
            "F32",
            slot.shape,
            memoryview(struct.pack(f"<{slot.size}f", *(rng.gauss(0, 1) for _ in range(slot.size)))),
        )
        for tensor, slot in Layout(CONFIG.model).slots.items()
    }


def state_at(step: int, name: str = "small") -> tuple[Json, dict[str, Any], dict[str, Any]]:
    """(fields of the state as entries spell them, weights, moments)."""
    weights = weights_at(step, name)
    moments = {
        f"{moment}/{tensor}": ("F32", shape, memoryview(bytes([step]) * data.nbytes))
        for tensor, (_, shape, data) in weights.items()
        for moment in "mv"
    }
    control = {"step": step, "tokens": 8 * step, "cursor": step}
    weights_tree, optimizer_tree = tensors("weights/1", weights), tensors("optimizer/1", moments)
    fields = {
        "control": control,
        "weights": weights_tree.to_json(),
        "optimizer": optimizer_tree.to_json(),
        "state": state_digest(control, optimizer_tree, weights_tree),
    }
    return fields, weights, moments


def append(ledger: Ledger, signer: Signer, kind: str, predicate: Json) -> tuple[int, str]:
    """Sign and append one entry outside a chain: (index, leaf hash)."""
    data = seal(statement(kind, None, {**predicate, "signer": signer.keyid}), signer)
    (index,) = ledger.append([data])
    return index, merkle.leaf_hash(data).hex()


def add_dataset(ledger: Ledger, trainer: Signer, name: str = "text") -> Json:
    """Append a dataset of one document; returns how a run refers to it."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    commitment = tree("dataset/1", [document_leaf(count=99, source=digest, start=0, tokens=digest)])
    _, leaf = append(
        ledger,
        trainer,
        "dataset",
        {
            "name": name,
            "dataset": commitment.to_json(),
            "documents": 1,
            "tokens": 99,
            "bytes": 99,
            "tokenizer": {"name": "bytes", "vocabulary": 4},
            "visibility": "public",
            "time": TIME,
        },
    )
    return {"name": name, "entry": leaf, "dataset": commitment.to_json()}


def add_run(project: Project, ledger: Ledger, dataset: Json, name: str = "small", **changes: Any) -> RunWriter:
    """Append a genesis."""
    fields, _, _ = state_at(0, name)
    predicate = {
        "name": name,
        "config": CONFIG.resolved(),
        "seed": "00" * 8,
        "datasets": [{**dataset, "role": "train"}],
        "arithmetic": ARITHMETIC,
        "record": "1",
        "origin": ledger.origin,
        "steps": 4,
        "code": CODE.to_json(),
        "init": {"kind": "seeded"},
        "constants": {"rope": "cd" * 32},
        "observed": {"time": TIME},
        **fields,
        **changes,
    }
    return RunWriter.begin(ledger, project.signer("trainer"), predicate)


def add_step(writer: RunWriter, step: int, name: str = "small", **changes: Any) -> int:
    fields, _, _ = state_at(step, name)
    computed = {
        **fields,
        "step": step,
        "loss": "4008000000000000",
        "norm": "3ff0000000000000",
        "tokens": 8,
        "scalars": {"learning_rate": "3a83126f"},
        **changes,
    }
    return writer.append("step", {"computed": computed, "observed": {"time": TIME}})


def store_state(project: Project, writer: RunWriter, step: int, name: str = "small") -> None:
    """Write the files of a state and its entry."""
    fields, weights, moments = state_at(step, name)
    folder = project.runs_dir / name / "states" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    write_file(folder / "weights.safetensors", weights)
    write_file(folder / "optimizer.safetensors", moments)
    size = sum(data.nbytes for _, _, data in [*weights.values(), *moments.values()])
    writer.append("state", {"step": step, "bytes": size, **fields})


def add_eval(writer: RunWriter, step: int, dataset: Json, name: str = "small") -> None:
    fields, _, _ = state_at(step, name)
    computed = {"windows": 1, "tokens": 8, "nll": "4034000000000000", "mean": "4004000000000000"}
    writer.append(
        "eval",
        {
            "step": step,
            "state": fields["state"],
            "weights": fields["weights"],
            "dataset": {**dataset, "role": "held-out"},
            "computed": computed,
            "observed": {"time": TIME},
        },
    )


def add_end(writer: RunWriter, step: int, name: str = "small") -> None:
    fields, _, _ = state_at(step, name)
    writer.append("end", {"step": step, "observed": {"time": TIME}, **fields})


def add_intent(
    project: Project, ledger: Ledger, run: str, samples: int = 0, role: str = "auditor", beacon: Json | None = None
) -> str:
    intent = {
        "run": run,
        "size": ledger.size,
        "root": ledger.root().hex(),
        "first": 0,
        "last": 4,
        "samples": samples,
        "beacon": beacon or {"kind": "none"},
        "time": TIME,
    }
    return append(ledger, project.signer(role), "audit-intent", intent)[1]


def add_audit(project: Project, ledger: Ledger, run: str, intent: str, outcome: str = "match", **changes: Any) -> int:
    """Append an audit of all 4 steps with one outcome for the last unit."""
    released = ledger.connection.execute("SELECT 1 FROM releases").fetchone()
    unit: Json = {"first": 3, "last": 4, "outcome": outcome, "cause": "release" if released else "last"}
    if outcome == "mismatch":
        unit["found"] = {"step": 3, "expected": "aa" * 32, "computed": "bb" * 32}
    audit = {
        "run": run,
        "intent": intent,
        "basis": "self-chosen",
        "seed": hashlib.sha256(b"bitwitness/sample/v1\0" + bytes.fromhex(intent)).hexdigest(),
        "steps": 4,
        "result": outcome,
        "units": [{"first": 0, "last": 0, "outcome": "match", "cause": "init"}, unit],
        "transcript": tree("transcript/1", [b"tap"]).to_json(),
        "code": CODE.to_json(),
        "arithmetic": ARITHMETIC,
        "observed": {"time": TIME},
        **changes,
    }
    return append(ledger, project.signer("auditor"), "audit", audit)[0]


def _create(folder: Path) -> Project:
    """A project whose policy asks for a status, too, as the comment in its trust.toml says."""
    project = Project.create(folder)
    text = project.trust_path.read_text()
    project.trust_path.write_text(text.replace("# require_status = true", "require_status = true"))
    return project


def make(folder: Path, *, audited: bool = True, stored: Sequence[int] = (2, 4)) -> SmallRun:
    """A project in ``folder`` with one finished, stored and audited run; no model yet."""
    project = _create(folder)
    with project.open_ledger(writable=True) as ledger:
        dataset = add_dataset(ledger, project.signer("trainer"))
        writer = add_run(project, ledger, dataset)
        for step in range(1, 5):
            add_step(writer, step)
            if step in stored:
                store_state(project, writer, step)
                add_eval(writer, step, dataset)
        add_end(writer, 4)
        if audited:
            add_audit(project, ledger, writer.run, add_intent(project, ledger, writer.run))
        return SmallRun(project, writer.run)


def make_lean(folder: Path) -> SmallRun:
    """The smallest run that can be released: one step, stored, neither measured nor audited."""
    project = _create(folder)
    with project.open_ledger(writable=True) as ledger:
        writer = add_run(project, ledger, add_dataset(ledger, project.signer("trainer")))
        add_step(writer, 1)
        store_state(project, writer, 1)
        return SmallRun(project, writer.run)
