"""A witness's cosignature as a beacon, made by hand for any tree."""

from __future__ import annotations

from bitwitness.ledger import merkle, note
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.entry.beacon import Cosignature
from bitwitness.ledger.keys import Signer

WITNESS = Signer.from_seed("witness", bytes([77]) * 32)


def cosign(origin: str, leaves: list[bytes], index: int, time: int, signer: Signer = WITNESS) -> Cosignature:
    """The cosignature of `signer` over the tree of all `leaves`, with the proof of the one at `index`."""
    root = merkle.root(leaves)
    line = note.cosignature_line(Checkpoint(origin, len(leaves), root).format(), "w.example", signer, time)
    proof = merkle.inclusion_proof(index, leaves) if index < len(leaves) else []
    return Cosignature(signer.public, len(leaves), root, time, line.signature[8:], proof)
