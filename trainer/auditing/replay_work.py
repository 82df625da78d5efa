"""How far a replay came: what it leaves behind while it runs, so that one that was stopped goes on to the same result.

In the folder of an audit that was announced (audit_work.py), or of a recheck:

progress.json          the outcomes so far, and where the unit in hand stands, signed; replaced as a whole
transcript.bin         the leaf hashes of the transcript, of which progress.json says how many count
point-N.safetensors    weights and moments, and the gradients folded so far where the stop was inside a step

It may lie where others write, and what it says goes into a signed result. So nothing is taken from it unchecked:
progress.json is signed by the auditor, for this one audit or recheck, tensors must have the digests that it states, and
the state must be the ledger's.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitwitness.kernels.buffers import F32, floats
from bitwitness.ledger import merkle
from bitwitness.ledger.commitments import byte_view, tensor_digest
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files.durable import write_whole
from bitwitness.ledger.files.regular_file import read_regular
from bitwitness.ledger.files.safetensors_header import write_file
from bitwitness.ledger.jcs import f64_from_hex, f64_hex
from bitwitness.ledger.keys import Signer

from ..parts import Parts
from ..sample import Unit
from ..state import Control, State, load_tensors
from ..step import PartialFold
from .outcome import UnitResult

INTERVAL = 60.0
"""Seconds between two points; more where writing one takes long."""
_SHARE = 20.0
_LIMIT = 1 << 28
_DOMAIN = b"bitwitness/audit-work/v1\x00"

_DAMAGE = (
    *(OSError, BitwitnessError, ValueError, TypeError),
    *(LookupError, ArithmeticError, AttributeError, RecursionError),
)
"""What reading a file that is not as this program writes it may raise."""

Json = dict[str, Any]


@dataclass
class Point:
    """Where a unit stands: the steps compared, the state after the last one, and the step in hand as far as it came."""

    compared: list[int]
    state: State
    fold: PartialFold | None
    start: int | None
    """The step of the state that the unit's replay started from; None on the way there, where nothing is tapped."""


Wanted = tuple[Unit, str | None]
"""A unit to compute again, or of its one step only the part of that name."""


@dataclass
class ReplayWork:
    """The folder of one replay. `subject` is what the auditor's signature says that it is of, 32 bytes."""

    folder: Path
    subject: bytes
    auditor: Signer
    results: list[UnitResult] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    """The transcript up to the last point."""
    begun: int = 0
    """How long the transcript was when the unit in hand began."""
    _point: Json | None = None
    _number: int = 0
    _last: float = field(default_factory=time.monotonic)
    _cost: float = 0.0

    @classmethod
    def open(cls, folder: Path, subject: bytes, auditor: Signer) -> ReplayWork:
        """What there is of this replay. What this auditor did not sign, or is damaged, is as if it were not there."""
        work = cls(folder, subject, auditor)
        try:
            work._read()
        except _DAMAGE:
            work = cls(folder, subject, auditor)
        return work

    @property
    def begins(self) -> bool:
        """Whether there is nothing to go on from."""
        return not self.results and self._point is None

    def finish(self) -> None:
        """The result is out of this program's hands."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- going on ------------------------------------------------------------------------------------------------

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """Forget what is kept unless it is of the units that are to be computed now, one after the other."""
        here = [(result.unit.first, result.unit.last, result.part) for result in self.results]
        if self._point is not None:
            here.append((self._point["unit"]["first"], self._point["unit"]["last"], None))
        if here != [(unit.first, unit.last, part) for unit, part in wanted][: len(here)]:
            self.results, self.hashes, self.begun, self._point = [], [], 0, None

    def point(self, unit: Unit, state: State) -> Point | None:
        """Where this unit stopped, read into `state`; None if it had not begun, or if what was kept is damaged."""
        if self._point is None or Unit(**self._point["unit"]) != unit:
            return None
        kept, self._point = self._point, None
        try:
            return self._load(kept, state)
        except _DAMAGE:
            return None

    def _load(self, kept: Json, state: State) -> Point | None:
        said = kept["fold"]
        stack = [] if said is None else [(count, floats(state.params.size)) for count in said["counts"]]
        tensors = _tensors(state, stack)
        load_tensors(self.folder / kept["file"], tensors)
        if {name: tensor_digest(byte_view(tensor)) for name, tensor in tensors.items()} != kept["digests"]:
            return None
        state.control = Control(**kept["control"])
        if said is None:
            return Point(list(kept["compared"]), state, None, kept["start"])
        parts = None if said["parts"] is None else Parts(state.layout, (said["parts"][0], said["parts"][1]))
        fold = PartialFold(said["shard"], stack, f64_from_hex(said["total"]), said["tokens"], parts)
        return Point(list(kept["compared"]), state, fold, kept["start"])

    def _read(self) -> None:
        data, _, signature = read_regular(self.folder / "progress.json", _LIMIT).rpartition(b"\n")
        self.auditor.public.verify(bytes.fromhex(signature.decode("ascii")), self._signed(data))
        said = json.loads(data)
        count = int(said["transcript"])
        data = read_regular(self.folder / "transcript.bin", _LIMIT)[: merkle.HASH_SIZE * count]
        if hashlib.sha256(data).hexdigest() != said["digest"]:
            raise ValueError("the transcript is damaged")
        self.results = [UnitResult.restored(item) for item in said["results"]]
        self.hashes = [data[at : at + merkle.HASH_SIZE] for at in range(0, len(data), merkle.HASH_SIZE)]
        self.begun, self._point, self._number = int(said["begun"]), said["point"], int(said["number"])
        if self._point is not None:
            Unit(**self._point["unit"])  # which it must be

    def _signed(self, progress: bytes) -> bytes:
        """What the auditor signs of his progress: it counts for this audit or recheck alone."""
        return _DOMAIN + self.subject + hashlib.sha256(progress).digest()

    # -- keeping -------------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether it is time for a point."""
        return time.monotonic() - self._last >= max(INTERVAL, _SHARE * self._cost)

    def finished_unit(self, result: UnitResult, hashes: list[bytes]) -> None:
        """Keep a unit's outcome, with the transcript so far."""
        self.results.append(result)
        self.begun = len(hashes)
        self._write(hashes, None)

    def keep(
        self,
        unit: Unit,
        compared: list[int],
        state: State,
        fold: PartialFold | None,
        hashes: list[bytes],
        start: int | None,
    ) -> None:
        """Keep where a unit stands. Whatever happens meanwhile, the last whole point stays."""
        started = self._last = time.monotonic()
        self._number += 1
        tensors = _tensors(state, [] if fold is None else fold.stack)
        file = f"point-{self._number}.safetensors"
        views = {name: ("F32", tuple(tensor.shape), byte_view(tensor)) for name, tensor in tensors.items()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / file).unlink(missing_ok=True)
            write_file(self.folder / file, views)
        except OSError:  # no room, say: the last point stays
            return
        point = {
            "compared": compared,
            "control": state.control.to_json(),
            "digests": {name: tensor_digest(byte_view(tensor)) for name, tensor in tensors.items()},
            "file": file,
            "fold": None
            if fold is None
            else {
                "counts": [count for count, _gradient in fold.stack],
                "parts": None if fold.parts is None else fold.parts.so_far(),
                "shard": fold.shard,
                "tokens": fold.tokens,
                "total": f64_hex(fold.total),
            },
            "start": start,
            "unit": {"first": unit.first, "last": unit.last, "cause": unit.cause},
        }
        self._write(hashes, point)
        self._last = time.monotonic()
        self._cost = self._last - started

    def _write(self, hashes: list[bytes], point: Json | None) -> None:
        data = b"".join(hashes)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "transcript.bin", data)
        progress = {
            "begun": self.begun,
            "digest": hashlib.sha256(data).hexdigest(),
            "number": self._number,
            "point": point,
            "results": [result.kept() for result in self.results],
            "transcript": len(hashes),
        }
        text = json.dumps(progress).encode("utf-8")
        signature = self.auditor.sign(self._signed(text)).hex().encode("ascii")
        write_whole(self.folder / "progress.json", text + b"\n" + signature)
        for path in self.folder.glob("point-*"):
            if point is None or path.name != point["file"]:
                path.unlink(missing_ok=True)


def _tensors(state: State, stack: list[tuple[int, F32]]) -> dict[str, F32]:
    folded = {f"fold.{number}": gradient for number, (_count, gradient) in enumerate(stack)}
    return {"params": state.params, "m": state.m, "v": state.v, **folded}
