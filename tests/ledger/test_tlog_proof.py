"""Proof files: the public cases, our proofs of every leaf, and every byte of them under the check."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import keys, merkle, note, tlog_proof
from bitwitness.ledger.checkpoint import Checkpoint, default_origin
from bitwitness.ledger.errors import BitwitnessError, NoKnownSigner, NoteError, ProofError, SignatureError
from bitwitness.ledger.tlog_proof import Proof

SIGNER = keys.Signer.from_seed("log", bytes([2]) * 32)
ORIGIN = default_origin(SIGNER.public)
VERIFIER = note.Verifier(ORIGIN, SIGNER.public)
LEAVES = [merkle.leaf_hash(b"%d" % n) for n in range(11)]
HEAD = note.sign_note(Checkpoint(ORIGIN, 11, merkle.root(LEAVES)).format(), ORIGIN, SIGNER)


def proof_of(index: int, extra: bytes | None = None) -> Proof:
    return Proof(index, tuple(merkle.inclusion_proof(index, LEAVES)), HEAD, extra)


def test_public_cases(vectors: Path) -> None:
    data = json.loads((vectors / "tlog" / "tlog_proof.json").read_text())
    for case in data["marshal"]:
        hashes = tuple(base64.b64decode(item) for item in case["hashes"])
        extra = None if case["extra"] is None else base64.b64decode(case["extra"])
        proof = Proof(case["index"], hashes, case["checkpoint"], extra)
        assert proof.format() == case["want"]
        assert tlog_proof.parse(case["want"]) == proof
    for case in data["unmarshal_errors"]:
        with pytest.raises(NoteError):
            tlog_proof.parse(case["proof"])


def test_golden(golden: Any) -> None:
    golden("ledger-1.json").check("proof", proof_of(6).format())
    golden("ledger-1.json").check("proof with extra", proof_of(0, b"extra").format())


def test_every_leaf() -> None:
    for index, leaf in enumerate(LEAVES):
        proof = tlog_proof.parse(proof_of(index).format().encode())
        assert proof == proof_of(index)
        head, opened = tlog_proof.verify(proof, leaf, [VERIFIER], ORIGIN)
        assert head.size == 11 and opened.by(VERIFIER) is not None
        for other in LEAVES:
            if other != leaf:
                with pytest.raises(ProofError):
                    tlog_proof.verify(proof, other, [VERIFIER], ORIGIN)


def test_every_byte_changed_is_caught() -> None:
    data = proof_of(6).format().encode()
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(BitwitnessError):
                tlog_proof.verify(tlog_proof.parse(bytes(changed)), LEAVES[6], [VERIFIER], ORIGIN)


def test_every_truncation_is_caught() -> None:
    text = proof_of(6).format()
    for end in range(len(text)):
        with pytest.raises(BitwitnessError):
            tlog_proof.verify(tlog_proof.parse(text[:end]), LEAVES[6], [VERIFIER], ORIGIN)


def test_another_size_another_log_and_unknown_keys() -> None:
    proof = proof_of(6)
    # 11 leaves and, say, 12 give leaf 6 a path of one shape: only the signature tells these sizes apart.
    for size in (7, 8, 17):
        head = note.sign_note(Checkpoint(ORIGIN, size, merkle.root(LEAVES)).format(), ORIGIN, SIGNER)
        with pytest.raises(ProofError):
            tlog_proof.verify(Proof(6, proof.hashes, head), LEAVES[6], [VERIFIER], ORIGIN)
    with pytest.raises(NoteError, match="not of"):
        tlog_proof.verify(proof, LEAVES[6], [VERIFIER], "other.example")
    stranger = keys.Signer.from_seed("log", bytes(32))
    with pytest.raises(NoKnownSigner):
        tlog_proof.verify(proof, LEAVES[6], [note.Verifier("other", stranger.public)], ORIGIN)
    forged = HEAD.replace("\n11\n", "\n12\n")
    with pytest.raises(SignatureError):
        tlog_proof.verify(Proof(6, proof.hashes, forged), LEAVES[6], [VERIFIER], ORIGIN)


HASH = "A" * 43 + "="


@pytest.mark.parametrize(
    "text",
    [
        "",
        "c2sp.org/tlog-proof@v1\n",
        "c2sp.org/tlog-proof@v1\nindex 0\n",
        "c2sp.org/tlog-proof@v1\nindex 0\n\n",
        "c2sp.org/tlog-proof@v1\nindex 0\n\nno newline",
        "c2sp.org/tlog-proof@v2\nindex 0\n\nx\n",
        " c2sp.org/tlog-proof@v1\nindex 0\n\nx\n",
        "c2sp.org/tlog-proof@v1\r\nindex 0\r\n\r\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 00\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 01\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex +1\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex  1\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 1 \n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex ٣\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 9223372036854775807\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 9223372036854775808\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 18446744073709551616\n\nx\n",
        "c2sp.org/tlog-proof@v1\nIndex 1\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 1\nextra AA==\n\nx\n",
        "c2sp.org/tlog-proof@v1\nextra \nindex 1\n\nx\n",
        "c2sp.org/tlog-proof@v1\nextra AA\nindex 1\n\nx\n",
        "c2sp.org/tlog-proof@v1\nextra AB==\nindex 1\n\nx\n",
        "c2sp.org/tlog-proof@v1\nextra AA==\nextra AA==\nindex 1\n\nx\n",
        f"c2sp.org/tlog-proof@v1\nindex 1\n{HASH} \n\nx\n",
        f"c2sp.org/tlog-proof@v1\nindex 1\n{HASH[:-1]}\n\nx\n",
        f"c2sp.org/tlog-proof@v1\nindex 1\n{HASH[:-2]}B=\n\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 1\n" + (HASH + "\n") * 64 + "\nx\n",
        "c2sp.org/tlog-proof@v1\nindex 1\n" + (HASH + "\n") * 20_000 + "\nx\n",
        "\ud800",
        "x" * (tlog_proof.MAX_PROOF + 1),
    ],
)
def test_malformed(text: str) -> None:
    with pytest.raises(NoteError):
        tlog_proof.parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("index 1\n\n" + "x" * tlog_proof.MAX_PROOF + "\n", "bytes are more than"),
        ("index 1\n\n" + "x" * note.MAX_NOTE + "\n", "the checkpoint is too long"),
        ("index 1\n", "no empty line with a checkpoint"),
        ("index 1\n\n", "no empty line with a checkpoint"),
        ("index 1\n" + (HASH + "\n") * 64 + "\nx\n", "more than 63 hashes"),
        ("extra " + "A" * (tlog_proof.MAX_LINE + 4) + "\nindex 1\n\nx\n", "a line is longer"),
        ("extra " + "A" * (tlog_proof.MAX_LINE - 8) + "\nindex 1\n\nx\n", "the extra data has not"),
    ],
)
def test_each_cap_is_met_before_what_it_bounds_is_read(text: str, says: str) -> None:
    with pytest.raises(NoteError, match=says):
        tlog_proof.parse(f"c2sp.org/tlog-proof@v1\n{text}")


def test_sixty_three_hashes_are_the_most() -> None:
    text = "c2sp.org/tlog-proof@v1\nindex 1\n" + (HASH + "\n") * 63 + "\nx\n"
    assert tlog_proof.parse(text).format() == text
    with pytest.raises(NoteError):
        tlog_proof.parse(b"\xff")


def test_proofs_that_cannot_be_made() -> None:
    for arguments in ((-1, (), "x\n"), (2**63 - 1, (), "x\n"), (0, (b"x",), "x\n"), (0, (bytes(32),) * 64, "x\n"),
                      (0, (), "x"), (0, (), "x\n", b""), (0, (), "x\n", bytes(40_000))):  # fmt: skip
        with pytest.raises(NoteError):
            Proof(*arguments)  # type: ignore[arg-type]
