"""Following another's log: a copy that takes in only what is signed, and extends what was seen before.

A mirror is a project folder without keys, so that `ledger verify`, `serve`, `prove` and `export` work on it:

bitwitness.toml, ledger.db   the copy
trust.toml                   whose log it is, where no policy is named
seen.checkpoint              the newest checkpoint whose entries were all copied
handovers                    how log keys took each other's place, where the other side had to be asked for it
unserved/                    checkpoints that were signed and found no contradiction, but not all of their entries
forks/                       evidence of forks, if any was found

A checkpoint is in unserved/ before its entries are copied, and leaves it when they are all here. One that stays was
signed over entries that the other side does not show: it is kept as evidence, and keeps nothing else out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from .. import merkle, tlog_proof
from ..checkpoint import Checkpoint, parse_checkpoint
from ..entry.envelope import open_envelope
from ..errors import BitwitnessError, EntryError, FoundWrong, NoteError
from ..exchange.prove import handovers
from ..files.durable import write_whole
from ..files.regular_file import read_regular
from ..handover import PATH as HANDOVERS
from ..handover import Handover
from ..note import MAX_NOTE, Note, parse_note
from ..project import CONFIG, TRUST, Project, config_text
from ..sqlite.derived import Conflict
from ..sqlite.run_tail import RunForked
from ..store import Ledger
from ..tiles import WIDTH, TileError
from ..trust import Trust, load_trust, read_policy, witness_line
from . import fork
from .followed_keys import (
    FollowedKeys,
    NotWhatWasSigned,
    OtherPins,
    ask_keys,
    check_root_entry,
    damaged,
    read_handovers_of,
)
from .remote import NotThere, Remote, RemoteError
from .remote_tiles import RemoteTiles

SEEN = "seen.checkpoint"
UNSERVED = "unserved"
FORKS = "forks"
_MAX_UNSERVED = 100
"""So many are kept: whoever signs more of them is known by then."""
_ASKED = 3
"""Of so many that are longer than what is shown the tiles are asked for."""

__all__ = ["ForkFound", "Kept", "Mirror", "NotServed", "NotWhatWasSigned", "OtherPins", "Update", "WentBack"]


class ForkFound(FoundWrong):
    """The log, or a run in it, was forked. `path` is the evidence, which `ledger verify` checks."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(f"FORK: {reason}; evidence in {path}")
        self.path = path


class WentBack(BitwitnessError):
    """The other side shows an older checkpoint than it did before: an old copy, or something to hide."""

    def __init__(self, shown: int, seen: int) -> None:
        super().__init__(f"it shows a checkpoint of {shown} entries, but showed one of {seen} before")
        self.shown = shown
        self.seen = seen


class NotServed(RemoteError):
    """The other side signed entries that it does not serve. `path` is the checkpoint."""

    def __init__(self, url: str, size: int, here: int, reason: str, path: Path) -> None:
        super().__init__(
            url,
            f"signed a checkpoint of {size} entries and does not serve them ({reason}); {here} are here. Ask its owner"
            f" for them; the checkpoint is kept in {path}",
        )
        self.path = path


@dataclass(frozen=True)
class Kept:
    """A checkpoint that the log signed, kept in `path`. As text: what to do about one of unserved/."""

    head: Checkpoint
    text: str
    path: Path

    def __str__(self) -> str:
        return (
            f"the log signed a checkpoint of {self.head.size} entries, too, and shows fewer now: ask its owner"
            f" for them; if they do not exist, its key was misused, and {self.path} proves it"
        )


@dataclass(frozen=True)
class Update:
    """What one round brought: sizes of the copy before and after, and the opened checkpoint.

    `unserved` are checkpoints that the log signed before, over entries that it does not show now.
    """

    before: int
    size: int
    head: Checkpoint
    note: Note
    witnessed: bool | None
    assurance: str
    unserved: tuple[Kept, ...] = ()


class Mirror:
    """A folder that follows one log."""

    def __init__(self, folder: Path, policy: Path | None = None) -> None:
        """Make the folder if it is missing; `policy`, a trust.toml, is needed then and kept.

        Later a policy that is named counts in place of the kept one, and must pin the same log. Raises BitwitnessError,
        TrustError.
        """
        self.folder, kept = folder, folder / TRUST
        made = (folder / CONFIG).exists()
        if made and not (folder / SEEN).exists() and not kept.exists():
            raise BitwitnessError(f"{folder} is a project of its own; give an empty folder")
        if made and Project.find(folder).keys_dir.exists():
            raise BitwitnessError(f"{folder} has keys of its own and is no mirror; give another folder")
        if policy is None and not kept.exists():
            raise BitwitnessError("whose log is it? give --policy trust.toml, with the log's and the root's key")
        self.trust = load_trust(policy or kept)
        if policy is not None and kept.exists():
            _check_pins(folder, load_trust(kept), policy, self.trust)
        elif policy is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(kept, read_policy(policy))
        if not made:
            write_whole(folder / CONFIG, config_text().encode("utf-8"))
        self.project = replace(Project.find(folder), named_policy=None if policy is None else policy.absolute())

    def open(self) -> Ledger:
        """The copy, open for writing; made if it is missing."""
        path = self.project.ledger_path
        ledger = Ledger.open(path, writable=True) if path.exists() else Ledger.create(path, self.trust.origin)
        if ledger.origin != self.trust.origin:
            ledger.close()
            raise OtherPins(f"{path} is a copy of {ledger.origin}, not of {self.trust.origin}; give an empty folder")
        return ledger

    def update(self, remote: Remote) -> Update:
        """Take in what is new. Raises ForkFound, NotWhatWasSigned, WentBack, OtherPins, NotServed, RemoteError, and
        notes' errors.
        """
        shown = remote.get("checkpoint", MAX_NOTE)
        with self.open() as ledger:
            texts = self._read_unserved()
            keys = ask_keys(self.trust, ledger, texts.values(), self.folder, remote, shown)
            known = self._newest(keys, ledger)
            claims = [Kept(self._reopen(keys, text, path), text, path) for path, text in texts.items()]
            head, note = keys.open(shown, remote.url)
            text = note.format()
            witnessed, assurance = witness_line(self.trust.witnesses, note)
            if witnessed is False:
                raise NotWhatWasSigned(f"its checkpoint of {head.size} entries is {assurance}")
            if known is not None:
                self._hold_against(ledger, known, text, head)
            before, source = ledger.size, RemoteTiles(remote, head)
            try:
                path = self.folder / HANDOVERS
                handed = [Kept(self._reopen(keys, item.note, path), item.note, path) for item in keys.handovers]
                handed = [item for item in handed if item.head.size <= head.size]
                for other in (*handed, *_near(claims, head.size), *(() if known is None else (known,))):
                    self._compare(ledger, remote, source, other, text, head)
                if known is None or head.size > known.head.size:
                    self._remember(claims, text, head)
                self._copy(ledger, text, head, source)
            except RemoteError as error:
                path = self._remember(claims, text, head)
                if not isinstance(error, NotThere):
                    raise
                raise NotServed(remote.url, head.size, ledger.size, error.reason, path) from None
            # What was copied may have ended the key that signed, or enrolled another one.
            keys = FollowedKeys(self.trust, ledger, (*texts.values(), text, *(item.text for item in handed)))
            head, note = keys.open(text, remote.url)
            self._settle(keys, ledger, text, head, handed)
            unserved = tuple(claim for claim in claims if claim.head.size > head.size)
            return Update(before, ledger.size, head, note, witnessed, assurance, unserved)

    def verify_proof(self, proof: tlog_proof.Proof, leaf_hash: bytes) -> None:
        """Whether an entry is under a checkpoint of the log.

        Raises NotWhatWasSigned, OtherPins, ProofError, RemoteError and notes' errors.
        """
        with self.open() as ledger:
            texts = self._read_unserved().values()
            kept = read_handovers_of(self.folder)
            keys = FollowedKeys(self.trust, ledger, (*texts, proof.checkpoint_note), kept)
            head, _note = keys.open(proof.checkpoint_note, "the proof of the entry")
        merkle.verify_inclusion(proof.index, head.size, leaf_hash, proof.hashes, head.root)

    # What was seen before ---------------------------------------------------------------------------------

    def _newest(self, keys: FollowedKeys, ledger: Ledger) -> Kept | None:
        """The newest checkpoint whose entries were all copied, as the folder or the ledger file remembers it."""
        path, found = self.folder / SEEN, list[Kept]()
        stored = ledger.latest_checkpoint()
        if stored is not None:
            try:
                found.append(Kept(keys.reopen(stored), stored, ledger.path))
            except BitwitnessError as error:
                raise OtherPins(
                    f"{ledger.path} holds a checkpoint that no log key of the policy signed ({error}); give an empty"
                    " folder"
                ) from None
        if path.exists():
            text = _read_note(path)
            found.append(Kept(self._reopen(keys, text, path), text, path))
        return max(found, key=lambda item: item.head.size, default=None)

    def _read_unserved(self) -> dict[Path, str]:
        folder = self.folder / UNSERVED
        return {path: _read_note(path) for path in sorted(folder.glob("*.checkpoint"))}

    def sizes_unserved(self) -> list[int]:
        """Of the checkpoints in unserved/, of which nothing is verified. Raises BitwitnessError if one is damaged."""
        try:
            return [parse_checkpoint(parse_note(text).text).size for text in self._read_unserved().values()]
        except NoteError as error:
            raise damaged(self.folder / UNSERVED, str(error)) from None

    def _reopen(self, keys: FollowedKeys, text: str, path: Path) -> Checkpoint:
        try:
            return keys.reopen(text)
        except BitwitnessError as error:
            raise damaged(path, str(error)) from None

    def _remember(self, claims: list[Kept], text: str, head: Checkpoint) -> Path:
        """Keep a checkpoint before its entries are here."""
        folder = self.folder / UNSERVED
        path = folder / f"{head.size}-{head.root.hex()[:16]}.checkpoint"
        if path.exists() or len(claims) < _MAX_UNSERVED:
            write_whole(path, text.encode("utf-8"))
        return path

    def _settle(self, keys: FollowedKeys, ledger: Ledger, text: str, head: Checkpoint, handed: Sequence[Kept]) -> None:
        """Keep the checkpoint, all of whose entries are here now, and before it those that were waiting for them."""
        reached = [
            (one.size, path, waiting)
            for path, waiting in self._read_unserved().items()
            if (one := self._reopen(keys, waiting, path)).size <= head.size
        ]
        over = [(item.head.size, item.path, item.text) for item in handed]
        for _size, _path, waiting in sorted((*reached, *over)):
            with suppress(FoundWrong):
                earlier, _note = keys.open(waiting, "")
                latest = ledger.latest_checkpoint(earlier.size)
                if latest is None and earlier.size < head.size:
                    ledger.keep_checkpoint(waiting)
        ledger.keep_checkpoint(text)
        write_whole(self.folder / SEEN, text.encode("utf-8"))
        for _size, path, _waiting in reached:
            path.unlink()

    def _hold_against(self, ledger: Ledger, known: Kept, text: str, head: Checkpoint) -> None:
        """Refuse a checkpoint that is older than the newest one followed. Raises ForkFound, WentBack."""
        seen = known.head
        if head.size >= seen.size:
            return
        if head.size > 0 and seen.size <= ledger.size and ledger.root(head.size) != head.root:
            hashes = fork.prefix_hashes(head.size, seen.size, ledger.node)
            self._fork(
                f"{seen.size} entries that it signed do not begin with the {head.size} that it shows now",
                fork.two_histories(text, known.text, hashes, self._handovers(ledger)),
            )
        raise WentBack(head.size, seen.size)

    def _compare(
        self, ledger: Ledger, remote: Remote, source: RemoteTiles, other: Kept, text: str, head: Checkpoint
    ) -> None:
        """Hold the checkpoint that is shown against one that was seen before. Raises ForkFound.

        What is proven against one of unserved/ is in forks/ from then on, and there no longer.
        """
        size = other.head.size
        if size == head.size and other.head.root != head.root:
            evidence = fork.two_roots(other.text, text, self._handovers(ledger))
            self._fork(f"two roots for {size} entries", evidence, other.path)
        if 0 < size < head.size:
            hashes = fork.prefix_hashes(size, head.size, source.node)
            if fork.fold_prefix(size, head.size, hashes)[0] != other.head.root:
                self._fork(
                    f"its {head.size} entries do not begin with the {size} that it signed before",
                    fork.two_histories(other.text, text, hashes, self._handovers(ledger)),
                    other.path,
                )
        if 0 < head.size < size:
            try:
                hashes = fork.prefix_hashes(head.size, size, RemoteTiles(remote, other.head).node)
            except (RemoteError, NotWhatWasSigned, TileError):
                return  # it does not serve that tree, which stays to be explained
            if fork.fold_prefix(head.size, size, hashes)[0] != head.root:
                self._fork(
                    f"{size} entries that it signed do not begin with the {head.size} that it shows now",
                    fork.two_histories(text, other.text, hashes, self._handovers(ledger)),
                    other.path,
                )

    # Copying ----------------------------------------------------------------------------------------------

    def _copy(self, ledger: Ledger, text: str, head: Checkpoint, source: RemoteTiles) -> None:
        """Append the entries up to the checkpoint, tile by tile, each once it is known to be the signed tree's."""
        start = ledger.size
        shared = min(start, head.size)
        if shared:
            same = head.root
            if shared < head.size:
                same, _ = fork.fold_prefix(shared, head.size, fork.prefix_hashes(shared, head.size, source.node))
            if ledger.root(shared) != same:
                raise NotWhatWasSigned(
                    f"its {head.size} entries do not begin with the {shared} that it signed and served before: keep"
                    f" {self.folder} as evidence, and follow it in an empty folder"
                )
        if start >= head.size:
            return
        for index in range(start // WIDTH, -(-head.size // WIDTH)):
            entries = source.entries(index)
            self._append(ledger, text, head, source, entries[max(0, start - index * WIDTH) :])

    def _append(self, ledger: Ledger, text: str, head: Checkpoint, source: RemoteTiles, entries: list[bytes]) -> None:
        if ledger.size == 0 and not check_root_entry(entries[0], self.trust):
            raise NotWhatWasSigned("its first entry does not enrol the root key that the policy pins")
        try:
            ledger.append(entries)
        except (RunForked, EntryError, Conflict, FoundWrong):
            # Once more, one at a time: the good ones are kept, and the bad one is known by its index.
            for entry in entries:
                try:
                    ledger.append([entry])
                except RunForked as error:
                    self._run_forked(ledger, text, head, source, entry, error)
                except (EntryError, Conflict, FoundWrong) as error:
                    raise NotWhatWasSigned(f"entry {ledger.size}, which it signed, is not valid: {error}") from None

    def _run_forked(
        self, ledger: Ledger, text: str, head: Checkpoint, source: RemoteTiles, entry: bytes, error: RunForked
    ) -> None:
        first = next(
            index
            for index, data in ledger.run_entries(error.run)
            if open_envelope(data).statement["predicate"]["seq"] == error.seq
        )
        second = ledger.size
        placed = [
            fork.PlacedEntry(index, data, merkle.inclusion_proof_from_nodes(index, head.size, source.node))
            for index, data in ((first, ledger.entry(first)), (second, entry))
        ]
        self._fork(
            f"entries {first} and {second} are both entry {error.seq} of run {error.run[:16]}…",
            fork.two_entries(text, placed, self._handovers(ledger)),
        )

    def _handovers(self, ledger: Ledger) -> list[Handover]:
        """What leads whoever pins the first log key to those that signed since."""
        stored = ledger.latest_checkpoint()
        size = 0 if stored is None else parse_checkpoint(parse_note(stored).text).size
        own = handovers(ledger, size)
        known = {item.entry.index for item in own}
        return [*own, *(item for item in read_handovers_of(self.folder) if item.entry.index not in known)]

    def _fork(self, reason: str, evidence: bytes, proven: Path | None = None) -> None:
        path = self.folder / FORKS / f"{hashlib.sha256(evidence).hexdigest()[:16]}.fork.json"
        write_whole(path, evidence + b"\n")
        if proven is not None and proven.parent == self.folder / UNSERVED:
            proven.unlink()
        raise ForkFound(reason, path)


def _check_pins(folder: Path, kept: Trust, policy: Path, named: Trust) -> None:
    """Raise OtherPins where a policy pins another log than the folder was made for."""
    for name, value in named.pins.items():
        if kept.pins[name] != value:
            raise OtherPins(
                f"{folder} is a copy of {kept.origin} with another {name} than {policy} pins; give an empty folder"
            )


def _near(claims: list[Kept], size: int) -> list[Kept]:
    """Those up to a size, and the next few: what is not served is asked for in vain."""
    claims = sorted(claims, key=lambda item: item.head.size)
    return claims[: sum(item.head.size <= size for item in claims) + _ASKED]


def _read_note(path: Path) -> str:
    try:
        return read_regular(path, MAX_NOTE).decode("utf-8")
    except UnicodeDecodeError:
        raise damaged(path, "not UTF-8") from None
