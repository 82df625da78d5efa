"""What a release that is derived from others (a cast, a merge) must say of them, beyond its own fields.

Pure, and one rule for whoever takes a release in: the ledger, the verifier of whole ledgers, the gate. That the bits
are those that the rule gives, only a recomputation shows (registry/derivation.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import EntryError

Predicate = Mapping[str, Any]

# What is kept of a release to follow those that derive from it.
FIELDS = ("dtype", "run", "state", "step", "weights")


def sources_of(release: Predicate) -> list[str]:
    """The leaf hashes of the releases that it derives from; none for one that a run made itself."""
    return [str(source["release"]) for source in release.get("derivation", {}).get("sources", ())]


def check_derivation(release: Predicate, find: Callable[[str], Predicate | None]) -> Iterator[str]:
    """What is wrong with a derived release. ``find`` gives an earlier release (at least its FIELDS) by leaf hash."""
    found = []
    for source in release["derivation"]["sources"]:
        earlier = find(source["release"])
        if earlier is None:
            yield f"derives from the release {source['release'][:16]}…, which is not before it"
            return
        if earlier["weights"] != source["weights"]:
            yield f"names other weights than the release {source['release'][:16]}… has"
        if earlier["dtype"] != "F32":
            yield f"derives from a release of {earlier['dtype']}; only F32 is cast and merged"
        found.append(earlier)
    # Steps of several runs cannot be compared: each run must be audited up to its own.
    if any(earlier["run"] == found[0]["run"] and earlier["step"] > found[0]["step"] for earlier in found):
        yield "derives from a later step of its run than that of its first source"
    for field in ("run", "step", "state"):
        if release[field] != found[0][field]:
            yield f"names another {field} than the first release that it derives from"


def derivation_fits(predicate: Predicate) -> None:
    """The rule between the fields of one `release` (kinds.py). Raises EntryError."""
    if "derivation" not in predicate:
        return
    rule, sources = predicate["derivation"]["rule"], predicate["derivation"]["sources"]
    where = "predicate.derivation"
    if rule == "cast/1":
        if len(sources) != 1 or "factor" in sources[0]:
            raise EntryError("a cast has one source and no factor", where)
        if predicate["dtype"] not in ("BF16", "F16"):
            raise EntryError("a cast is to BF16 or F16", where)
    elif len(sources) < 2 or any("factor" not in source for source in sources):
        raise EntryError("a merge has at least two sources, each with a factor", where)
    elif predicate["dtype"] != "F32":
        raise EntryError("a merge is F32", where)
    if len(set(sources_of(predicate))) != len(sources):
        raise EntryError("a release stands there twice", where)
