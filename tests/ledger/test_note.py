"""Signed notes: the public cases, our own signatures, and strictness to the byte."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from bitwitness.ledger import keys, note
from bitwitness.ledger.errors import BitwitnessError, FoundWrong, NoKnownSigner, NoteError, SignatureError
from bitwitness.ledger.note import COSIGNATURE, Verifier, open_note, parse_note, sign_note

SIGNER = keys.Signer.from_seed("log", bytes([2]) * 32)
NAME = "log.example/1"
BODY = "a text\n\nwith an empty line\n"
VERIFIER = Verifier(NAME, SIGNER.public)
NOTE = sign_note(BODY, NAME, SIGNER)

# ECDSA (0x02) and RFC 6962 tree head (0x05) signatures are not supported: the logs and witnesses of this format
# sign with Ed25519, and the specification advises against more types than needed.
UNSUPPORTED = {0x02, 0x05}


def test_public_cases(vectors: Path) -> None:
    cases = json.loads((vectors / "tlog" / "signed_notes.json").read_text())["cases"]
    seen = {True: 0, False: 0}
    for case in cases:
        assert parse_note(case["note"]).format() == case["note"]
        encoded = case["vkey"].split("+", 2)[2]
        if base64.b64decode(encoded)[0] in UNSUPPORTED:
            with pytest.raises(NoteError, match="not supported"):
                Verifier.parse(case["vkey"])
            continue
        verifier = Verifier.parse(case["vkey"])
        assert verifier.vkey == case["vkey"]
        if case["expect_valid"]:
            opened = open_note(case["note"], [verifier])
            assert opened.by(verifier) is not None
            assert opened.format() == case["note"]
        else:
            with pytest.raises(SignatureError):
                open_note(case["note"], [verifier])
        seen[case["expect_valid"]] += 1
    assert seen[True] >= 15 and seen[False] >= 2


def test_public_malformed_notes_and_keys(vectors: Path) -> None:
    data = json.loads((vectors / "tlog" / "signed_notes.json").read_text())
    for vkey in data["bad_vkeys"]:
        with pytest.raises(NoteError):
            Verifier.parse(vkey)
    for case in data["malformed_notes"]:
        with pytest.raises(FoundWrong):
            open_note(base64.b64decode(case["note_b64"]), [Verifier.parse(case["vkey"])])


def test_golden(golden: Any) -> None:
    cosigned = note.add_signatures(NOTE, [note.cosignature_line(BODY, "witness.example", SIGNER, 1679315147)])
    golden("ledger-1.json").check("note", NOTE)
    golden("ledger-1.json").check("note cosigned", cosigned)
    golden("ledger-1.json").check("vkey", VERIFIER.vkey)
    golden("ledger-1.json").check("vkey witness", Verifier("witness.example", SIGNER.public, COSIGNATURE).vkey)


def test_sign_and_open() -> None:
    opened = open_note(NOTE, [VERIFIER])
    assert opened.text == BODY and opened.format() == NOTE
    assert open_note(NOTE.encode(), [VERIFIER]) == opened
    (signature,) = opened.verified
    assert signature.verifier == VERIFIER and signature.timestamp is None
    assert Verifier.parse(VERIFIER.vkey) == VERIFIER


def test_cosignatures_carry_their_time() -> None:
    witness = Verifier("witness.example", SIGNER.public, COSIGNATURE)
    for timestamp in (0, 1679315147, 2**63 - 1):
        line = note.cosignature_line(BODY, "witness.example", SIGNER, timestamp)
        cosigned = note.add_signatures(NOTE, [line])
        opened = open_note(cosigned, [VERIFIER, witness])
        found = opened.by(witness)
        assert found is not None and found.timestamp == timestamp
        assert open_note(cosigned, [VERIFIER]).by(witness) is None
        assert note.add_signatures(cosigned, [line]) == cosigned
    for timestamp in (-1, 2**63):
        with pytest.raises(NoteError, match="timestamp"):
            note.cosignature_line(BODY, "witness.example", SIGNER, timestamp)
    late = note.SignatureLine("witness.example", witness.key_id, b"\xff" * 72)
    short = note.SignatureLine("witness.example", witness.key_id, b"\xff" * 64)
    for line in (late, short):
        with pytest.raises(SignatureError):
            open_note(note.add_signatures(NOTE, [line]), [witness])


def test_cosignatures_are_of_72_bytes_and_of_a_time_that_is_one() -> None:
    witness = Verifier("witness.example", SIGNER.public, COSIGNATURE)
    good = note.cosignature_line(BODY, "witness.example", SIGNER, 7).signature
    for signature in (good[:3], good[:8], good[:-1], good + b"\0", good[8:]):
        line = note.SignatureLine("witness.example", witness.key_id, signature)
        with pytest.raises(SignatureError, match="not 72 bytes"):
            open_note(note.add_signatures(NOTE, [line]), [witness])
    # What the witness itself has signed, of a time that no clock shows.
    late = (2**63).to_bytes(8, "big") + SIGNER.sign(f"cosignature/v1\ntime {2**63}\n{BODY}".encode())
    line = note.SignatureLine("witness.example", witness.key_id, late)
    with pytest.raises(SignatureError, match="no valid time"):
        open_note(note.add_signatures(NOTE, [line]), [witness])


@pytest.mark.parametrize("type", [0, 2, 5, 6, 255])
def test_keys_of_other_types_make_no_verifier(type: int) -> None:
    with pytest.raises(NoteError, match="not supported"):
        Verifier(NAME, SIGNER.public, type)


def test_what_is_wrong_is_said() -> None:
    for text, says in (
        (LINE, "no empty line before"),
        (BODY + "\n", "no signature lines that end"),
        (BODY + "\n" + LINE.rstrip("\n"), "no signature lines that end"),
    ):
        with pytest.raises(NoteError, match=says):
            parse_note(text)
    for vkey, says in (
        (f"{'x' * 1000}+{ID}+{KEY}", "at most 1000 characters"),
        (f"{NAME}+{ID}0+{KEY}", "8 hex digits"),
        (f"{NAME}+{ID[:-1]}+{KEY}", "8 hex digits"),
        (f"{NAME}+00000000+{KEY}", "the key id is"),
    ):
        with pytest.raises(NoteError, match=says):
            Verifier.parse(vkey)


def test_every_byte_changed_is_caught() -> None:
    data = NOTE.encode()
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(BitwitnessError):
                open_note(bytes(changed), [VERIFIER])


def test_every_truncation_is_caught() -> None:
    for end in range(len(NOTE)):
        with pytest.raises(BitwitnessError):
            open_note(NOTE[:end], [VERIFIER])


def test_known_key_with_a_bad_signature_rejects_the_note_though_another_is_good() -> None:
    other = keys.Signer.from_seed("witness", bytes([6]) * 32)
    good = note.signature_line(BODY, "other.example", other)
    wrong = note.SignatureLine(NAME, VERIFIER.key_id, bytes(64))
    both = note.Note(BODY, (good, wrong)).format()
    known = Verifier("other.example", other.public)
    assert open_note(both, [known]).verified
    with pytest.raises(SignatureError, match=NAME):
        open_note(both, [known, VERIFIER])


def test_unknown_signatures_are_ignored_and_none_known_could_not_be_checked() -> None:
    other = keys.Signer.from_seed("witness", bytes([6]) * 32)
    same_name = note.SignatureLine(NAME, b"abcd", bytes(64))
    same_id = note.SignatureLine("other.example", VERIFIER.key_id, bytes(64))
    many = note.add_signatures(NOTE, [same_name, same_id])
    assert len(open_note(many, [VERIFIER]).verified) == 1
    with pytest.raises(NoKnownSigner) as caught:
        open_note(many, [Verifier("third.example", other.public)])
    assert caught.value.exit_code == 2
    with pytest.raises(NoKnownSigner):
        open_note(many, [])


def test_sixteen_signatures_and_more_are_accepted_and_their_number_capped() -> None:
    lines = [note.SignatureLine(f"w{number}", b"abcd", bytes(100)) for number in range(note.MAX_SIGNATURES)]
    full = note.add_signatures(NOTE, lines[:-1])
    assert len(open_note(full, [VERIFIER]).lines) == note.MAX_SIGNATURES
    with pytest.raises(NoteError, match="more than 100"):
        open_note(note.Note(BODY, (*parse_note(full).lines, lines[-1])).format(), [VERIFIER])


LINE = NOTE.rpartition("\n\n")[2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "\n\n",
        BODY,
        BODY + "\n",
        BODY + LINE,
        BODY + "\n" + LINE.removesuffix("\n"),
        BODY + "\n" + LINE + "\n",
        BODY + "\n" + LINE + "x\n",
        BODY + "\n" + LINE.replace("\N{EM DASH}", "-"),
        BODY + "\n" + LINE.replace("\N{EM DASH} ", "\N{EM DASH}"),
        BODY + "\n" + LINE.replace(NAME, ""),
        BODY + "\n" + LINE.replace(NAME, "a+b"),
        BODY + "\n" + LINE.replace(NAME, "a b"),
        BODY + "\n" + LINE.replace(NAME, "a\N{NO-BREAK SPACE}b"),
        BODY + "\n" + LINE.replace(NAME, "a\u2003b"),
        BODY + "\n" + LINE.replace("\n", " \n"),
        BODY + "\n" + LINE.replace("=\n", "\n"),
        BODY + "\n" + LINE.replace("\n", "=\n"),
        BODY + "\n" + f"\N{EM DASH} {NAME} AAAAAA==\n",
        BODY + "\n" + f"\N{EM DASH} {NAME} \n",
        BODY + "\n" + f"\N{EM DASH} {NAME}\n",
        BODY.replace("a", "\t") + "\n" + LINE,
        BODY.replace("a", "\r") + "\n" + LINE,
        BODY.replace("a", "\x00") + "\n" + LINE,
        BODY.replace("\n", "\r\n") + "\r\n" + LINE.replace("\n", "\r\n"),
    ],
)
def test_malformed(text: str) -> None:
    with pytest.raises(NoteError):
        parse_note(text)


def test_not_utf8_and_too_long() -> None:
    for data in (b"\xff\n\n", NOTE.encode().replace(b"a text", b"\xed\xa0\x80")):
        with pytest.raises(NoteError, match="UTF-8"):
            parse_note(data)
    with pytest.raises(NoteError, match="UTF-8"):
        parse_note("\ud800" + NOTE)
    with pytest.raises(NoteError, match="more than"):
        parse_note("x" * note.MAX_NOTE + NOTE)


def test_the_last_empty_line_splits() -> None:
    body = "a\n\n\u2014 b AAAAAAAA\n\n\n"
    signed = sign_note(body, NAME, SIGNER)
    assert open_note(signed, [VERIFIER]).text == body


@pytest.mark.parametrize("body", ["", "no newline", "tab\t\n", "\x01\n"])
def test_bodies_that_cannot_be_signed(body: str) -> None:
    with pytest.raises(NoteError):
        sign_note(body, NAME, SIGNER)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\u3000b"])
def test_names_that_cannot_sign(name: str) -> None:
    with pytest.raises(NoteError):
        sign_note(BODY, name, SIGNER)


GOOD = VERIFIER.vkey
ID, KEY = GOOD.split("+")[1], GOOD.split("+", 2)[2]


@pytest.mark.parametrize(
    "vkey",
    [
        "",
        NAME,
        f"{NAME}+{ID}",
        f"+{ID}+{KEY}",
        f"{NAME}+{ID.upper()}+{KEY}" if ID.upper() != ID else f"{NAME}+X{ID[1:]}+{KEY}",
        f"{NAME}+0{ID}+{KEY}",
        f"{NAME}+00000000+{KEY}",
        f"{NAME}2+{ID}+{KEY}",
        f"{NAME}+{ID}+{KEY}=",
        f"{NAME}+{ID}+{KEY[:-1]}",
        f"{NAME}+{ID}+",
        f" {NAME}+{ID}+{KEY}",
        f"{NAME}+{ID}+{KEY}\n",
        "x" * 2000,
    ],
)
def test_verifier_keys_are_strict(vkey: str) -> None:
    with pytest.raises(NoteError):
        Verifier.parse(vkey)


def test_low_order_verifier_keys_are_refused() -> None:
    raw = bytes([1]) + bytes(31)
    key_id = note._key_id(NAME, note.ED25519, raw).hex()
    with pytest.raises(NoteError, match="low order"):
        Verifier.parse(f"{NAME}+{key_id}+{base64.b64encode(bytes([1]) + raw).decode()}")


@pytest.mark.parametrize("name", ["h\u00e9llo.example/\u65e5\u672c", "a\u200bb", "\U0001f511", "a=b/c#d", "x" * 900])
def test_names_of_any_script_sign_and_come_back(name: str) -> None:
    verifier = Verifier(name, SIGNER.public)
    assert Verifier.parse(verifier.vkey) == verifier
    signed = sign_note(BODY, name, SIGNER)
    assert open_note(signed.encode(), [verifier]).format() == signed


def test_a_key_part_may_hold_plus_signs_and_a_name_may_not() -> None:
    made = [keys.Signer.from_seed("log", bytes([number]) * 32) for number in range(64)]
    signer = next(item for item in made if "+" in Verifier(NAME, item.public).vkey.split("+", 2)[2])
    vkey = Verifier(NAME, signer.public).vkey
    assert Verifier.parse(vkey).vkey == vkey
    for name in ("a+b", "+a", "a+"):
        key_id = note._key_id(name, note.ED25519, signer.public.raw).hex()
        with pytest.raises(NoteError):
            Verifier.parse(f"{name}+{key_id}+{vkey.split('+', 2)[2]}")


def test_signatures_of_other_types_are_ignored_whatever_they_hold() -> None:
    """ML-DSA-44 (06), RFC 6962 tree heads (05), ECDSA (02): 16 and more of them, nearly 5 kB each."""
    types = (0x02, 0x05, 0x06, 0xFF)
    lines = [
        note.SignatureLine(NAME, note._key_id(NAME, types[number % 4], bytes([number]) * 1312), bytes([number]) * 4900)
        for number in range(32)
    ]
    mixed = note.Note(BODY, (*lines[:16], *parse_note(NOTE).lines, *lines[16:])).format()
    opened = open_note(mixed, [VERIFIER])
    assert len(opened.verified) == 1 and len(opened.lines) == 33 and opened.format() == mixed


@pytest.mark.parametrize("thing", [None, 7, ["x"], memoryview(b"x")])
def test_what_is_neither_text_nor_bytes_is_refused_as_a_malformed_note_is(thing: Any) -> None:
    with pytest.raises(NoteError):
        open_note(thing, [VERIFIER])
    with pytest.raises(NoteError):
        Verifier.parse(thing)


def test_two_keys_of_one_name_and_id_are_refused() -> None:
    class Twin(Verifier):
        @property
        def key_id(self) -> bytes:
            return VERIFIER.key_id

    twin = Twin(NAME, keys.Signer.from_seed("log", bytes(32)).public)
    with pytest.raises(NoteError, match="share a key id"):
        open_note(NOTE, [VERIFIER, twin])
    assert open_note(NOTE, [VERIFIER, VERIFIER]).verified
