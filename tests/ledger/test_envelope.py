"""The signed envelope: DSSE's encoding, strict reading, and every byte of it under the signature."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import jcs, keys, merkle, tiles
from bitwitness.ledger.entry import envelope
from bitwitness.ledger.errors import BitwitnessError, EntryError, FoundWrong, SignatureError

SIGNER = keys.Signer.from_seed("trainer", bytes(range(32)))
STATEMENT = {"predicate": {"signer": SIGNER.keyid, "text": "für"}}


def test_pae_of_the_public_vector(vectors: Path) -> None:
    case = json.loads((vectors / "dsse" / "dsse_v1.json").read_text())
    assert envelope.pae(case["payloadType"], case["payload"].encode()) == case["pae"].encode()


def test_pae_counts_bytes_not_characters() -> None:
    assert envelope.pae("ü", "ä".encode()) == "DSSEv1 2 ü 2 ä".encode()


def test_seal_is_the_jcs_of_a_dsse_envelope_and_comes_back() -> None:
    data = envelope.seal(STATEMENT, SIGNER)
    payload = jcs.encode(STATEMENT)
    signature = SIGNER.sign(envelope.pae(envelope.PAYLOAD_TYPE, payload))
    assert data == jcs.encode(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": envelope.PAYLOAD_TYPE,
            "signatures": [{"keyid": SIGNER.keyid, "sig": base64.b64encode(signature).decode()}],
        }
    )
    opened = envelope.open_envelope(data)
    assert opened == envelope.Envelope(STATEMENT, SIGNER.keyid, payload, signature)
    assert envelope.assemble(opened.payload, opened.keyid, opened.signature) == data
    opened.verify(SIGNER.public)


def test_every_byte_changed_is_caught(examples: Any) -> None:
    """Each byte of an entry, changed in each of its bits, no longer opens or no longer verifies."""
    by_id = {signer.keyid: signer.public for signer in examples.signers.values()}
    entries = {label: data for label, _kind, _statement, data in examples.entries}
    for data in (entries["endorse auditor"], envelope.seal(STATEMENT, SIGNER)):
        original = merkle.leaf_hash(data)
        for position in range(len(data)):
            for bit in range(8):
                changed = bytearray(data)
                changed[position] ^= 1 << bit
                assert merkle.leaf_hash(bytes(changed)) != original
                with pytest.raises(FoundWrong):
                    opened = envelope.open_envelope(bytes(changed))
                    opened.verify(by_id.get(opened.keyid, SIGNER.public))


def test_every_truncation_and_extension_is_caught() -> None:
    data = envelope.seal(STATEMENT, SIGNER)
    for end in range(len(data)):
        with pytest.raises(FoundWrong):
            envelope.open_envelope(data[:end])
    for extra in (b" ", b"\n", b"\x00", b"}"):
        with pytest.raises(FoundWrong):
            envelope.open_envelope(data + extra)
        with pytest.raises(FoundWrong):
            envelope.open_envelope(extra + data)


def changed(**fields: Any) -> bytes:
    whole = json.loads(envelope.seal(STATEMENT, SIGNER))
    whole.update(fields)
    return jcs.encode({key: value for key, value in whole.items() if value is not ...})


SIGNATURE = json.loads(envelope.seal(STATEMENT, SIGNER))["signatures"][0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (changed(extra=1), "and nothing else"),
        (changed(payload=...), "and nothing else"),
        (changed(payloadType="text/plain"), "payloadType"),
        (changed(signatures=[]), "exactly one"),
        (changed(signatures=[SIGNATURE, SIGNATURE]), "exactly one"),
        (changed(signatures={}), "exactly one"),
        (changed(signatures=[{**SIGNATURE, "x": "y"}]), "nothing else"),
        (changed(signatures=[{**SIGNATURE, "sig": "AA=="}]), "64 bytes"),
        (changed(signatures=[{**SIGNATURE, "sig": SIGNATURE["sig"].rstrip("=")}]), "base64"),
        (changed(signatures=[{**SIGNATURE, "keyid": "00" * 32}]), "signer"),
        (changed(signatures=[{**SIGNATURE, "keyid": SIGNATURE["keyid"].upper()}]), "keyid"),
        (changed(payload=base64.b64encode(b"[]").decode()), "not a JSON object"),
        (changed(payload=base64.b64encode(b"{}").decode()), "signer"),
        (changed(payload=base64.b64encode(b'{"a": 1}').decode()), "canonical"),
        (changed(payload=base64.b64encode(b'{"a":1,"a":1}').decode()), "twice"),
        (changed(payload="e30"), "base64"),
        (changed(payload="e31="), "base64"),
        (changed(payload="e3 0="), "base64"),
        (changed(payload="e3_-"), "base64"),
        (changed(payload=1), "base64"),
        *((changed(signatures=wrong), "exactly one signature") for wrong in (1, "x", {"0": SIGNATURE}, True)),
        *((changed(signatures=[wrong]), "nothing else") for wrong in (1, "x", [SIGNATURE], {})),
        (
            envelope.assemble(b'{"a":"' + b"x" * 50_000 + b'"}', SIGNER.keyid, bytes(64)),
            "more than the 65535 of an entry",
        ),
        (b"[]", "nothing else"),
        (b"", "JSON"),
        (json.dumps(json.loads(changed())).encode(), "canonical"),
        (b" " * (envelope.MAX_ENTRY + 1), "65535"),
    ],
)
def test_strict(data: bytes, reason: str) -> None:
    with pytest.raises(BitwitnessError, match=reason):
        envelope.open_envelope(data)


def test_seal_refuses_another_signer_and_large_entries() -> None:
    with pytest.raises(EntryError, match="signer"):
        envelope.seal({"predicate": {"signer": "00" * 32}}, SIGNER)
    with pytest.raises(EntryError, match="signer"):
        envelope.seal({"predicate": "x"}, SIGNER)
    with pytest.raises(EntryError, match="65535"):
        envelope.seal({"predicate": {"signer": SIGNER.keyid, "text": "x" * 50_000}}, SIGNER)


def test_the_largest_entry_fits_into_a_bundle() -> None:
    """Two bytes say how long an entry is; the next larger one is refused, by who seals and by who reads."""
    sealed = [
        envelope.seal({"predicate": {"signer": SIGNER.keyid, "text": "x" * size}}, SIGNER) for size in (48_000, 48_001)
    ]
    spare = (envelope.MAX_ENTRY - len(sealed[0])) // 4 * 3
    sizes = range(48_000 + spare - 3, 48_000 + spare + 6)
    taken = []
    for size in sizes:
        try:
            taken.append(envelope.seal({"predicate": {"signer": SIGNER.keyid, "text": "x" * size}}, SIGNER))
        except EntryError:
            break
    assert 0 < len(taken) < len(sizes) and envelope.MAX_ENTRY - 4 < len(taken[-1]) <= envelope.MAX_ENTRY
    assert envelope.open_envelope(taken[-1]).statement["predicate"]["text"][-1] == "x"
    assert tiles.decode_bundle(tiles.encode_bundle([taken[-1], sealed[1]]), 2) == [taken[-1], sealed[1]]


def test_verify_refuses_another_key() -> None:
    opened = envelope.open_envelope(envelope.seal(STATEMENT, SIGNER))
    other = keys.Signer.from_seed("trainer", bytes(32))
    with pytest.raises(EntryError, match="not by"):
        opened.verify(other.public)
    forged = envelope.Envelope(opened.statement, opened.keyid, opened.payload + b" ", opened.signature)
    with pytest.raises(SignatureError, match=SIGNER.keyid):
        forged.verify(SIGNER.public)
