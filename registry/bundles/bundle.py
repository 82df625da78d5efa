"""`provenance.json`, the proof that travels with a model (docs/formats/provenance.md).

The file is canonical JSON, so one bundle has one spelling. It holds log entries as they are, where each
stands in the log, inclusion proofs to one checkpoint, proofs that entries of the run stand in one another's
history, and the tensor leaves under the weights root. This module knows its shape only: nothing here is
believed until `evidence.py` has checked it against the keys of a policy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bitwitness.ledger import jcs
from bitwitness.ledger.errors import BitwitnessError, FormatError
from bitwitness.ledger.files.schema_error import first_reason

FILE_NAME = "provenance.json"
FORMAT: Final = "bitwitness/provenance/1"
# One or two thousand entries.
SIZE_LIMIT = 8 << 20
# Values that may stand in one. Small ones, such as [], take some 50 times their bytes as objects, so the size alone
# bounds no memory; what stands in an honest bundle are mostly hashes and payloads of 66 bytes and more.
VALUES_LIMIT = 400_000
# Runs that a release may stand on: those of the releases that it derives from, and those that these go back to.
RUNS_LIMIT = 256
TIMESTAMPS_LIMIT = 8
_MAX = (1 << 53) - 1


class BundleError(FormatError):
    """`provenance.json` is not a bundle of this format; ``reason`` is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(FILE_NAME, reason)


def _ascending(values: list[Any]) -> None:
    if any(left >= right for left, right in pairwise(values)):
        raise ValueError("must be in ascending order, each once")


Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Position = Annotated[int, Field(ge=0, le=_MAX)]
Proof = Annotated[list[Hash], Field(max_length=63)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LoggedEntry(Strict):
    """An entry (a DSSE envelope, as an object), its position in the log, and its inclusion proof."""

    entry: dict[str, Any]
    index: Position
    proof: Proof

    def raw(self) -> bytes:
        """The entry's bytes. Canonical JSON has one spelling, so nesting the object lost nothing."""
        return jcs.encode(self.entry)


class HistoryProof(Strict):
    """Proof that the entry at log position ``entry`` is in the history that the one at ``within`` commits to.

    Its leaf position is the contained entry's signed `seq`, the size is the signed history's.
    """

    entry: Position
    proof: Proof
    within: Position


class TensorLeaf(Strict):
    """One leaf of `weights/1`."""

    bytes: Position
    digest: Hash
    dtype: Annotated[str, Field(pattern=r"^[A-Z0-9_]{1,16}$")]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{1,200}$")]
    shape: Annotated[list[Position], Field(max_length=32)]


def ascending_entries(value: list[LoggedEntry]) -> list[LoggedEntry]:
    _ascending([item.index for item in value])
    return value


def _history(value: list[HistoryProof]) -> list[HistoryProof]:
    _ascending([(item.within, item.entry) for item in value])
    return value


def _weights(value: list[TensorLeaf]) -> list[TensorLeaf]:
    _ascending([item.name for item in value])
    return value


class Anchor(Strict):
    """An older checkpoint of the same log, and the consistency proof from it to the bundle's."""

    checkpoint: Annotated[str, Field(max_length=1 << 20)]
    proof: Proof


Anchors = Annotated[list[Anchor], Field(min_length=1, max_length=64)]


class IntentProof(Strict):
    """What the auditor saw who announced an audit as ``entry`` of the log: its `size` entries with its `root`.

    ``consistency`` leads from there to the bundle's checkpoint.
    """

    consistency: Annotated[list[Hash], Field(max_length=126)]
    entry: Position


def _intents(value: list[IntentProof]) -> list[IntentProof]:
    _ascending([item.entry for item in value])
    return value


class RunMark(Strict):
    """What the units of an audit depend on: a stored state, resume, fork or release of the run, ``entry`` in the log.

    A fork is the genesis of a run that goes on from this one; ``step`` is then the step that it goes on from.
    """

    entry: Position
    kind: Literal["state", "resume", "fork", "release"]
    step: Position


def _positions(value: list[int]) -> list[int]:
    _ascending(value)
    return value


def _marks(value: list[RunMark]) -> list[RunMark]:
    _ascending([item.entry for item in value])
    return value


class RunProof(Strict):
    """What a `status` lists of ``run``, opened.

    ``proof`` says that the run's lists, the audits and evals in the bundle and ``marks``, are leaf ``position`` of the
    tree of runs that the status signs. Samples of audits are drawn again from ``marks``. ``words`` are positions in
    the log of the words on releases of the run that the bundle does not hold; absent where it opens but one run.
    """

    marks: Annotated[list[RunMark], Field(max_length=1 << 16), AfterValidator(_marks)]
    position: Position
    proof: Proof
    run: Hash
    words: Annotated[list[Position], Field(min_length=1), AfterValidator(_positions)] | None = None


def _runs(value: list[RunProof]) -> list[RunProof]:
    _ascending([item.run for item in value])
    return value


class StatusProof(Strict):
    """What the newest `status` entry says of the run, or of the runs of a merge.

    ``consistency`` leads from the ledger root that it signs to the bundle's checkpoint.
    """

    consistency: Annotated[list[Hash], Field(max_length=126)]
    runs: Annotated[list[RunProof], Field(min_length=1, max_length=RUNS_LIMIT), AfterValidator(_runs)]


# An answer of RFC 3161 with the certificates of its authority is a few kilobytes.
Timestamp = Annotated[
    str, Field(pattern=r"^(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", max_length=1 << 17)
]


class Provenance(Strict):
    """The bundle. ``checkpoint`` is a C2SP signed note; every proof in ``entries`` leads to its root.

    ``anchors`` are cosigned checkpoints from before a revocation, and those by which one log key handed over to the
    next; absent where neither was.
    ``before`` are the log positions of other releases, of runs that others here go on from, at or before the step where
    they do; absent where there are none. They are here for what was said of them: the bundle is not about them.
    ``intents`` shows of every announced audit in ``entries`` that it is of this log; absent where none is there.
    ``status`` stands with a `status` entry, and only there. ``timestamps`` are answers of RFC 3161 authorities, base64,
    over the bytes of ``checkpoint``; absent where nobody was asked.
    """

    anchors: Anchors | None = None
    before: Annotated[list[Position], Field(min_length=1), AfterValidator(_positions)] | None = None
    checkpoint: Annotated[str, Field(max_length=1 << 20)]
    entries: Annotated[list[LoggedEntry], AfterValidator(ascending_entries)]
    format: Literal["bitwitness/provenance/1"]
    history: Annotated[list[HistoryProof], AfterValidator(_history)]
    intents: Annotated[list[IntentProof], Field(min_length=1), AfterValidator(_intents)] | None = None
    status: StatusProof | None = None
    timestamps: Annotated[list[Timestamp], Field(min_length=1, max_length=TIMESTAMPS_LIMIT)] | None = None
    weights: Annotated[list[TensorLeaf], AfterValidator(_weights)]

    def encode(self) -> bytes:
        return jcs.encode(self.model_dump(exclude_none=True))


def parse(data: bytes) -> Provenance:
    """Read the bytes of a bundle; raises BundleError for anything but the one canonical spelling."""
    if len(data) <= SIZE_LIMIT and sum(map(data.count, (b",", b"[", b"{"))) > VALUES_LIMIT:
        raise BundleError(f"it holds more than {VALUES_LIMIT} values")
    try:
        value = jcs.parse(data, max_bytes=SIZE_LIMIT)
    except BitwitnessError as error:
        raise BundleError(str(error)) from error
    if isinstance(value, dict) and value.get("format") != FORMAT:
        raise BundleError(f"its format is {str(value.get('format'))[:60]!r}, this version reads {FORMAT}")
    try:
        return Provenance.model_validate(value)
    except ValidationError as error:
        raise BundleError(first_reason(error, whole="the whole")) from error
