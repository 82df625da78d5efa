"""A ledger's stored checkpoints, verified in order: by log keys that count, over these entries, never going back.

Part of the independent verifier. A log key counts for checkpoints of sizes up to where the root ended it. Where the
root replaced it, the first checkpoint beyond carries two signatures, the old key's and the new one's, so that whoever
knows only the old one can follow.
"""

from __future__ import annotations

from collections.abc import Iterator

from .checkpoint import open_checkpoint
from .errors import FoundWrong
from .keys import PublicKey
from .note import Verifier
from .trust import Trust
from .verify import EnrolledKey, KeyRing


class CheckpointChecks:
    """Follows the rows of `checkpoints`. `witnessed_sizes` are those that the policy's quorum has cosigned."""

    def __init__(self, origin: str, trust: Trust | None, keys: KeyRing, roots: dict[int, bytes], size: int) -> None:
        """`roots` are those of the entries at each size that a row states; `size` is how many entries there are."""
        self.number = 0
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
        self._handovers = list(handovers(keys))

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
        if signed.size != size:
            yield f"is stored for size {size}, but signed for {signed.size}"
        if signed.size > self._size:
            yield f"signs {signed.size} entries, the ledger holds {self._size}"
        elif signed.size in self._roots and self._roots[signed.size] != signed.root:
            yield (
                f"signs the root {signed.root.hex()} for {signed.size} entries, they have "
                f"{self._roots[signed.size].hex()}"
            )
        if signed.size < self._newest:
            yield f"signs {signed.size} entries after one that signs {self._newest}"
        self._newest = max(self._newest, signed.size)
        signers = [item.verifier.key for item in opened.verified]
        yield from self._signers(signed.size, signers)
        policy = None if self._trust is None else self._trust.witnesses
        if policy is not None and policy.met_by(opened):
            self.witnessed_sizes.append(signed.size)

    def _signers(self, size: int, signers: list[PublicKey]) -> Iterator[str]:
        known = [self._keys.get(key.raw) for key in signers if Verifier(self._origin, key) in self._verifiers]
        if not any(key is None or key.until is None or size <= key.until for key in known):
            ended = next(key for key in known if key is not None)
            yield f"signed only by the log key {ended.keyid[:16]}…, which ended at entry {ended.until}"
        for old, new in list(self._handovers):
            if old.until is None or size <= old.until:
                continue
            self._handovers.remove((old, new))
            if old.public not in signers or new.public not in signers:
                yield f"the log key changed at entry {old.until}: the first checkpoint beyond needs both signatures"


def handovers(keys: KeyRing) -> Iterator[tuple[EnrolledKey, EnrolledKey]]:
    """(old, new) of each log key that the root replaced by another."""
    for new in keys:
        old = None if new.replaces is None else keys.get(new.replaces)
        if new.role == "log" and old is not None:
            yield old, new
