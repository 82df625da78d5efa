"""Which witnesses must have cosigned a checkpoint, C2SP tlog-policy (docs/formats/witness-policy.md).

Names are octet strings that mean nothing outside the file. Text is held with surrogate escapes, so that octets that
are not UTF-8 come back as they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import BitwitnessError, NoteError
from .keys import PublicKey
from .note import COSIGNATURE, ED25519, Note, Verified, Verifier

NONE = "none"
MAX_POLICY = 1 << 20
MAX_LINES = 10_000
_KEYWORDS = ("none", "any", "all")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_BLANKS = re.compile("[ \t]+")
_THRESHOLD = re.compile("[1-9][0-9]{0,8}")


class WitnessPolicyError(BitwitnessError):
    """A policy that does not follow C2SP tlog-policy. `line` counts from 1; 0 is the file as a whole."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"witness policy, line {line}: {reason}" if line else f"witness policy: {reason}")
        self.line = line
        self.reason = reason


@dataclass(frozen=True)
class Log:
    """A log that is followed: its key's name is its origin."""

    verifier: Verifier
    url: str | None = None


@dataclass(frozen=True)
class Witness:
    """A witness under the policy's name for it; `verifier` is of type COSIGNATURE, with the name that it signs by."""

    name: str
    verifier: Verifier
    url: str | None = None


@dataclass(frozen=True)
class Group:
    """It has witnessed what at least `threshold` of its members, witnesses or groups, have witnessed."""

    name: str
    threshold: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class WitnessPolicy:
    """A whole policy. `quorum` names a witness or a group, or is NONE: nobody need have cosigned."""

    logs: tuple[Log, ...]
    witnesses: tuple[Witness, ...]
    groups: tuple[Group, ...]
    quorum: str

    @property
    def verifiers(self) -> tuple[Verifier, ...]:
        """The keys whose cosignatures count."""
        return tuple(witness.verifier for witness in self.witnesses)

    def satisfied(self, cosigners: Iterable[PublicKey]) -> bool:
        """Whether cosignatures by these keys meet the quorum; `none` is met by nobody's."""
        if self.quorum == NONE:
            return True
        keys = {key.raw for key in cosigners}
        witnessed = {item.name for item in self.witnesses if item.verifier.key.raw in keys}
        for group in self.groups:  # each refers only to what stands before it
            if sum(member in witnessed for member in group.members) >= group.threshold:
                witnessed.add(group.name)
        return self.quorum in witnessed

    def cosignatures(self, note: Note) -> tuple[Verified, ...]:
        """The verified cosignatures of this policy's witnesses on an opened note."""
        return tuple(item for item in note.verified if item.verifier in self.verifiers)

    def met_by(self, note: Note) -> bool:
        """Whether the cosignatures that were verified on an opened note meet the quorum."""
        return self.satisfied(item.verifier.key for item in self.cosignatures(note))

    def witnessed_at(self, note: Note) -> int | None:
        """The newest time at which a quorum had cosigned or did so later, seconds since 1970; None without one.

        Of a quorum's cosignatures the oldest counts: each says that its witness knew of nothing newer then.
        """
        if self.quorum == NONE:
            return None
        keys: list[PublicKey] = []
        for item in sorted(self.cosignatures(note), key=lambda item: item.timestamp or 0, reverse=True):
            keys.append(item.verifier.key)
            if self.satisfied(keys):
                return item.timestamp
        return None

    def describe(self) -> str:
        """The quorum in words, for reports: "w1", "2 of w1, w2, w3"."""
        group = next((item for item in self.groups if item.name == self.quorum), None)
        return self.quorum if group is None else f"{group.threshold} of {', '.join(group.members)}"


def parse_policy(text: str | bytes) -> WitnessPolicy:
    """Read a policy file. Raises WitnessPolicyError.

    The same public key under two names is an error, among logs and among witnesses. Two things are read beyond the
    specification, since files have them: a comment after the last item of a line, and witness keys of type 0x01.
    """
    reader = _Reader()
    for number, line in enumerate(_lines(text), 1):
        # A "#" begins a comment only at the start of an item: URLs and names may hold one.
        items = [item for item in _BLANKS.split(line) if item]
        comment = next((place for place, item in enumerate(items) if item.startswith("#")), len(items))
        if items[:comment]:
            reader.read(number, items[:comment])
    if reader.quorum is None:
        raise WitnessPolicyError(0, "no quorum line")
    return WitnessPolicy(tuple(reader.logs), tuple(reader.witnesses), tuple(reader.groups), reader.quorum)


def _lines(text: str | bytes) -> list[str]:
    try:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise WitnessPolicyError(0, "not octets") from None
    if len(data) > MAX_POLICY:
        raise WitnessPolicyError(0, f"{len(data)} bytes are more than {MAX_POLICY}")
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if len(lines) > MAX_LINES:
        raise WitnessPolicyError(0, f"more than {MAX_LINES} lines")
    for number, line in enumerate(lines, 1):
        if found := _CONTROL.search(line):
            raise WitnessPolicyError(number, f"control character 0x{ord(found[0]):02x}")
    return lines


class _Reader:
    """Takes the lines in order; each may refer only to what stands before it."""

    def __init__(self) -> None:
        self.logs: list[Log] = []
        self.witnesses: list[Witness] = []
        self.groups: list[Group] = []
        self.quorum: str | None = None
        self._names: set[str] = set()

    def read(self, line: int, items: list[str]) -> None:
        keyword, *rest = items
        if keyword == "log" and 1 <= len(rest) <= 2:
            self._log(line, *rest)
        elif keyword == "witness" and 2 <= len(rest) <= 3:
            self._witness(line, *rest)
        elif keyword == "group" and len(rest) >= 3:
            self._group(line, rest[0], rest[1], rest[2:])
        elif keyword == "quorum" and len(rest) == 1:
            self._quorum(line, rest[0])
        else:
            raise WitnessPolicyError(
                line, "not `log VKEY [URL]`, `witness NAME VKEY [URL]`, `group NAME K NAME…` or `quorum NAME`"
            )

    def _log(self, line: int, vkey: str, url: str | None = None) -> None:
        verifier = _verifier(line, vkey)
        if verifier.type != ED25519:
            raise WitnessPolicyError(line, "the key of a log has type 0x01")
        if any(item.verifier.key == verifier.key for item in self.logs):
            raise WitnessPolicyError(line, "another log has the same public key")
        self.logs.append(Log(verifier, url))

    def _witness(self, line: int, name: str, vkey: str, url: str | None = None) -> None:
        given = _verifier(line, vkey)
        self._define(line, name)
        for item in self.witnesses:
            if item.verifier.key == given.key:
                raise WitnessPolicyError(line, f"the witness {_shown(item.name)} has the same public key")
        self.witnesses.append(Witness(name, Verifier(given.name, given.key, COSIGNATURE), url))

    def _group(self, line: int, name: str, threshold: str, members: list[str]) -> None:
        for member in members:
            if member not in self._names:
                raise WitnessPolicyError(line, f"{_shown(member)} is not defined above")
        if len(set(members)) != len(members):
            raise WitnessPolicyError(line, "a member is named twice")
        if threshold in ("any", "all"):
            number = 1 if threshold == "any" else len(members)
        elif _THRESHOLD.fullmatch(threshold) and int(threshold) <= len(members):
            number = int(threshold)
        else:
            raise WitnessPolicyError(line, f"the threshold {_shown(threshold)} is not any, all or 1 to {len(members)}")
        self._define(line, name)
        self.groups.append(Group(name, number, tuple(members)))

    def _quorum(self, line: int, name: str) -> None:
        if self.quorum is not None:
            raise WitnessPolicyError(line, "a second quorum line")
        if name != NONE and name not in self._names:
            raise WitnessPolicyError(line, f"{_shown(name)} is not defined above")
        self.quorum = name

    def _define(self, line: int, name: str) -> None:
        if name in _KEYWORDS:
            raise WitnessPolicyError(line, f"{name} cannot be a name")
        if name in self._names:
            raise WitnessPolicyError(line, f"{_shown(name)} is defined twice")
        self._names.add(name)


def _verifier(line: int, vkey: str) -> Verifier:
    try:
        return Verifier.parse(vkey)
    except NoteError as error:
        raise WitnessPolicyError(line, str(error)) from None


def _shown(name: str) -> str:
    return repr(name[:60])
