"""A release that is named, not where it lies: what the project's own ledger says of it, as checks of the gate.

A bundle tells what was true when it was made, and one from before a revocation can be put back. Whoever names a version
of a project has its ledger at hand, so the ledger decides: which release the name means, and whether it, or a key that
it rests on, was taken back since. Only signed entries count, under the policy's root key (signed_names.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitwitness.ledger.errors import BitwitnessError

from . import signed_names
from .bundles.evidence import root_key
from .checks import Check
from .names import AliasUnsound, NoSuchModel, check_alias, parse
from .policy import Policy, Rules
from .signed_names import Release, Signed

if TYPE_CHECKING:
    from bitwitness.ledger.project import Project

    from .verify import Traced


@dataclass(frozen=True)
class Named:
    """A release by its name in a project; ``found`` are the checks of the name itself."""

    release: Release
    folder: Path
    signed: Signed
    found: list[Check]

    def checks(self, traced: Traced | None, rules: Rules) -> list[Check]:
        """What the ledger here says of the bundle that was found under the name."""
        comes_of = _comes_of(self.release, traced, self.signed)
        checks = [*self.found, _same(self.release, traced), _taken_back(comes_of, traced, self.signed)]
        forbidden = next((called for release, called in comes_of if str(release) in rules.forbidden_versions), None)
        if forbidden is not None:
            said = f"by the ledger here it comes of {forbidden}, which the policy forbids"
            checks.append(Check("forbidden-here", False, said, "POLICY"))
        deprecated = _deprecated(comes_of, self.signed)
        if deprecated is not None:
            if rules.refuse_deprecated:
                checks.append(Check("deprecated-here", False, deprecated, "POLICY"))
            else:
                checks.append(Check("deprecated-here", None, deprecated, "ASSURANCE", required=False))
        return checks


def look_up(project: Project, name: str, policy: Policy) -> Named:
    """Raises NoSuchModel, NotHere, or WordsUnsound if the ledger is not under the policy's root key."""
    model, version, alias = parse(name)
    checks = []
    with project.open_ledger() as ledger:
        signed = signed_names.read(ledger, root_key(policy))
        if alias is None:
            release = signed.version(model, version)
        else:
            word = signed.alias_word(model, alias)
            release = None if word is None else signed.releases[word.said["release"]]
            try:
                check_alias(ledger, signed, model, alias)
            except AliasUnsound as error:
                checks.append(Check("alias", False, str(error), "CRYPTO"))
            else:
                if word is not None:
                    said = f"{alias} → {release}, entry {word.index}, by publisher {word.keyid[:16]}…"
                    checks.append(Check("alias", True, said, "CRYPTO"))
    if release is None:
        known = ", ".join(sorted({str(item) for item in signed.releases.values() if item.said["model"] == model}))
        reason = f"; {checks[0].detail}" if checks else ""
        raise NoSuchModel(f"the ledger here has no model {name} (releases: {known or 'none'}){reason}")
    folder = project.models_dir / model / str(release.said["version"])
    if not folder.exists():
        raise NotHere(release, folder)
    return Named(release, folder, signed, checks)


class NotHere(BitwitnessError):
    """A released version whose files are not in the project."""

    def __init__(self, release: Release, folder: Path) -> None:
        super().__init__(
            f"{release} is released (entry {release.index}), but its files are not here: {folder} is missing; "
            f"`ledger model refresh {release}` writes them again"
        )


def _same(release: Release, traced: Traced | None) -> Check:
    if traced is None:
        return Check("name", None, "not checked, since a check above did not pass", "CRYPTO")
    held = traced.lineage.release
    if held.leaf == release.leaf:
        return Check("name", True, f"the folder holds {release}, which entry {release.index} here releases", "CRYPTO")
    other = f"{held.predicate['model']}/{held.predicate['version']} ({held})"
    detail = f"the folder holds {other}, not {release}, which entry {release.index} of the ledger here releases"
    return Check("name", False, detail, "CRYPTO")


def _comes_of(release: Release, traced: Traced | None, signed: Signed) -> list[tuple[Release, str]]:
    """The release, those that it derives from, and those of the runs that it goes on from, each with how it is called.

    The last are those of this ledger: a bundle holds none that was made after it. Casts and merges of such a run are
    none of these, since nothing here comes of their weights.
    """
    found = [(release, str(release))]
    if traced is None:
        return found
    lineage = traced.lineage
    for source in lineage.sources:
        if source.leaf in signed.releases:
            found.append((signed.releases[source.leaf], f"{signed.releases[source.leaf]}, which it derives from"))
    known = {one.leaf for one, _called in found}
    for one in signed.releases.values():
        if one.leaf not in known and "derivation" not in one.said and lineage.goes_on_from(one.said):
            found.append((one, f"{one}, of step {one.said['step']} of a run that it goes on from"))
    return found


def _taken_back(comes_of: Sequence[tuple[Release, str]], traced: Traced | None, signed: Signed) -> Check:
    """A revocation of the release, of one that it comes of, or of a key where it was used."""
    name = "revoked-here"
    for release, called in comes_of:
        for word in signed.words_on(release.leaf):
            if word.said["statement"] == "revoked":
                reason = f": {word.said['reason']}" if "reason" in word.said else ""
                detail = f"the ledger here revoked it: {called}, entry {word.index}{reason}"
                return Check(name, False, detail, "ASSURANCE")
    for entry in () if traced is None else traced.entries:
        key = signed.keys.get(entry.envelope.keyid)
        known = None if traced is None else traced.keys.get(entry.envelope.keyid)
        # What the bundle tells of a key, its own checks went by.
        if (
            key is None
            or key.until is None
            or entry.index < key.until
            or (known is not None and known.ends == key.ends)
        ):
            continue
        detail = f"the ledger here revoked the key of {entry}, {key.keyid[:16]}…, from entry {key.until} on"
        return Check(name, False, detail, "ASSURANCE")
    return Check(name, True, f"the ledger here, of {signed.size} entries, revoked nothing that was used", "ASSURANCE")


def _deprecated(comes_of: Sequence[tuple[Release, str]], signed: Signed) -> str | None:
    """What says that the release, or one that it comes of, is deprecated."""
    for number, (release, called) in enumerate(comes_of):
        word = signed.taken_back(release.leaf)
        if word is None or word.said["statement"] != "deprecated":
            continue
        reason = f": {word.said['reason']}" if "reason" in word.said else ""
        which = f"{called}," if number else "it"
        return f"the ledger here says that {which} is deprecated (entry {word.index}){reason}"
    return None
