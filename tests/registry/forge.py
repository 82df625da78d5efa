"""A dishonest log: any entries, in any order, under one tree, checkpoint and keys; nothing is checked on the way.

The ledger's own writer refuses what is forged here, so the gate's checks are met with bundles that only someone
who holds the log's key could make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bitwitness.ledger import jcs, merkle
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.commitments import MARKS, tree
from bitwitness.ledger.entry.entries import KINDS, STATEMENT_TYPE, subject_of
from bitwitness.ledger.entry.envelope import open_envelope, seal
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.note import sign_note
from bitwitness.ledger.project import Project
from bitwitness.registry.bundles import bundle
from bitwitness.registry.status import RunSaid, is_record
from bitwitness.trainer.sample import Mark

Json = dict[str, Any]


class Forge:
    """The entries of a project's ledger, open to any change, and the bundle that a release folder gets from them."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.project, self.folder = project, folder
        with project.open_ledger() as ledger:
            self.origin = ledger.origin
            self.log: list[bytes] = [data for _, data in ledger.entries()]
        self.original = bundle.parse((folder / bundle.FILE_NAME).read_bytes())
        self.shown = {item.index for item in self.original.entries}
        self.weights = self.original.weights
        self.status = self.find("status") if self.original.status is not None else None
        self.opened: Json = {}

    def predicate(self, index: int) -> Json:
        predicate: Json = open_envelope(self.log[index]).statement["predicate"]
        return predicate

    def _type(self, index: int) -> str:
        return str(open_envelope(self.log[index]).statement["predicateType"])

    def find(self, kind: str, number: int = 0) -> int:
        """The log index of the ``number``-th entry of a kind."""
        wanted = KINDS[kind].predicate_type
        found = [i for i, data in enumerate(self.log) if open_envelope(data).statement["predicateType"] == wanted]
        return found[number]

    def leaf(self, index: int) -> str:
        return merkle.leaf_hash(self.log[index]).hex()

    def root(self, size: int) -> str:
        """The root of the first entries."""
        return merkle.root(map(merkle.leaf_hash, self.log[:size])).hex()

    def sign(
        self, kind: str, predicate: Mapping[str, Any], role: str | None = None, signer: Signer | None = None
    ) -> bytes:
        """Seal a statement without asking whether it may be made."""
        signer = signer or self.project.signer(role or KINDS[kind].roles[0])
        full = {**predicate, "signer": signer.keyid}
        return seal(
            {
                "_type": STATEMENT_TYPE,
                "subject": subject_of(kind, full),
                "predicateType": KINDS[kind].predicate_type,
                "predicate": full,
            },
            signer,
        )

    def add(
        self, kind: str, predicate: Mapping[str, Any], role: str | None = None, signer: Signer | None = None
    ) -> int:
        """Append an entry and show it in the bundle."""
        self.log.append(self.sign(kind, predicate, role, signer))
        self.shown.add(len(self.log) - 1)
        return len(self.log) - 1

    def change(self, index: int, role: str | None = None, signer: Signer | None = None, **changes: Any) -> None:
        """Sign entry ``index`` anew with other fields; None removes one. Later entries keep pointing at the old one."""
        statement = open_envelope(self.log[index]).statement
        kind = statement["predicateType"].rsplit("/", 2)[1]
        predicate = {key: value for key, value in {**statement["predicate"], **changes}.items() if value is not None}
        self.log[index] = self.sign(kind, predicate, role, signer)

    def restate(self, marks: Sequence[Mark] | None = None) -> None:
        """Have the log sign its status anew, over what now stands before it; with these marks, or the run's own."""
        assert self.status is not None
        run, shown = self.leaf(self.find("run")), [open_envelope(data).statement for data in self.log[: self.status]]
        kinds = [statement["predicateType"].rsplit("/", 2)[1] for statement in shown]
        said = [statement["predicate"] for statement in shown]
        listed = [self.log[i] for i, kind in enumerate(kinds) if is_record(kind, said[i])]
        if marks is None:
            marks = [Mark(i, kind, said[i]["step"]) for i, kind in enumerate(kinds) if kind in MARKS]
        leaf = RunSaid(tree("records/1", listed), marks).leaf(run)
        before = tree("ledger/1", self.log[: self.status]).to_json()
        self.change(self.status, runs=tree("runs/1", [leaf]).to_json(), ledger=before)
        shown_marks = [{"entry": mark.entry, "kind": mark.kind, "step": mark.step} for mark in marks]
        self.opened = {"runs": [{"marks": shown_marks, "position": 0, "proof": [], "run": run}]}

    def write(self, log_signer: Signer | None = None, origin: str | None = None, **changes: Any) -> None:
        """Write provenance.json with valid inclusion proofs; history proofs stay as they were."""
        origin = origin or self.origin
        hashes = [merkle.leaf_hash(data) for data in self.log]
        head = Checkpoint(origin, len(hashes), merkle.root(hashes))
        fields: Json = {
            "checkpoint": sign_note(head.format(), origin, log_signer or self.project.signer("log")),
            "entries": [
                {
                    "entry": jcs.parse(self.log[index]),
                    "index": index,
                    "proof": [node.hex() for node in merkle.inclusion_proof(index, hashes)],
                }
                for index in sorted(self.shown)
            ],
            "format": bundle.FORMAT,
            "history": [item.model_dump() for item in self.original.history],
            "weights": [item.model_dump() for item in self.weights],
        }
        intents = KINDS["audit-intent"].predicate_type
        seen = {i: self.predicate(i)["size"] for i in sorted(self.shown) if self._type(i) == intents}
        if seen:
            proofs = {i: merkle.consistency_proof(min(size, len(hashes)), hashes) for i, size in seen.items()}
            fields["intents"] = [
                {"consistency": [node.hex() for node in proof], "entry": i} for i, proof in proofs.items()
            ]
        if self.status is not None and self.status in self.shown and self.original.status is not None:
            consistency = [node.hex() for node in merkle.consistency_proof(self.status, hashes)]
            fields["status"] = {
                **self.original.status.model_dump(exclude_none=True),
                "consistency": consistency,
                **self.opened,
            }
        (self.folder / bundle.FILE_NAME).write_bytes(jcs.encode({**fields, **changes}))
