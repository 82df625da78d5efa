"""Audits that were announced and have no result yet: a folder for each, gone when its result is handed over.

intent.json            the signed intent, written before anybody else sees it

and beside it how far its replay came (replay_work.py). An intent counts only if the auditor signed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwitness.ledger import merkle
from bitwitness.ledger.entry.entries import check
from bitwitness.ledger.entry.envelope import MAX_ENTRY, open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files.durable import write_whole
from bitwitness.ledger.files.regular_file import read_regular
from bitwitness.ledger.keys import Signer

from .replay_work import ReplayWork

Json = dict[str, Any]


@dataclass(frozen=True)
class AuditWork:
    """One announced audit."""

    intent: bytes
    replay: ReplayWork
    resumed: bool = False

    @property
    def predicate(self) -> Json:
        predicate: Json = open_envelope(self.intent).statement["predicate"]
        return predicate

    @property
    def leaf_hash(self) -> bytes:
        return merkle.leaf_hash(self.intent)

    @classmethod
    def begin(cls, root: Path, intent: bytes, auditor: Signer) -> AuditWork:
        """Keep an intent that is about to be announced."""
        leaf = merkle.leaf_hash(intent)
        folder = root / leaf.hex()[:32]
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "intent.json", intent)
        return cls(intent, ReplayWork(folder, leaf, auditor))

    @classmethod
    def of(cls, root: Path, intent: bytes, auditor: Signer) -> AuditWork:
        """What there is of the audit that this intent announced, else a new folder for it."""
        found = (work for work in cls.unfinished(root, auditor) if work.intent == intent)
        return next(found, None) or cls.begin(root, intent, auditor)

    @classmethod
    def unfinished(cls, root: Path, auditor: Signer) -> Iterator[AuditWork]:
        """Every audit that this auditor announced and did not finish. What he did not sign is passed over."""
        for folder in sorted(root.glob("*")):
            try:
                intent = read_regular(folder / "intent.json", MAX_ENTRY)
                opened = open_envelope(intent)
                opened.verify(auditor.public)
                if check(opened.statement).name != "audit-intent":  # what else he signed, anyone may put there
                    continue
            except (OSError, BitwitnessError):
                continue
            yield cls(intent, ReplayWork.open(folder, merkle.leaf_hash(intent), auditor), resumed=True)

    def finish(self) -> None:
        """The result is out of this program's hands."""
        self.replay.finish()
