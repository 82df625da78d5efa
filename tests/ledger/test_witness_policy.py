"""tlog-policy: the public cases, and what a quorum is."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from bitwitness.ledger import keys, note
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.note import COSIGNATURE, ED25519, Verifier
from bitwitness.ledger.witness_policy import WitnessPolicyError, parse_policy

SIGNERS = [keys.Signer.from_seed("witness", bytes([40 + number]) * 32) for number in range(6)]
VKEYS = [Verifier(f"w{n}.example", signer.public, COSIGNATURE).vkey for n, signer in enumerate(SIGNERS)]
LOG = Verifier("log.example", keys.Signer.from_seed("log", bytes(32)).public)
LINES = "".join(f"witness w{n} {vkey} http://127.0.0.1/{n}\n" for n, vkey in enumerate(VKEYS))


def test_public_cases(vectors: Path) -> None:
    """Three cases that this library's origin accepts name one key twice, which the specification forbids."""
    cases = json.loads((vectors / "tlog" / "tlog_policy.json").read_text())["cases"]
    duplicates = {"group numerical", "group all", "group any"}
    for case in cases:
        if case["error"] is not None or case["desc"] in duplicates:
            reason = "same public key" if case["desc"] in duplicates else None
            with pytest.raises(WitnessPolicyError, match=reason):
                parse_policy(case["policy"])
            continue
        policy = parse_policy(case["policy"])
        assert [item.name for item in policy.witnesses] == ["w1", "w2"]
        assert policy.groups[0].threshold == 2 and policy.quorum == "g1"
        assert policy.witnesses[0].url == "https://sigsum.org/witness/"


def test_public_thresholds_without_the_duplicates(vectors: Path) -> None:
    cases = json.loads((vectors / "tlog" / "tlog_policy.json").read_text())["cases"]
    for case in cases:
        if case["wantN"] is None:
            continue
        lines = [line for line in case["policy"].split("\n") if not line.startswith("witness w3")]
        text = "\n".join(lines).replace(" w3", "")
        threshold = parse_policy(text).groups[0].threshold
        assert threshold == (2 if case["desc"] == "group all" else case["wantN"])


def test_quorum_of_nested_groups_in_every_combination() -> None:
    text = LINES + "group x 2 w0 w1 w2\ngroup y any w3 w4\ngroup both all x y\nquorum both\n"
    policy = parse_policy(text)
    for chosen in itertools.chain.from_iterable(itertools.combinations(range(6), n) for n in range(7)):
        wanted = len(set(chosen) & {0, 1, 2}) >= 2 and bool(set(chosen) & {3, 4})
        assert policy.satisfied(SIGNERS[number].public for number in chosen) == wanted
    assert policy.describe() == "2 of x, y"


@pytest.mark.parametrize("rule", ["any", "all", "1", "2", "6"])
def test_thresholds(rule: str) -> None:
    policy = parse_policy(LINES + f"group g {rule} w0 w1 w2 w3 w4 w5\nquorum g")
    needed = {"any": 1, "all": 6}.get(rule) or int(rule)
    for number in range(7):
        assert policy.satisfied(signer.public for signer in SIGNERS[:number]) == (number >= needed)


def test_none_and_one_witness() -> None:
    assert parse_policy("quorum none").satisfied([])
    policy = parse_policy(f"log {LOG.vkey} https://log.example/\n" + LINES + "quorum w3\n")
    assert policy.satisfied([SIGNERS[3].public]) and not policy.satisfied([SIGNERS[2].public])
    assert policy.logs[0].verifier == LOG and policy.logs[0].url == "https://log.example/"


def test_cosignatures_on_a_note_and_their_time() -> None:
    policy = parse_policy(LINES + "group g 2 w0 w1 w2\nquorum g\n")
    nobody = parse_policy(LINES + "quorum none\n")
    body = "log.example\n1\n" + "A" * 43 + "=\n"
    text = note.sign_note(body, "log.example", keys.Signer.from_seed("log", bytes(32)))
    for count, expected in ((1, None), (2, 100), (3, 200)):
        lines = [note.cosignature_line(body, f"w{n}.example", SIGNERS[n], 100 * (n + 1)) for n in range(count)]
        opened = note.open_note(note.add_signatures(text, lines), [LOG, *policy.verifiers])
        assert policy.met_by(opened) == (expected is not None)
        assert policy.witnessed_at(opened) == expected
        assert nobody.met_by(opened) and nobody.witnessed_at(opened) is None  # it asks nobody when
        assert len(policy.cosignatures(opened)) == count


def test_keys_of_type_1_are_read_as_cosigners() -> None:
    vkey = Verifier("w.example", SIGNERS[0].public, ED25519).vkey
    policy = parse_policy(f"witness w {vkey}\nquorum w")
    assert policy.verifiers == (Verifier("w.example", SIGNERS[0].public, COSIGNATURE),)


def test_names_are_octets() -> None:
    text = b"witness \xe2\x84\xaa " + VKEYS[0].encode() + b"\nwitness K " + VKEYS[1].encode()
    policy = parse_policy(text + b"\nwitness \xff\xfe " + VKEYS[2].encode() + b" # \xff\nquorum \xff\xfe\n")
    assert policy.satisfied([SIGNERS[2].public]) and not policy.satisfied([SIGNERS[0].public])
    assert len({item.name for item in policy.witnesses}) == 3


SAME_KEY = Verifier("other.example", SIGNERS[0].public, COSIGNATURE).vkey


@pytest.mark.parametrize(
    "text",
    [
        "",
        "quorum",
        "quorum none none",
        "quorum none\nquorum none",
        "quorum w0\n" + LINES,
        LINES + "quorum any",
        LINES + "group g 0 w0\nquorum g",
        LINES + "group g 01 w0\nquorum g",
        LINES + "group g +1 w0\nquorum g",
        LINES + "group g 2 w0\nquorum g",
        LINES + "group g all\nquorum g",
        LINES + "group g all w0 w0\nquorum g",
        LINES + "group g all g\nquorum g",
        LINES + "group g all none\nquorum g",
        LINES + "group w0 all w1\nquorum w0",
        LINES + "group any all w1\nquorum w0",
        LINES + f"witness other {SAME_KEY}\nquorum w0",
        LINES + f"witness w0 {VKEYS[0]}\nquorum w0",
        f"log {LOG.vkey}\nlog {LOG.vkey}\nquorum none",
        f"log {LOG.vkey}\nlog {Verifier('other.example', LOG.key).vkey}\nquorum none",
        f"log {VKEYS[0]}\nquorum none",
        f"witness w {VKEYS[0]} url more\nquorum w",
        f"witness w {VKEYS[0][:-2]}\nquorum w",
        "Quorum none",
        "quorum none\r\n",
        "quorum\x0bnone",
        "quorum none\x00",
        "# a comment with \x00\nquorum none",
        "# a comment with \x7f\nquorum none",
        "# a comment with \r\nquorum none",
        "quorum\u00a0none",
        "\ud800quorum none",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(WitnessPolicyError):
        parse_policy(text)


def test_forty_logs_witnesses_and_groups_are_read() -> None:
    """The specification asks for at least 32 of each."""
    made = [keys.Signer.from_seed("witness", bytes([1, number]) * 16).public for number in range(80)]
    text = "".join(
        f"log {Verifier(f'l{n}.example', key).vkey} https://l{n}.example/\n" for n, key in enumerate(made[:40])
    )
    for number, key in enumerate(made[40:]):
        text += f"witness w{number} {Verifier(f'w{number}.example', key, COSIGNATURE).vkey}\n"
        text += f"group g{number} all w{number}" + (f" g{number - 1}\n" if number else "\n")
    policy = parse_policy(text + "quorum g39\n")
    assert (len(policy.logs), len(policy.witnesses), len(policy.groups)) == (40, 40, 40)
    assert policy.satisfied(made[40:]) and not policy.satisfied(made[41:])


def test_too_long() -> None:
    for text in ("#" * (1 << 21), "\n" * 20_000):
        with pytest.raises(BitwitnessError, match="more than"):
            parse_policy(text)
