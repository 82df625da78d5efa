"""Names of releases: `NAME` (its newest version), `NAME/VERSION`, and `NAME@ALIAS`, as the ledger knows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitwitness.ledger.errors import BitwitnessError

if TYPE_CHECKING:
    from bitwitness.ledger.project import Project
    from bitwitness.ledger.store import Ledger

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REFERENCE = re.compile(rf"(?P<model>{_NAME.pattern})(?:/(?P<version>[1-9][0-9]{{0,8}})|@(?P<alias>{_NAME.pattern}))?")


class NoSuchModel(BitwitnessError):
    """The ledger has no release of this name, version or alias."""


class NameRefused(BitwitnessError):
    """A name or licence that cannot stand in an entry (a model's name in a path, too)."""


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
        raise NameRefused(
            f"{name[:100]!a} is not a {what} name: 1 to 100 of A-Z a-z 0-9 . _ -, not starting with . _ -"
        )


def looks_like_name(text: str) -> bool:
    """Whether a text can name a release."""
    return _REFERENCE.fullmatch(text) is not None


def find_version(ledger: Ledger, name: str) -> Version:
    """The release that ``name`` means now. Raises NoSuchModel with what there is instead."""
    parsed = _REFERENCE.fullmatch(name)
    if parsed is None:
        raise NoSuchModel(f"{name[:120]!a} is no model: NAME, NAME/VERSION or NAME@ALIAS")
    model, version, alias = parsed["model"], parsed["version"], parsed["alias"]
    rows = ledger.connection.execute(
        "SELECT model, version, entry, hash, run FROM releases WHERE model = ? ORDER BY version", (model,)
    ).fetchall()
    if not rows:
        raise NoSuchModel(f"there is no model {name}; `ledger model list` lists them")
    if alias is not None:
        aliases = dict(ledger.connection.execute("SELECT alias, release FROM aliases WHERE model = ?", (model,)))
        if alias not in aliases:
            known = ", ".join(sorted(aliases)) or "none"
            raise NoSuchModel(f"the model {model} has no alias {alias} (aliases: {known})")
        rows = [row for row in rows if row[2] == aliases[alias]]
    elif version is not None:
        known = ", ".join(str(row[1]) for row in rows)
        rows = [row for row in rows if row[1] == int(version)]
        if not rows:
            raise NoSuchModel(f"there is no model {name}; it has version {known}")
    return Version(*rows[-1])
