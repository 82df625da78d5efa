"""A ledger's stored checkpoints, verified in order: by log keys that count, over these entries, never going back.

Part of the independent verifier. A log key counts for checkpoints of sizes from its enrolment up to where the root
ended it. What covers entries is a checkpoint by the key that the policy pins; one by a key that replaced it covers
entries only after one by the pinned key, and any other log key that the root enrolled covers none. Where the
root replaced it, the first checkpoint beyond carries two signatures, the old key's and the new one's, so that whoever
knows only the old one can follow.
"""

from __future__ import annotations

from collections.abc import Iterator

from .checkpoint import Checkpoint, open_checkpoint
from .errors import FoundWrong
from .handover import line_of, replacements
from .keys import PublicKey
from .note import Verifier
from .trust import Trust
from .verify import KeyRing


class CheckpointChecks:
    """Follows the rows of `checkpoints`. `witnessed_sizes` are those that the policy's quorum has cosigned."""

    def __init__(self, origin: str, trust: Trust | None, keys: KeyRing, roots: dict[int, bytes], size: int) -> None:
        """`roots` are those of the entries at each size that a row states; `size` is how many entries there are."""
        self.number = 0
        self.covered = 0
        """How many entries the newest checkpoint covers that is sound and by the pinned log key (without a policy: by
        any that is enrolled)."""
        self._pinned_seen = False
        self.witnessed_sizes: list[int] = []
        self._origin = origin
        self._trust = trust
        self._roots = roots
        self._size = size
        self._newest = 0
        self._keys = {key.public.raw: key for key in keys if key.role == "log"}
        self._verifiers = {Verifier(origin, key.public) for key in self._keys.values()}
        if trust is not None:
            self._verifiers.add(trust.log)
        self._line = [] if trust is None else [key.public for key in line_of(keys, trust.log.key)]
        self._handovers = list(replacements(keys))

    def follow(self, row: int, size: int, note: object) -> Iterator[str]:
        """What is wrong with the next row; text as SQLite gives raw bytes."""
        number, self.number = self.number, self.number + 1
        if row != number:
            yield f"checkpoint {number} is missing"
        cosigners = () if self._trust is None else self._trust.cosigners
        try:
            signed, opened = open_checkpoint(
                note if isinstance(note, bytes) else b"", self._verifiers, self._origin, cosigners
            )
        except FoundWrong as error:
            yield str(error)
            return
        signers = [item.verifier.key for item in opened.verified if item.verifier in self._verifiers]
        faults = [*self._place(size, signed), *self._signers(signed.size, signers)]
        yield from faults
        self._newest = max(self._newest, signed.size)
        if faults or not self._covers(signed.size, signers):
            return
        self.covered = max(self.covered, signed.size)
        policy = None if self._trust is None else self._trust.witnesses
        if policy is not None and policy.met_by(opened):
            self.witnessed_sizes.append(signed.size)

    def _place(self, size: int, signed: Checkpoint) -> Iterator[str]:
        """What is wrong with what a checkpoint says of the entries."""
        if signed.size != size:
            yield f"is stored for size {size}, but signed for {signed.size}"
        elif signed.size > self._size:
            yield f"signs {signed.size} entries, the ledger holds {self._size}"
        elif signed.size not in self._roots:
            yield f"signs {signed.size} entries, whose root was not computed"
        elif self._roots[signed.size] != signed.root:
            yield (
                f"signs the root {signed.root.hex()} for {signed.size} entries, they have "
                f"{self._roots[signed.size].hex()}"
            )
        if signed.size < self._newest:
            yield f"signs {signed.size} entries after one that signs {self._newest}"

    def _signers(self, size: int, signers: list[PublicKey]) -> Iterator[str]:
        if not any(self._counts(key, size) for key in signers):
            known = [key for key in (self._keys.get(key.raw) for key in signers) if key is not None]
            for key in known[:1]:
                if key.until is not None and size > key.until:
                    yield f"signed only by the log key {key.keyid[:16]}…, which ended at entry {key.until}"
                else:
                    yield f"signed only by the log key {key.keyid[:16]}…, which entry {key.since} enrols later"
        for old, new in list(self._handovers):
            if old.until is None or size <= old.until:
                continue
            self._handovers.remove((old, new))
            if old.public not in signers or new.public not in signers:
                if new.public in self._line:  # what a key signs that nobody handed over to covers nothing
                    del self._line[self._line.index(new.public) :]
                yield f"the log key changed at entry {old.until}: the first checkpoint beyond needs both signatures"

    def _counts(self, key: PublicKey, size: int) -> bool:
        """Whether a log key may sign a checkpoint of this size. The pinned one needs no enrolment, but can be ended."""
        enrolled = self._keys.get(key.raw)
        if enrolled is None:
            return self._pinned(key)
        if size <= enrolled.since and not self._pinned(key):
            return False
        return enrolled.until is None or size <= enrolled.until

    def _covers(self, size: int, signers: list[PublicKey]) -> bool:
        """Whether a sound checkpoint counts as one of the pinned log: by its key, or later by one that replaced it."""
        counting = [key for key in signers if self._counts(key, size)]
        trust = self._trust
        if trust is None or any(self._pinned(key) for key in counting):
            self._pinned_seen = True
            return bool(counting)
        # Both signatures stand on the checkpoint of a handover; that of the old key is past its end there.
        heirs = [key for key in counting if key in self._line]
        covers = bool(heirs) and (self._pinned_seen or any(self._pinned(key) for key in signers))
        self._pinned_seen |= covers
        return covers

    def _pinned(self, key: PublicKey) -> bool:
        return self._trust is not None and key.raw == self._trust.log.key.raw
