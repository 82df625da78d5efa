"""Publishers' words on releases: aliases that move, deprecation, revocation. Each is a signed `endorse` entry.

What counts is the last word: an alias names the release that its newest `alias` entry names; a deprecated release may
be restored, a revoked one never comes back. `deprecate`, `restore` and `revoke` have the log sign a `status` right
after, which lists every word on the run's releases and every revoked release, so no later bundle can leave it out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bitwitness.ledger.entry.entries import statement
from bitwitness.ledger.entry.envelope import seal
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files import rfc3339
from bitwitness.ledger.keys import Signer
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

from . import signed_names
from .bundles.evidence import root_key
from .checks import exit_code, reasons
from .gating.gate import Request, decide
from .names import NameRefused, NoSuchModel, Version, check_name, find_version
from .own_ledger import Named
from .policy import load_policy
from .status import append_status

_NONE: Mapping[str, str] = MappingProxyType({})


class NotPromoted(BitwitnessError):
    """The version does not pass the policy that its alias asks for; nothing was signed."""

    longest = 8000

    def __init__(self, version: Version, alias: str, held: str | None, policy: Path, why: list[str], code: int) -> None:
        so = f"{alias} is not set" if held is None else f"{alias} stays at {held}"
        super().__init__(f"{version} does not pass {policy}, so {so}: {'; '.join(why)}")
        self.exit_code = code


class WordRefused(BitwitnessError):
    """Something that cannot be said of this release now."""


@dataclass(frozen=True)
class Word:
    """A word that stands in the ledger at `index`; `new` is whether it was signed just now."""

    version: Version
    statement: str
    index: int
    new: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.version.model,
            "version": self.version.version,
            "statement": self.statement,
            "entry": self.index,
            "new": self.new,
        }


def set_alias(project: Project, name: str, alias: str, policy: Path | None = None) -> Word:
    """Let ``alias`` name this version. ``policy``, or the one that bitwitness.toml asks of this alias, must pass it.

    Raises NoSuchModel, NameRefused, NotPromoted, WordRefused for a revoked version.
    """
    check_name(alias, "alias")
    if alias.isdigit():
        raise NameRefused(f"{alias} would read like a version; give the alias a name")
    publisher = project.signer("publisher")
    asked = policy or project.alias_policies.get(alias)
    with project.open_ledger(writable=True) as ledger:
        version = find_version(ledger, name)
        fields = {"alias": alias}
        signed = signed_names.read(ledger)
        if _state(signed, version) == "revoked":
            raise WordRefused(f"{version} is revoked; give {alias} to another version")
        held = signed.alias_word(version.model, alias)
        if asked is not None:
            now = None if held is None else str(signed.releases[held.said["release"]])
            fields["policy"] = _passed(project, ledger, version, alias, now, asked)
        if held is not None and held.disowned is None:
            same = held.said["release"] == version.leaf and held.said.get("policy") == fields.get("policy")
            if same:
                return Word(version, "alias", held.index, new=False)
        return Word(version, "alias", speak(ledger, publisher, version, "alias", fields))


def remove_alias(project: Project, model: str, alias: str) -> Word:
    """Take an alias away. Raises NoSuchModel if the model has none of this name."""
    publisher = project.signer("publisher")
    check_name(alias, "alias")
    with project.open_ledger(writable=True) as ledger:
        version = find_version(ledger, f"{model}@{alias}")
        return Word(version, "unalias", speak(ledger, publisher, version, "unalias", {"alias": alias}))


def say(project: Project, name: str, word: str, reason: str | None = None) -> Word:
    """Sign `deprecated`, `restored` or `revoked` of a version, and a `status` that lists it.

    Raises NoSuchModel, NameRefused, WordRefused.
    """
    if reason is not None and not (reason.isascii() and reason.isprintable() and 1 <= len(reason) <= 200):
        raise NameRefused(f"{reason[:100]!a} is not a reason: 1 to 200 printable ASCII characters")
    publisher, log = project.signer("publisher"), project.signer("log")
    with project.open_ledger(writable=True) as ledger:
        version = find_version(ledger, name)
        signed = signed_names.read(ledger)
        state, taken_back = _state(signed, version), signed.taken_back(version.leaf)
        if state == "revoked" and word != "revoked":
            raise WordRefused(f"{version} is revoked, which nothing takes back; release a new version")
        if state is None and word == "restored":
            raise WordRefused(f"{version} is neither deprecated nor revoked")
        if taken_back is not None and state == word:
            return Word(version, word, taken_back.index, new=False)
        index = speak(ledger, publisher, version, word, {} if reason is None else {"reason": reason})
        append_status(ledger, log)
        return Word(version, word, index)


def _state(signed: signed_names.Signed, version: Version) -> str | None:
    """`deprecated`, `revoked`, or None."""
    word = signed.taken_back(version.leaf)
    return None if word is None else str(word.said["statement"])


def _passed(project: Project, ledger: Ledger, version: Version, alias: str, held: str | None, policy: Path) -> str:
    """The SHA-256 of a policy file that the version on disk passes, with what this ledger says of it by now."""
    folder = version.folder(project)
    if not folder.is_dir():
        raise NoSuchModel(f"{version} is not on disk ({folder}), so it cannot be checked against {policy}")
    signed = signed_names.read(ledger, root_key(load_policy(policy)))
    named = Named(signed.releases[version.leaf], folder, signed, [])
    verdict = decide(Request(folder, policy, named=named))
    code = exit_code(verdict.checks)
    if code or verdict.policy is None:
        raise NotPromoted(version, alias, held, policy, reasons(verdict.checks), code)
    return hashlib.sha256(verdict.policy).hexdigest()


def speak(ledger: Ledger, signer: Signer, version: Version, word: str, fields: Mapping[str, str] = _NONE) -> int:
    """Append a signed word on a version; its log index."""
    now = rfc3339.now()
    # One statement can stand in a log once; times have whole seconds. Nobody waits for those of a clock that was ahead.
    query = "SELECT 1 FROM endorsements WHERE release = ? AND statement = ? AND alias IS ? AND time = ?"
    while ledger.connection.execute(query, (version.index, word, fields.get("alias"), now)).fetchone():
        time.sleep(0.1)
        now = rfc3339.now()
    predicate = {"signer": signer.keyid, "release": version.leaf, "statement": word, "time": now, **fields}
    (index,) = ledger.append([seal(statement("endorse", None, predicate), signer)])
    return index
