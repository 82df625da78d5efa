"""Getting the beacon of an announced audit: choosing what it will be, and fetching it once it exists.

The intent names the beacon before anybody can know it. A witness's cosignature is asked for and kept in the ledger; a
randomness round comes as a file. docs/formats/audit.md says what is checked of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwitness.ledger.entry.beacon import Cosignature, find_cosignature, round_randomness
from bitwitness.ledger.entry.drand import find_source, read_round, round_after, round_time, verify_round
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.keys import PublicKey
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import Trust
from bitwitness.ledger.witness_policy import Witness

NONE = {"kind": "none"}
_AHEAD = 60
"""Seconds from now to the round that is chosen: time enough for a witness to see the intent before it."""
_ROUND = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})(?::([1-9][0-9]{0,14}))?")

Json = dict[str, Any]


class BeaconPending(BitwitnessError):
    """Intents stand in the ledger, their beacon is not there yet. `intents` are their indexes.

    `before` is what to do first, if anything, and `options` are those that `ledger audit` then needs beside --intent.
    """

    def __init__(self, intents: Sequence[int], run: str, reason: str, before: str, options: str = "") -> None:
        self.intents, self.reason, self.before, self.options = tuple(intents), reason, before, options
        numbers = ", ".join(map(str, intents))
        waits = (
            f"intents {numbers} of run {run} wait for their"
            if len(intents) > 1
            else f"intent {numbers} of run {run} waits for its"
        )
        again = " ".join([f"ledger audit {run}", *([options] if options else []), *(f"--intent {n}" for n in intents)])
        super().__init__(f"{waits} beacon: {reason}; {before}then `{again}`")

    @classmethod
    def of_line(cls, run: str, pending: Sequence[BeaconPending]) -> BeaconPending:
        """Intents of several runs that lead to `run`, which one command goes on with."""
        first = pending[0]
        intents = [intent for one in pending for intent in one.intents]
        return cls(intents, run, first.reason, first.before, " ".join(["--history", first.options]).strip())


@dataclass(frozen=True)
class Beacon:
    """What an audit carries (`given`), and the bytes that its seed is made of."""

    given: Json
    value: bytes


def choose(text: str, trust: Trust | None, now: int) -> Json:
    """What `--beacon TEXT` names, as an intent says it: witness:NAME, or SOURCE[:ROUND] of public randomness.

    Raises BitwitnessError.
    """
    kind, _, name = text.partition(":")
    if kind == "witness":
        return {"kind": "cosignature", "witness": _witness(name, trust).verifier.key.keyid}
    match = _ROUND.fullmatch(text)
    if match is None:
        raise BitwitnessError(f"--beacon {text}: give witness:NAME, or a round such as quicknet or quicknet:12345678")
    source = find_source(match[1])
    first = round_after(source, now + _AHEAD)
    number = int(match[2]) if match[2] else first
    if number < first:
        raise BitwitnessError(f"--beacon {text}: that round is out, or too near; the first that will do is {first}")
    if trust is None or not trust.cosigners:
        raise BitwitnessError(
            "a round needs a witness that saw the intent before it; name one in [witnesses] of trust.toml"
        )
    return {"kind": "round", "round": number, "source": match[1]}


def _witness(name: str, trust: Trust | None) -> Witness:
    known = () if trust is None or trust.witnesses is None else trust.witnesses.witnesses
    found = next((item for item in known if item.name == name), None)
    if found is None:
        names = ", ".join(item.name for item in known) or "none"
        raise BitwitnessError(f"trust.toml names no witness {name!r}; it has {names}")
    return found


def obtain(
    ledger: Ledger,
    run: str,
    intent: int,
    named: Mapping[str, Any],
    signed: str,
    trust: Trust | None,
    file: bytes | None,
) -> Beacon:
    """The beacon that the intent at `intent` names, with its evidence; witnesses are asked where that is needed.

    `signed` is a checkpoint note of the ledger as it stands, `file` what the user has of a round. Raises BeaconPending,
    RoundUnusable, CannotVerify, BeaconWrong.
    """
    witnesses = [item for item in _witnesses(trust) if named["kind"] == "round" or _is(item, named["witness"])]
    kept = ledger.checkpoints_over(intent)
    cosignature = _first(ledger, kept, witnesses, intent)
    if cosignature is None:
        cosigned, reason = _ask(ledger, signed, witnesses)
        cosignature = _first(ledger, [cosigned], witnesses, intent)
        if cosignature is None:
            raise BeaconPending([intent], run, reason, "have it cosign by `ledger checkpoint`, ")
    given: Json = {"cosignature": cosignature.to_json(), "kind": named["kind"]}
    if named["kind"] == "cosignature":
        return Beacon(given, cosignature.beacon)
    source, number = named["source"], named["round"]
    due = round_time(find_source(source), number)
    if cosignature.time >= due:
        raise BitwitnessError(
            f"no witness cosigned intent {intent} before round {number} of {source}; it can no longer be answered"
        )
    if file is None:
        reason = f"round {number} of {source}, due {rfc3339.text_of_seconds(due)}"
        raise BeaconPending([intent], run, reason, "", "--round FILE")
    signature = read_round(file, number)
    verify_round(source, number, signature)
    randomness = round_randomness(signature)
    given["round"] = {"randomness": randomness.hex(), "signature": signature.hex()}
    return Beacon(given, randomness)


def _witnesses(trust: Trust | None) -> tuple[Witness, ...]:
    return () if trust is None or trust.witnesses is None else trust.witnesses.witnesses


def _is(witness: Witness, keyid: str) -> bool:
    return witness.verifier.key.keyid == keyid


def _first(ledger: Ledger, notes: list[str], witnesses: list[Witness], intent: int) -> Cosignature | None:
    """The first of their cosignatures in `notes` over a checkpoint of the ledger that holds the intent."""
    found = [
        (time, witness.verifier.key, checkpoint, signature)
        for witness in witnesses
        if (one := find_cosignature(notes, ledger.origin, witness.verifier.key, intent)) is not None
        for checkpoint, time, signature in [one]
    ]
    if not found:
        return None
    time, key, checkpoint, signature = min(found, key=_time)
    proof = ledger.inclusion_proof(intent, checkpoint.size)
    return Cosignature(key, checkpoint.size, checkpoint.root, time, signature, proof)


def _time(item: tuple[int, PublicKey, Any, bytes]) -> int:
    return item[0]


def _ask(ledger: Ledger, signed: str, witnesses: list[Witness]) -> tuple[str, str]:
    """Ask those that have an address for cosignatures of `signed`: the note with them, and why there may be none."""
    from bitwitness.ledger.witnessing.cosign import Target, collect  # httpx takes a tenth of a second to import

    targets = [Target(item.url, item.verifier) for item in witnesses if item.url is not None]
    if not witnesses:
        return signed, "trust.toml does not name its witness"
    if not targets:
        return signed, "its witness has no address in trust.toml"
    done = collect(ledger, signed, targets, keep=ledger.writable)
    return done.note, "; ".join(map(str, done.failures)) or "no witness cosigned"
