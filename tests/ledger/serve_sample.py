"""A small but complete ledger for the browsing tests, made by the ledger's own API, without the trainer.

`python -m tests.ledger.serve_sample DIR [STEPS]` makes one to look at.
"""

from __future__ import annotations

import hashlib
import math
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bitwitness.ledger import jcs, merkle
from bitwitness.ledger.commitments import Commitment, state_digest
from bitwitness.ledger.entry import entries, envelope
from bitwitness.ledger.entry.key_entries import enrolment
from bitwitness.ledger.keys import Signer, generate
from bitwitness.ledger.project import Project
from bitwitness.ledger.run_chain import RunWriter
from bitwitness.ledger.store import Ledger

HOSTILE = "<script>alert('x')</script>&\"<img src=//evil.example/x>"
LONG_NAME = "n" * 92 + "-.json.2"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def build(folder: Path, steps: int = 120) -> Project:
    """A project whose ledger has two runs, audits of every outcome, a model, a rotated key and checkpoints."""
    project = Project.create(folder)
    with project.open_ledger(writable=True) as ledger:
        sample = Sample(project, ledger)
        train = sample.dataset("pystdlib", "public")
        held_out = sample.dataset("letters", "private", license=HOSTILE)
        main = sample.run("demo", steps, train, held_out)
        half = steps // 2
        writer = main.writer
        sample.train(main, 1, half)
        if half % 40:
            writer.append("state", {**main.everything(half), "bytes": 12_582_912, "observed": sample.observed()})
        main.writer = RunWriter.open(ledger, sample.signers["trainer"], writer.run)
        stored = half // 40 * 40
        main.writer.append(
            "resume", {"from": stored, "step": half, "state": main.state(stored), "observed": sample.observed()}
        )
        sample.train(main, half + 1, steps)
        main.writer.append("end", {**main.everything(steps), "observed": sample.observed()})
        ledger.sign_checkpoint(sample.signers["log"])

        drawn = (min(21, steps), min(40, steps), "match", "sample")
        sample.audit(main, [(0, 0, "match", "init"), (steps - 9, steps, "match", "last"), drawn])
        release = sample.release(main, "demo-lm", 1, steps, license=HOSTILE)
        sample.endorse(release, "approved")
        sample.endorse(release, "deprecated", "publisher", reason=HOSTILE)
        sample.endorse(release, "alias", "publisher", alias="champion")

        broken = sample.run(LONG_NAME, steps, train, None, parent=(main, half))
        sample.train(broken, half + 1, half + 7)
        halt = {"step": half + 7, "state": broken.state(half + 7), "reason": "nan", "loss": jcs.f64_hex(math.nan)}
        broken.writer.append("halt", {**halt, "observed": sample.observed()})
        accused = sample.audit(
            broken,
            [
                (half + 1, half + 3, "match", "fork"),
                (half + 4, half + 5, "mismatch", "sample"),
                (half + 6, half + 6, "unavailable", "sample"),
                (half + 7, half + 7, "redacted", "sample"),
            ],
        )
        sample.intent(main, 5)
        sample.rotate("auditor")
        sample.recheck(broken, accused)
        ledger.sign_checkpoint(sample.signers["log"])
        sample.train(broken, half + 8, half + 8)  # beyond the newest checkpoint
    return project


class Run:
    """A run of the sample: invented roots and losses, real digests and chain."""

    def __init__(self, writer: RunWriter, name: str, held_out: dict[str, Any] | None) -> None:
        self.writer, self.name, self.held_out = writer, name, held_out

    def weights(self, step: int) -> dict[str, Any]:
        return _tree("weights/1", 14, f"{self.name} weights {step}")

    def optimizer(self, step: int) -> dict[str, Any]:
        return _tree("optimizer/1", 28, f"{self.name} optimizer {step}")

    @staticmethod
    def control(step: int) -> dict[str, int]:
        return {"step": step, "tokens": step * 1024, "cursor": step * 8}

    def state(self, step: int) -> str:
        return state_digest(self.control(step), self.optimizer(step), self.weights(step))

    def everything(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "state": self.state(step),
            "control": self.control(step),
            "weights": self.weights(step),
            "optimizer": self.optimizer(step),
        }


class Sample:
    """Writes the entries; times advance by a fixed amount, so that pages look alike each time."""

    def __init__(self, project: Project, ledger: Ledger) -> None:
        self.ledger = ledger
        self.signers: dict[str, Signer] = {
            role: project.signer(role) for role in ("root", "log", "trainer", "auditor", "publisher")
        }
        self._seconds = 0.0

    def time(self) -> str:
        return (START + timedelta(seconds=int(self._seconds))).strftime("%Y-%m-%dT%H:%M:%SZ")

    def observed(self, **more: Any) -> dict[str, Any]:
        return {"time": self.time(), "host": "00c0ffee00c0ffee", "threads": 2, **more}

    def add(self, kind: str, role: str, predicate: dict[str, Any]) -> str:
        """Append an entry outside any run's chain; return its leaf hash in hex."""
        signer = self.signers[role]
        data = envelope.seal(entries.statement(kind, None, {**predicate, "signer": signer.keyid}), signer)
        self.ledger.append([data])
        return merkle.leaf_hash(data).hex()

    def dataset(self, name: str, visibility: str, license: str | None = None) -> dict[str, Any]:
        root = _tree("dataset/1", 412, name)
        predicate = {
            "name": name,
            "dataset": root,
            "documents": 412,
            "tokens": 4_194_304,
            "bytes": 4_193_892,
            "tokenizer": {"name": "bytes", "vocabulary": 257},
            "visibility": visibility,
            "time": self.time(),
        }
        entry = self.add("dataset", "trainer", predicate | ({"license": license} if license else {}))
        return {"name": name, "entry": entry, "dataset": root}

    def run(
        self,
        name: str,
        steps: int,
        train: dict[str, Any],
        held_out: dict[str, Any] | None,
        parent: tuple[Run, int] | None = None,
    ) -> Run:
        uses = [{**train, "role": "train"}] + ([{**held_out, "role": "held-out"}] if held_out else [])
        init: dict[str, Any] = {"kind": "seeded"}
        start = 0
        model = Run.__new__(Run)
        model.name = name
        if parent:
            run, start = parent
            (stored,) = self.ledger.connection.execute(
                "SELECT leaf_hash FROM states JOIN entries ON idx = states.entry WHERE step = ?", (start,)
            ).fetchone()
            init = {"kind": "parent", "run": run.writer.run, "step": start, "entry": stored.hex()}
            init |= {"state": run.state(start)}
            model = run
        predicate = {
            "name": name,
            "config": {
                "model": {"preset": "nano", "layers": 4, "width": 128, "heads": 4, "note": HOSTILE + " é"},
                "optimizer": {"learning_rate": jcs.f64_hex(3e-3), "betas": [jcs.f64_hex(0.9), jcs.f64_hex(0.95)]},
                "data": {"window": 128, "shards": 2, "windows_per_shard": 4},
                "commit_optimizer_every": 1,
                "tied": True,
            },
            "seed": jcs.u64_hex(1),
            "datasets": uses,
            "arithmetic": {
                "version": "arith/1",
                "operators": {"add": 1},
                "functions": {"exp": 1},
                "digest": _digest("arith"),
            },
            "record": "1",
            "origin": self.ledger.origin,
            "steps": steps,
            "code": _tree("code/1", 60, "code"),
            "init": init,
            "control": model.control(start),
            "weights": model.weights(start),
            "optimizer": model.optimizer(start),
            "state": model.state(start),
            "constants": {"rope": _digest("rope")},
            "observed": self.observed(versions={"bitwitness": "0.1.0", "torch": "2.13.0", "python": "3.11.2"}),
        }
        writer = RunWriter.begin(self.ledger, self.signers["trainer"], predicate)
        made = Run(writer, name, uses[1] if held_out else None)
        if held_out:
            self.evaluate(made, 0, 5.5452)
        return made

    def train(self, run: Run, first: int, last: int) -> None:
        """Steps `first` … `last`, each 20th with a held-out loss and each 40th with a stored state."""
        records: list[tuple[str, dict[str, Any]]] = []
        for step in range(first, last + 1):
            self._seconds += 0.21
            noise = int(_digest(f"{run.name}{step}")[:6], 16) / 0xFFFFFF - 0.5
            loss = 1.85 + 3.7 * math.exp(-step / 28) + 0.35 * noise * math.exp(-step / 400)
            computed = {
                "step": step,
                "control": run.control(step),
                "state": run.state(step),
                "weights": run.weights(step),
                "optimizer": run.optimizer(step),
                "loss": jcs.f64_hex(loss),
                "norm": jcs.f64_hex(0.4 + abs(noise)),
                "tokens": 1024,
                "scalars": {"learning_rate": "3b449ba6", "clip": "3f800000", "bias1": "3dcccccd"},
            }
            micros = 200_000 + int(20_000 * noise)
            records.append(("step", {"computed": computed, "observed": self.observed(seconds_us=micros)}))
            if step % 40 == 0:
                stored = {**run.everything(step), "bytes": 12_582_912, "observed": self.observed()}
                records.append(("state", stored))
            if len(records) >= 200 or step == last or step % 20 == 0:
                run.writer.append_all(records)
                records = []
            if step % 20 == 0 and run.held_out:
                self.evaluate(run, step, loss + 0.06)

    def evaluate(self, run: Run, step: int, mean: float) -> None:
        computed = {"windows": 32, "tokens": 4064, "nll": jcs.f64_hex(mean * 4064), "mean": jcs.f64_hex(mean)}
        predicate = {
            "step": step,
            "state": run.state(step),
            "weights": run.weights(step),
            "dataset": run.held_out,
            "computed": computed,
            "observed": self.observed(),
        }
        run.writer.append("eval", predicate)

    def intent(self, run: Run, last: int) -> str:
        predicate = {
            "run": run.writer.run,
            "size": self.ledger.size,
            "root": self.ledger.root().hex(),
            "first": 0,
            "last": last,
            "samples": 3,
            "beacon": {"kind": "none"},
            "time": self.time(),
        }
        return self.add("audit-intent", "auditor", predicate)

    def audit(self, run: Run, units: list[tuple[int, int, str, str]]) -> str:
        made: list[dict[str, Any]] = []
        for first, last, outcome, cause in units:
            unit: dict[str, Any] = {"first": first, "last": last, "outcome": outcome, "cause": cause}
            if outcome == "mismatch":
                unit["found"] = {
                    "step": first,
                    "field": "weights",
                    "expected": run.state(first),
                    "computed": _digest("other"),
                }
            elif outcome != "match":
                unit["reason"] = HOSTILE
            made.append(unit)
        outcomes = {unit["outcome"] for unit in made}
        intent = self.intent(run, units[-1][1])
        predicate = {
            "run": run.writer.run,
            "intent": intent,
            "basis": "self-chosen",
            "seed": hashlib.sha256(b"bitwitness/sample/v1\0" + bytes.fromhex(intent)).hexdigest(),
            "steps": sum(last - first + 1 for first, last, outcome, _cause in units if outcome == "match" and last),
            "result": "mismatch" if "mismatch" in outcomes else "match",
            "units": made,
            "transcript": _tree("transcript/1", 900, "transcript"),
            "code": _tree("code/1", 60, "code"),
            "arithmetic": {
                "version": "arith/1",
                "operators": {"add": 1},
                "functions": {"exp": 1},
                "digest": _digest("arith"),
            },
            "observed": self.observed(seconds_us=4_200_000),
        }
        return self.add("audit", "auditor", predicate)

    def recheck(self, run: Run, audit: str) -> None:
        """Another auditor, enrolled for it, refutes an audit."""
        other = Signer.from_seed("auditor", b"\x77" * 32)
        self.ledger.append([enrolment(self.signers["root"], other.public, "auditor", name="checker")])
        predicate = {
            "run": run.writer.run,
            "audit": audit,
            "result": "refuted",
            "reason": HOSTILE,
            "steps": 2,
            "transcript": _tree("transcript/1", 900, "other transcript"),
            "code": _tree("code/1", 60, "code"),
            "arithmetic": {
                "version": "arith/1",
                "operators": {"add": 1},
                "functions": {"exp": 1},
                "digest": _digest("arith"),
            },
            "observed": self.observed(seconds_us=4_200_000),
        }
        self.signers["checker"] = other
        self.add("recheck", "checker", predicate)

    def release(self, run: Run, model: str, version: int, step: int, license: str) -> str:
        predicate = {
            "model": model,
            "version": version,
            "run": run.writer.run,
            "step": step,
            "state": run.state(step),
            "weights": run.weights(step),
            "dtype": "F32",
            "files": [
                {"name": "config.json", "sha256": _digest("config"), "bytes": 812},
                {"name": "model.safetensors", "sha256": _digest("weights"), "bytes": 4_198_400},
            ],
            "license": license,
            "time": self.time(),
        }
        return self.add("release", "publisher", predicate)

    def endorse(self, release: str, statement: str, role: str = "auditor", **fields: str) -> None:
        self.add("endorse", role, {"release": release, "statement": statement, "time": self.time(), **fields})

    def rotate(self, role: str) -> None:
        """Replace a key and enrol nothing else; then enrol and revoke a witness key."""
        fresh = generate(role)
        key = {"algorithm": "ed25519", "keyid": fresh.keyid, "public": fresh.public.raw.hex(), "role": role}
        rotation = {"action": "rotate", "key": key, "replaces": self.signers[role].keyid, "time": self.time()}
        self.add("key", "root", rotation)
        self.signers[role] = fresh
        witness = generate("witness")
        self.ledger.append([enrolment(self.signers["root"], witness.public, "witness", time=self.time())])
        named = {"algorithm": "ed25519", "keyid": witness.keyid, "public": witness.public.raw.hex(), "role": "witness"}
        revocation = {"action": "revoke", "key": named, "from": self.ledger.size - 1, "time": self.time()}
        self.add("key", "root", revocation)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _tree(kind: str, size: int, text: str) -> dict[str, Any]:
    return Commitment(kind, size, _digest(text)).to_json()


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 120)
