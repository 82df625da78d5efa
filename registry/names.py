"""Names of releases: `NAME` (its newest version), `NAME/VERSION`, and `NAME@ALIAS`, as the ledger knows them.

An alias is what its newest signed word says (signed_names.py); the derived tables must say the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitwitness.ledger.errors import BitwitnessError, FoundWrong

if TYPE_CHECKING:
    from bitwitness.ledger.project import Project
    from bitwitness.ledger.store import Ledger

    from .signed_names import Signed, Word

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REFERENCE = re.compile(rf"(?P<model>{_NAME.pattern})(?:/(?P<version>[1-9][0-9]{{0,8}})|@(?P<alias>{_NAME.pattern}))?")


class NoSuchModel(BitwitnessError):
    """The ledger has no release of this name, version or alias."""


class NameRefused(BitwitnessError):
    """A name or licence that cannot stand in an entry (a model's name in a path, too)."""


class AliasUnsound(FoundWrong):
    """The derived tables and the signed entries differ on an alias, or its word is by a key that was revoked."""


@dataclass(frozen=True)
class Version:
    """A release in the ledger: log index and leaf hash of its entry, and log index of its run's genesis."""

    model: str
    version: int
    index: int
    leaf: str
    run: int

    def __str__(self) -> str:
        return f"{self.model}/{self.version}"

    def folder(self, project: Project) -> Path:
        """Where its files stand, if they are in this project."""
        return project.models_dir / self.model / str(self.version)


def check_name(name: str, what: str = "model") -> None:
    """Raise NameRefused for a name that is not also a plain folder name."""
    if not _NAME.fullmatch(name):
        article = "an" if what[0] in "aeiou" else "a"
        raise NameRefused(
            f"{name[:100]!a} is not {article} {what} name: 1 to 100 of A-Z a-z 0-9 . _ -, not starting with . _ -"
        )


def looks_like_name(text: str) -> bool:
    """Whether a text can name a release."""
    return _REFERENCE.fullmatch(text) is not None


def parse(name: str) -> tuple[str, int | None, str | None]:
    """Model, version and alias of a name. Raises NoSuchModel."""
    parsed = _REFERENCE.fullmatch(name)
    if parsed is None:
        raise NoSuchModel(f"{name[:120]!a} is no model: NAME, NAME/VERSION or NAME@ALIAS")
    return parsed["model"], None if parsed["version"] is None else int(parsed["version"]), parsed["alias"]


def find_version(ledger: Ledger, name: str) -> Version:
    """The release that ``name`` means now.

    Raises NoSuchModel with what there is instead, or AliasUnsound.
    """
    model, version, alias = parse(name)
    rows = ledger.connection.execute(
        "SELECT model, version, entry, hash, run FROM releases WHERE model = ? ORDER BY version", (model,)
    ).fetchall()
    if not rows:
        raise NoSuchModel(f"there is no model {name}; `ledger model list` lists them")
    if alias is not None:
        from . import signed_names

        signed = signed_names.read(ledger)
        word = check_alias(ledger, signed, model, alias)
        if word is None:
            known = ", ".join(sorted(other for of, other in signed.aliases if of == model)) or "none"
            raise NoSuchModel(f"the model {model} has no alias {alias} (aliases: {known})")
        rows, known = [row for row in rows if row[3] == word.said["release"]], "others"
    elif version is not None:
        known = ", ".join(str(row[1]) for row in rows)
        rows = [row for row in rows if row[1] == version]
    if not rows:
        raise NoSuchModel(f"there is no model {name}; it has version {known}")
    return Version(*rows[-1])


def check_alias(ledger: Ledger, signed: Signed, model: str, alias: str) -> Word | None:
    """The signed word that an alias goes by, if there is one. Raises AliasUnsound."""
    word = signed.alias_word(model, alias)
    row = ledger.connection.execute(
        "SELECT releases.hash, aliases.entry FROM aliases JOIN releases ON releases.entry = aliases.release"
        " WHERE aliases.model = ? AND alias = ?",
        (model, alias),
    ).fetchone()
    if row != (None if word is None else (word.said["release"], word.index)):
        told = "no version" if row is None else _called(signed, row[0])
        by_word = "none does" if word is None else f"entry {word.index} says {_called(signed, word.said['release'])}"
        raise AliasUnsound(
            f"{model}@{alias} is {told} by the tables of {ledger.path.name}, but of the signed entries "
            f"{by_word}: the tables were edited; see `ledger fsck`"
        )
    if word is not None and word.disowned is not None:
        raise AliasUnsound(f"entry {word.index} set {model}@{alias}, but its {word.disowned}; set the alias again")
    return word


def _called(signed: Signed, leaf: str) -> str:
    release = signed.releases.get(leaf)
    return f"an unknown release {leaf[:16]}…" if release is None else str(release)
