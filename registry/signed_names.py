"""What a ledger's own signed entries say of its releases: what a name means, and what was taken back.

The derived tables answer the same for those who browse, but whoever can write the file can edit them. What decides what
is deployed or promoted is read from the entries, each with its signature, under a root key that is known beforehand
where there is one. That no entry was taken out of the file, `ledger verify ledger.db` shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bitwitness.ledger import merkle
from bitwitness.ledger.entry.entries import KINDS
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError, EntryError, FoundWrong
from bitwitness.ledger.keys import PublicKey
from bitwitness.ledger.verify import Disowned, KeyRing, verify_entry

if TYPE_CHECKING:
    from bitwitness.ledger.store import Ledger

_READ = ("key", "release", "endorse")
# What is said of a run, and not by its trainer alone.
_SAID = ("eval", "audit-intent", "audit", "recheck")


class WordsUnsound(FoundWrong):
    """An entry of the ledger that names or releases a model is not signed by who may; one line names it."""


@dataclass(frozen=True)
class Word:
    """A publisher's or auditor's word at log position ``index``; ``disowned`` says why its key no longer counts."""

    index: int
    keyid: str
    said: Mapping[str, Any]
    disowned: str | None = None


@dataclass(frozen=True)
class Release:
    """A signed release at log position ``index``; ``leaf`` is the hash by which words name it."""

    index: int
    leaf: str
    said: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.said['model']}/{self.said['version']}"


@dataclass(frozen=True)
class Signed:
    """All releases and words of a ledger, in its order, and its keys."""

    size: int
    keys: KeyRing
    releases: dict[str, Release]
    words: list[Word]

    def alias_word(self, model: str, alias: str) -> Word | None:
        """The newest word on an alias of this model, if it says that the alias names a release."""
        return self.aliases.get((model, alias))

    @cached_property
    def aliases(self) -> dict[tuple[str, str], Word]:
        """The word that counts for every (model, alias)."""
        newest = {
            (str(self.releases[word.said["release"]].said["model"]), str(word.said["alias"])): word
            for word in self.words
            if "alias" in word.said
        }
        return {name: word for name, word in newest.items() if word.said["statement"] == "alias"}

    def version(self, model: str, version: int | None) -> Release | None:
        """A released version, the newest with ``version`` None."""
        named = {r.said["version"]: r for r in self.releases.values() if r.said["model"] == model}
        return named.get(max(named, default=0) if version is None else version)

    def words_on(self, leaf: str) -> list[Word]:
        return [word for word in self.words if word.said["release"] == leaf]

    def taken_back(self, leaf: str) -> Word | None:
        """The word by which publishers took a release back: `deprecated`, until `restored`, or `revoked`, for good.

        Of a key that was revoked since, a warning still counts, and nothing that takes one away.
        """
        found: Word | None = None
        for word in self.words_on(leaf):
            statement = word.said["statement"]
            if statement == "revoked" or (statement == "deprecated" and not _final(found)):
                found = word
            elif statement == "restored" and word.disowned is None and not _final(found):
                found = None
        return found


def _final(word: Word | None) -> bool:
    return word is not None and word.said["statement"] == "revoked"


def read(ledger: Ledger, root: PublicKey | None = None) -> Signed:
    """Read and check every release, word and key of a ledger; ``root`` None: under the root key that it states itself.

    Raises WordsUnsound.
    """
    with ledger.snapshot():
        read = _scan(ledger, _READ)
        size = ledger.size
    found = Signed(size, KeyRing(root or _stated_root(ledger)), {}, [])
    others = []
    # Keys first: only with all of them read is it known what was revoked, and from where on.
    for index, data in read:
        try:
            envelope = open_envelope(data)
            if envelope.statement.get("predicateType") == KINDS["key"].predicate_type:
                found.keys.add(index, verify_entry(data, found.keys, index).statement["predicate"])
            else:
                others.append((index, data))
        except FoundWrong as error:
            raise _unsound(index, error, root) from error
    for index, data in others:
        _take(found, index, data, root)
    return found


@dataclass(frozen=True)
class Said:
    """An eval, intent, audit or recheck of a run, as it was signed; ``leaf`` is the hash by which others name it."""

    index: int
    leaf: str
    kind: str
    keyid: str
    said: Mapping[str, Any]


def said_of(ledger: Ledger, signed: Signed, runs: Collection[str]) -> dict[str, list[Said]]:
    """What was signed of each of these runs, named by their ids, in the order of the log. Raises WordsUnsound."""
    types = {KINDS[kind].predicate_type: kind for kind in _SAID}
    found: dict[str, list[Said]] = {run: [] for run in runs}
    for index, data in _scan(ledger, _SAID):
        statement = open_envelope(data).statement
        kind = types.get(str(statement.get("predicateType")))
        if kind is None or statement["predicate"].get("run") not in found:
            continue
        try:
            envelope = verify_entry(data, signed.keys, index)
        except Disowned:
            continue  # it counts for nobody
        except FoundWrong as error:
            raise _unsound(index, error, None) from error
        said = Said(index, merkle.leaf_hash(data).hex(), kind, envelope.keyid, statement["predicate"])
        found[statement["predicate"]["run"]].append(said)
    return found


def _scan(ledger: Ledger, kinds: Sequence[str]) -> list[tuple[int, bytes]]:
    """The entries of these kinds, and some that only quote one, with their positions.

    Entries are canonical JSON, so a kind has one spelling in a payload. What only quotes it is sorted out when read.
    """
    types = [f'"predicateType":"{KINDS[kind].predicate_type}"' for kind in kinds]
    asked = " OR ".join("instr(payload, ?)" for _ in types)
    query = f"SELECT idx FROM entries WHERE {asked} ORDER BY idx"
    places = [int(row[0]) for row in ledger.connection.execute(query, types)]
    return [(index, ledger.entry(index)) for index in places]


def _take(found: Signed, index: int, data: bytes, root: PublicKey | None) -> None:
    disowned = None
    envelope = open_envelope(data)
    kind = next((k for k in _READ if envelope.statement.get("predicateType") == KINDS[k].predicate_type), None)
    if kind is None:
        return
    try:
        verify_entry(data, found.keys, index)
    except Disowned as revoked:
        disowned = str(revoked)
    except FoundWrong as error:
        raise _unsound(index, error, root) from error
    said = envelope.statement["predicate"]
    if kind == "release":
        release = Release(index, merkle.leaf_hash(data).hex(), said)
        found.releases[release.leaf] = release
    elif said["release"] in found.releases:
        found.words.append(Word(index, envelope.keyid, said, disowned))
    else:
        raise WordsUnsound(f"entry {index} speaks of a release that the ledger does not have")


def _stated_root(ledger: Ledger) -> PublicKey:
    """The root key by the ledger's first entry, which enrols it. Raises WordsUnsound."""
    try:
        key = open_envelope(ledger.entry(0)).statement["predicate"]["key"]
        return PublicKey.from_hex(key["public"])
    except (BitwitnessError, KeyError, TypeError) as error:
        raise WordsUnsound("the first entry of the ledger enrols no root key") from error


def _unsound(index: int, error: BitwitnessError, root: PublicKey | None) -> WordsUnsound:
    reason = error.reason if isinstance(error, EntryError) and error.where == f"entry {index}" else str(error)
    under = "" if root is None else f" under the policy's root key, keyid {root.keyid[:16]}…"
    return WordsUnsound(f"entry {index} of the ledger does not count{under}: {reason}")
