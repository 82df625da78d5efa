"""The entries since the last checkpoint, verified again from the file's bytes before the log key signs over them.

What is under a checkpoint that this key signed was verified then, and its root pins it. Of the rest every leaf hash is
made anew, every tree node compared, and the whole must be the tree that the writer holds in memory; entries that
another process appended have their form and signature checked too, by the verifier's own code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from .. import merkle
from ..checkpoint import Checkpoint, open_checkpoint
from ..entry import entries
from ..errors import FoundWrong
from ..keys import PublicKey, Signer
from ..note import Verifier
from ..verify import KeyRing, verify_signature
from . import nodes, schema
from .ledger_file import LedgerDamaged

_MOST_NOTES = 1000  # looked through for one that the key signed, newest first


class TailCheck:
    """Checks one open ledger. `own` is the first index that this process itself has appended."""

    def __init__(self, path: Path, connection: sqlite3.Connection, origin: str, node: merkle.GetNode, own: int) -> None:
        self._path = path
        self._connection = connection
        self._origin = origin
        self._node = node
        self._own = own

    def check(self, size: int, root: bytes, signers: Iterable[Signer]) -> None:
        """Verify entries up to `size`, of which the writer says that they have `root`. Raises LedgerDamaged."""
        start = self._signed_before(size, signers)
        tree = merkle.Frontier.load(start.size, self._node)
        if tree.root() != start.root:
            raise self._damaged(f"its first {start.size} entries are not those that the checkpoint signed")
        foreign = min(size, self._own)
        keys = self._key_ring(start) if start.size < foreign else None
        for index, payload, signature, leaf_hash, stored in self._connection.execute(
            "SELECT idx, payload, signature, leaf_hash, nodes FROM entries WHERE idx >= ? AND idx < ? ORDER BY idx",
            (start.size, size),
        ):
            data = self._entry(index, payload, signature, leaf_hash)
            if index != tree.size:
                raise self._damaged(f"entry {tree.size} is missing")
            if keys is not None and index < foreign:
                self._verify(index, data, keys)
            if nodes.column(tree.append(leaf_hash)) != stored:
                raise self._damaged(f"the tree nodes stored with entry {index} are not what the entries give")
        if (tree.size, tree.root()) != (size, root):
            raise self._damaged(f"its {tree.size} entries are not those that this process has appended")

    def _signed_before(self, size: int, signers: Iterable[Signer]) -> Checkpoint:
        """The newest stored checkpoint that one of the signers signed; a stored note alone proves nothing."""
        verifiers = [Verifier(self._origin, item.public) for item in signers]
        rows = self._connection.execute("SELECT note FROM checkpoints ORDER BY id DESC LIMIT ?", (_MOST_NOTES,))
        for (text,) in rows:
            try:
                checkpoint, _note = open_checkpoint(text, verifiers, self._origin)
            except FoundWrong:
                continue
            if checkpoint.size <= size:
                return checkpoint
        return Checkpoint(self._origin, 0, merkle.EMPTY_ROOT)

    def _key_ring(self, start: Checkpoint) -> KeyRing:
        """The keys of the entries under `start`, each of those proved to be there."""
        ring: KeyRing | None = None
        for index, payload, signature, leaf_hash in self._connection.execute(
            # A needle that every key entry's canonical payload holds; what else holds it is passed over.
            "SELECT idx, payload, signature, leaf_hash FROM entries WHERE idx < ? AND instr(payload, ?) > 0"
            " ORDER BY idx",
            (max(start.size, 1), "bitwitness.dev/key/v1"),
        ):
            data = self._entry(index, payload, signature, leaf_hash)
            try:
                if index < start.size:
                    proof = merkle.inclusion_proof_from_nodes(index, start.size, self._node)
                    merkle.verify_inclusion(index, start.size, leaf_hash, proof, start.root)
                envelope, kind = entries.read(data)
                if kind.name != "key":
                    continue
                predicate = envelope.statement["predicate"]
                if ring is None:
                    ring = KeyRing(PublicKey.from_hex(predicate["key"]["public"]))
                if index < start.size:
                    verify_signature(envelope, kind, ring, index)
                    ring.add(index, predicate)
            except FoundWrong as error:
                raise self._damaged(f"entry {index}: {error}") from None
        if ring is None:
            raise self._damaged("its first entry does not enrol a root key")
        return ring

    def _verify(self, index: int, data: bytes, keys: KeyRing) -> None:
        try:
            envelope, kind = entries.read(data)
            verify_signature(envelope, kind, keys, index)
            if kind.name == "key":
                keys.add(index, envelope.statement["predicate"])
        except FoundWrong as error:
            raise self._damaged(f"entry {index}: {error}") from None

    def _entry(self, index: int, payload: str, signature: bytes, leaf_hash: bytes) -> bytes:
        try:
            data = schema.entry_bytes(payload.encode("utf-8"), signature)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            data = b""
        if merkle.leaf_hash(data) != leaf_hash:
            raise self._damaged(f"entry {index} was edited")
        return data

    def _damaged(self, reason: str) -> LedgerDamaged:
        return LedgerDamaged(self._path, f"{reason}; no checkpoint is signed over it, run `ledger fsck`")
