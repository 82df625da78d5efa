"""The outsider's verifier, written from docs/formats alone, and ours say the same, of right and of wrong."""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import checkpoint, keys, merkle, note
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.prove import prove
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow import fork
from bitwitness.ledger.proof_file import verify_proof
from bitwitness.ledger.store import Ledger

from . import outside
from . import small_ledger as small
from .outside import Wrong

LOG, ROOT = small.TRUST.log.vkey, small.SIGNERS["root"].public.raw
WITNESS = note.Verifier("w.example", small.SIGNERS["witness"].public, note.COSIGNATURE)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outside") / "ledger.db"
    with small.with_run(path, 300) as made:
        signed = made.sign_checkpoint(small.SIGNERS["log"])
        body = note.parse_note(signed).text
        line = note.cosignature_line(body, WITNESS.name, small.SIGNERS["witness"], 1_700_000_000)
        made.keep_checkpoint(note.add_signatures(signed, [line]))
    return path


def agrees(ours: Callable[[], Any], theirs: Callable[[], Any], what: object) -> bool:
    """Whether both take it, or both refuse it."""
    answers = []
    for ask, refusal in ((ours, BitwitnessError), (theirs, Wrong)):
        try:
            ask()
            answers.append(True)
        except refusal:
            answers.append(False)
    assert answers[0] == answers[1], (what, answers)
    return answers[0]


def test_it_is_an_outsider() -> None:
    tree = ast.parse(Path(outside.__file__).read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {item.name for node in ast.walk(tree) if isinstance(node, ast.Import) for item in node.names}
    assert not [name for name in names if name is None or "bitwitness" in name or "ledger" in name]


def test_the_whole_log_from_its_static_files(ledger: Path, tmp_path: Path) -> None:
    with Ledger.open(ledger) as opened:
        export_tiles(opened, tmp_path)
        wanted = [data for _index, data in opened.entries()]
    entries, names = outside.read_tiles(tmp_path, LOG, ROOT, WITNESS.vkey)
    assert entries == wanted and names == [small.ORIGIN, "w.example"] and len(entries) > 256
    enrolled: dict[str, tuple[str, bytes]] = {}
    for entry in entries:
        statement, by = outside.read_entry(entry)
        kind, predicate = outside.kind_of(statement), statement["predicate"]
        if kind == "key":
            assert by(ROOT)
            key = predicate["key"]
            enrolled[key["keyid"]] = (key["role"], bytes.fromhex(key["public"]))
        else:
            role, public = enrolled[predicate["signer"]]
            assert role in outside.ROLES[kind] and by(public)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        for changed in (data[:-1], data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]):
            path.write_bytes(changed)
            with pytest.raises(Wrong):
                outside.read_tiles(tmp_path, LOG, ROOT, WITNESS.vkey)
        path.write_bytes(data)


def test_proofs_that_stand_alone(ledger: Path) -> None:
    with Ledger.open(ledger) as opened:
        proofs = [prove(opened, index).format().encode() for index in (0, 1, 6, 7, 8, 200, 307)]
    for proof in proofs:
        assert all(check.ok for check in verify_proof(proof, small.TRUST))
        outside.check_proof(proof, LOG, ROOT)
    proof = proofs[4]
    # Lines that nobody knows may stand in a note: the cosignature's own bytes mean nothing to who pins no witness.
    for at in range(0, proof.index("— w.example".encode()), 5):
        changed = proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]
        assert not all(check.ok for check in verify_proof(changed, small.TRUST)), at
        with pytest.raises((Wrong, ValueError, KeyError, TypeError)):
            outside.check_proof(changed, LOG, ROOT)
    for vkey, root in ((LOG, small.SIGNERS["log"].public.raw), (WITNESS.vkey, ROOT)):
        with pytest.raises(Wrong):
            outside.check_proof(proof, vkey, root)


@pytest.mark.parametrize("name", ["inclusion", "consistency"])
def test_public_proofs_are_judged_alike(vectors: Path, name: str) -> None:
    taken = 0
    for case in json.loads((vectors / "merkle" / f"{name}.json").read_text()):
        hashes = [base64.b64decode(item or "") for item in case["proof"] or []]
        values = [base64.b64decode(case[key] or "") for key in ("root", "leafHash", "root1", "root2") if key in case]
        if name == "inclusion":
            ours, theirs = merkle.verify_inclusion, outside.check_inclusion
            arguments = (case["leafIdx"], case["treeSize"], values[1], hashes, values[0])
            taken += agrees(lambda: ours(*arguments), lambda: theirs(*arguments), case)  # noqa: B023
        else:
            sizes = (case["size1"], case["size2"], *values)
            taken += agrees(
                lambda: merkle.verify_consistency(*sizes, hashes),  # noqa: B023
                lambda: outside.check_consistency(*sizes, hashes),  # noqa: B023
                case,
            )
    assert taken >= 3


def test_public_notes_are_judged_alike(vectors: Path) -> None:
    data = json.loads((vectors / "tlog" / "signed_notes.json").read_text())
    cases = [(case["note"].encode(), case["vkey"]) for case in data["cases"]]
    cases += [(base64.b64decode(case["note_b64"]), case["vkey"]) for case in data["malformed_notes"]]
    cases += [(text[:at] + b"\0" + text[at:], vkey) for text, vkey in cases[:3] for at in (0, 9, len(text))]
    taken = 0
    for text, vkey in cases:
        if base64.b64decode(vkey.split("+", 2)[2])[0] in (1, 4):
            taken += agrees(
                lambda: note.open_note(text, [note.Verifier.parse(vkey)]),  # noqa: B023
                lambda: outside.open_note(text, vkey),  # noqa: B023
                text,
            )
    assert taken >= 15


def test_evidence_against_nobody() -> None:
    """What mirrors find convicts here, too (test_mirror.py); a log that did nothing wrong is not convicted."""

    def signed(text: str, signer: keys.Signer = small.SIGNERS["log"]) -> str:
        leaves = [merkle.leaf_hash(entry.encode()) for entry in text]
        return note.sign_note(checkpoint.Checkpoint(small.ORIGIN, len(leaves), merkle.root(leaves)).format(),
                              small.ORIGIN, signer)  # fmt: skip

    def hashes(text: str, size: int) -> list[bytes]:
        return fork.prefix_hashes(
            size, len(text), merkle.nodes_of([merkle.leaf_hash(entry.encode()) for entry in text])
        )

    stranger = keys.Signer.from_seed("log", bytes(32))
    for guilty, evidence in (
        (True, fork.two_roots(signed("ab"), signed("ax"))),
        (True, fork.two_histories(signed("ab"), signed("axc"), hashes("axc", 2))),
        (True, fork.two_histories(signed("abc"), signed("axcdefg"), hashes("axcdefg", 3))),
        (False, fork.two_roots(signed("ab"), signed("ab"))),
        (False, fork.two_roots(signed("ab"), signed("axc"))),
        (False, fork.two_roots(signed("ab"), signed("ax", stranger))),
        (False, fork.two_histories(signed("abc"), signed("abcde"), hashes("abcde", 3))),
        (False, fork.two_histories(signed("ab"), signed("axc"), hashes("abc", 2))),
        (False, fork.two_histories(signed("ab"), signed("axc"), hashes("axc", 2)[:1])),
    ):
        assert (fork.verify_fork(evidence, small.TRUST)[0].ok is False) == guilty
        if guilty:
            outside.check_fork(evidence, LOG, ROOT)
        else:
            with pytest.raises(Wrong):
                outside.check_fork(evidence, LOG, ROOT)
