"""`status.json`: the log's newest `status` entry, as it travels alone to gates that hold older bundles.

A bundle tells what its checkpoint covers. This file tells what came later: every revoked key and release, and for every
run the commitment over all that was said of it, so that a gate can tell whether its bundle still has it all
(docs/formats/status.md). Like a bundle it is believed only as far as the policy's keys signed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from bitwitness.ledger import jcs
from bitwitness.ledger.checkpoint import Checkpoint, parse_checkpoint
from bitwitness.ledger.commitments import Commitment, run_records_leaf, tree
from bitwitness.ledger.errors import BitwitnessError, FormatError
from bitwitness.ledger.files.schema_error import first_reason
from bitwitness.ledger.note import Note, parse_note
from bitwitness.ledger.verify import KeyRing

from ..policy import Policy
from ..status import marks_commitment, newest_status, run_records
from . import log_line
from .bundle import Anchors, Hash, LoggedEntry, Strict, ascending_entries
from .evidence import Entry, EvidenceRefused, authenticate, open_checkpoint, open_entries

if TYPE_CHECKING:
    from bitwitness.ledger.store import Ledger

FORMAT = "bitwitness/status/1"
SIZE_LIMIT = 64 << 20


class StatusFileError(FormatError):
    """Not a status file of this format; ``reason`` is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__("status file", reason)


class NoStatus(BitwitnessError):
    """The ledger has no status that its checkpoint covers."""


class Records(Strict):
    """`marks/1` and `records/1` of one run, and the run's id."""

    marks: dict[str, Any]
    records: dict[str, Any]
    run: Hash


class StatusFile(Strict):
    """``entries`` are all `key` entries and one `status`, proven to ``checkpoint``; ``runs`` are its signed leaves.

    ``anchors`` are the checkpoints by which one log key handed over to the next; absent where none did.
    """

    anchors: Anchors | None = None
    checkpoint: Annotated[str, Field(max_length=1 << 20)]
    entries: Annotated[list[LoggedEntry], AfterValidator(ascending_entries)]
    format: Literal["bitwitness/status/1"]
    runs: list[Records]

    def encode(self) -> bytes:
        return jcs.encode(self.model_dump(exclude_none=True))


@dataclass(frozen=True)
class News:
    """An opened status file: the entry, what it lists per run, and the keys and checkpoint that it stands on."""

    entry: Entry
    head: Checkpoint
    signed: Note
    keys: KeyRing
    runs: Mapping[str, Commitment]


def make(ledger: Ledger, note: str) -> StatusFile:
    """The file for the newest status below the checkpoint ``note`` of this ledger. Raises NoStatus."""
    size = parse_checkpoint(parse_note(note).text).size
    with ledger.snapshot():
        index = newest_status(ledger, size)
        if index is None:
            raise NoStatus("no status stands below the checkpoint; `ledger status` signs one")
        keys = [int(row[0]) for row in ledger.connection.execute("SELECT entry FROM log WHERE kind = 'key'")]
        entries = [
            LoggedEntry(
                entry=jcs.parse(ledger.entry(number)),
                index=number,
                proof=[node.hex() for node in ledger.inclusion_proof(number, size)],
            )
            for number in sorted({*keys, index})
            if number < size
        ]
        runs = [
            Records(marks=marks_commitment(said.marks).to_json(), records=said.records.to_json(), run=run)
            for run, said in run_records(ledger, index).items()
        ]
        anchors = log_line.handovers(ledger, size)
    return StatusFile(
        anchors=[anchors[key] for key in sorted(anchors)] or None,
        checkpoint=note,
        entries=entries,
        format="bitwitness/status/1",
        runs=runs,
    )


def open_status(data: bytes, policy: Policy) -> News:
    """Check the bytes of a status file against a policy's keys. Raises StatusFileError, EvidenceRefused."""
    read = _parse(data)
    anchors = read.anchors or ()
    head, signed, _ = open_checkpoint(read.checkpoint, read.entries, anchors, policy)
    entries = open_entries(read.entries, head)
    keys, _ = authenticate(entries, head, signed, policy, anchors)
    statuses = [entry for entry in entries if entry.kind == "status"]
    strange = [entry for entry in entries if entry.kind not in ("key", "status")]
    if len(statuses) != 1 or strange:
        raise EvidenceRefused("a status file holds one status entry and key entries, and nothing else")
    (entry,) = statuses
    try:
        runs = {item.run: Commitment.from_json(item.records, type="records/1") for item in read.runs}
        leaves = [
            run_records_leaf(item.run, runs[item.run], Commitment.from_json(item.marks, type="marks/1"))
            for item in read.runs
        ]
    except (BitwitnessError, KeyError, TypeError, ValueError) as error:
        raise StatusFileError(f"its runs: {error}") from error
    if tree("runs/1", leaves).to_json() != entry.predicate["runs"] or len(runs) != len(read.runs):
        raise EvidenceRefused(f"the runs in the file are not those that {entry} signs")
    return News(entry, head, signed, keys, runs)


def _parse(data: bytes) -> StatusFile:
    try:
        value = jcs.parse(data, max_bytes=SIZE_LIMIT)
    except BitwitnessError as error:
        raise StatusFileError(str(error)) from error
    try:
        return StatusFile.model_validate(value)
    except ValidationError as error:
        raise StatusFileError(first_reason(error, whole="the whole")) from error
