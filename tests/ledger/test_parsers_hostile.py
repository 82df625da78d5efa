"""Every parser against mutated and random bytes: it refuses with one clear line, or reads what it would write.

The same holds for what was signed: no mutation of a signed thing verifies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwitness.ledger import checkpoint, jcs, keys, merkle, note, tiles, tlog_proof, witness_policy
from bitwitness.ledger.entry import entries, envelope
from bitwitness.ledger.errors import BitwitnessError, FoundWrong
from bitwitness.ledger.follow import fork
from bitwitness.ledger.trust import Trust
from bitwitness.ledger.witnessing import witness_request

LOG = keys.Signer.from_seed("log", bytes([2]) * 32)
ROOT = keys.Signer.from_seed("root", bytes([1]) * 32)
ORIGIN = checkpoint.default_origin(LOG.public)
KEYS = [note.Verifier(ORIGIN, LOG.public)]
LEAVES = [merkle.leaf_hash(b"%d" % n) for n in range(11)]
HEAD = checkpoint.Checkpoint(ORIGIN, 11, merkle.root(LEAVES)).format()
NOTE = note.sign_note(HEAD, ORIGIN, LOG)
PROOF = tlog_proof.Proof(6, tuple(merkle.inclusion_proof(6, LEAVES)), NOTE, b"extra").format()
KEY = {"algorithm": "ed25519", "keyid": ROOT.keyid, "public": ROOT.public.raw.hex(), "role": "root"}
ENTRY = envelope.seal(
    entries.statement(
        "key", None, {"signer": ROOT.keyid, "action": "enrol", "key": KEY, "time": "2026-01-02T03:04:05Z"}
    ),
    ROOT,
)


WITNESS = note.Verifier("w.example", keys.Signer.from_seed("witness", bytes([3]) * 32).public, note.COSIGNATURE)
POLICY = f"log {KEYS[0].vkey} url\nwitness w {WITNESS.vkey}\ngroup g all w\nquorum g\n".encode()
REQUEST = witness_request.request_text(6, merkle.consistency_proof(6, LEAVES), NOTE).encode()
ENTRIES = [b"", b"an entry", b"\x00\x01"]
BUNDLE = tiles.encode_bundle(ENTRIES)
BUNDLE_ROOT = merkle.root([merkle.leaf_hash(entry) for entry in ENTRIES])
TILE = b"".join(LEAVES)
OTHER = checkpoint.Checkpoint(ORIGIN, 11, merkle.root(LEAVES[::-1])).format()
FORK = fork.two_roots(NOTE, note.sign_note(OTHER, ORIGIN, LOG))
TRUST = Trust(ORIGIN, KEYS[0], ROOT.public)


def read_policy(data: bytes) -> bytes:
    policy = witness_policy.parse_policy(data)
    policy.satisfied([WITNESS.key])
    return data


def verify_fork(data: bytes) -> None:
    """Mutated evidence may only convict by the log's own two signatures."""
    (check,) = fork.verify_fork(data, TRUST)
    if check.ok is None:
        raise FoundWrong(check.detail)


def read_entry(data: bytes) -> bytes:
    opened = envelope.open_envelope(data)
    entries.check(opened.statement)
    return envelope.assemble(opened.payload, opened.keyid, opened.signature)


def verify_entry(data: bytes) -> None:
    opened = envelope.open_envelope(data)
    opened.verify(ROOT.public)


def verify_checkpoint(data: bytes) -> None:
    """The log's signature is on HEAD: under it, no other text is a checkpoint."""
    checkpoint.parse_checkpoint(data)
    checkpoint.open_checkpoint(data + b"\n" + NOTE.encode().rpartition(b"\n\n")[2], KEYS, ORIGIN)


def verify_bundle(data: bytes) -> None:
    """Entries that lead to another root than was signed are none of the log's."""
    if merkle.root([merkle.leaf_hash(entry) for entry in tiles.decode_bundle(data, len(ENTRIES))]) != BUNDLE_ROOT:
        raise FoundWrong("other entries")


def verify_tile(data: bytes) -> None:
    if merkle.root(tiles.decode_hashes(data, len(LEAVES))) != merkle.root(LEAVES):
        raise FoundWrong("other hashes")


PARSERS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "json": (jcs.encode(KEY), lambda data: jcs.encode(jcs.parse(data))),
    "entry": (ENTRY, read_entry),
    "fork": (FORK, lambda data: jcs.encode(jcs.parse(data))),
    "note": (NOTE.encode(), lambda data: note.parse_note(data).format().encode()),
    "checkpoint": (HEAD.encode(), lambda data: checkpoint.parse_checkpoint(data).format().encode()),
    "proof": (PROOF.encode(), lambda data: tlog_proof.parse(data).format().encode()),
    "policy": (POLICY, read_policy),
    "request": (REQUEST, lambda data: witness_request.parse_request(data).format().encode()),
    "bundle": (BUNDLE, lambda data: tiles.encode_bundle(tiles.decode_bundle(data, 3))),
    "hash tile": (TILE, lambda data: b"".join(tiles.decode_hashes(data, len(LEAVES)))),
    "tile path": (b"tile/0/x001/234.p/7", lambda data: tiles.parse_path(data.decode("latin-1")).path.encode("latin-1")),
    "vkey": (KEYS[0].vkey.encode(), lambda data: note.Verifier.parse(data.decode("latin-1")).vkey.encode("latin-1")),
}
VERIFIERS: dict[str, Callable[[bytes], Any]] = {
    "entry": verify_entry,
    "note": lambda data: note.open_note(data, KEYS),
    "checkpoint": verify_checkpoint,
    "fork": verify_fork,
    "bundle": verify_bundle,
    "hash tile": verify_tile,
    "vkey": lambda data: note.open_note(NOTE, [note.Verifier.parse(data.decode("latin-1"))]),
    "proof": lambda data: tlog_proof.verify(tlog_proof.parse(data), LEAVES[6], KEYS, ORIGIN),
}

TOKENS = st.sampled_from(
    [
        b"\n",
        b"\n\n",
        b" ",
        b"0",
        b"-",
        b"+",
        b"=",
        b'"',
        b"{",
        b"}",
        b"[",
        b",",
        b"\x00",
        b"\xff",
        "—".encode(),
        b"9" * 20,
    ]
)
EDITS = st.lists(
    st.tuples(st.integers(0, 2**16), st.integers(0, 40), TOKENS | st.binary(max_size=4)), min_size=1, max_size=4
)


def mutate(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for position, length, replacement in edits:
        at = position % (len(data) + 1)
        data = data[:at] + replacement + data[at + length :]
    return data


@pytest.mark.parametrize("name", PARSERS)
def test_the_original_comes_back(name: str) -> None:
    data, read = PARSERS[name]
    assert read(data) == data
    if name in VERIFIERS:
        VERIFIERS[name](data)


@pytest.mark.parametrize("name", PARSERS)
@given(edits=EDITS)
def test_mutated_bytes(name: str, edits: list[tuple[int, int, bytes]]) -> None:
    original, read = PARSERS[name]
    reads_or_refuses(read, mutate(original, edits))


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.binary(max_size=200))
def test_random_bytes(name: str, data: bytes) -> None:
    reads_or_refuses(PARSERS[name][1], data)


def reads_or_refuses(read: Callable[[bytes], bytes], data: bytes) -> None:
    try:
        assert read(data) == data
    except BitwitnessError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


@pytest.mark.parametrize("name", VERIFIERS)
@given(edits=EDITS)
def test_nothing_mutated_verifies(name: str, edits: list[tuple[int, int, bytes]]) -> None:
    original = PARSERS[name][0]
    changed = mutate(original, edits)
    if changed == original:
        return
    try:
        VERIFIERS[name](changed)
    except BitwitnessError:
        return
    # What nobody signs may change: the opaque extra line of a proof.
    assert name == "proof" and tlog_proof.parse(changed).checkpoint_note == NOTE
    assert tlog_proof.parse(changed).index == 6
