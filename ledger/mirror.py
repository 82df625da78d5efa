"""Following another's log: a copy that takes in only what is signed, and extends what was seen before.

A mirror is a project folder without keys, so that `ledger verify`, `serve`, `prove` and `export` work on it:

bitwitness.toml, ledger.db   the copy
trust.toml                   whose log it is
seen.checkpoint              the newest checkpoint that was found consistent; written before its entries are copied
forks/                       evidence of forks, if any was found
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import fork, merkle, tiles, tlog_proof
from .checkpoint import Checkpoint, open_checkpoint
from .derived import Conflict
from .entries import check
from .envelope import open_envelope
from .errors import BitwitnessError, EntryError, FoundWrong
from .keys import PublicKey
from .note import MAX_NOTE, Note, Verifier
from .project import CONFIG, Project, config_text
from .remote import NotThere, Remote
from .run_tail import RunForked
from .store import Ledger
from .tile_export import write_whole
from .tiles import Tile
from .trust import load_trust, witness_line

SEEN = "seen.checkpoint"
FORKS = "forks"


class ForkFound(FoundWrong):
    """The log, or a run in it, was forked. `path` is the evidence, which `ledger verify` checks."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(f"FORK: {reason}; evidence in {path}")
        self.path = path


class NotWhatWasSigned(FoundWrong):
    """The other side's tiles or entries are not those of its own checkpoint."""


class WentBack(BitwitnessError):
    """The other side shows an older checkpoint than it did before: an old copy, or something to hide."""

    def __init__(self, shown: int, seen: int) -> None:
        super().__init__(f"it shows a checkpoint of {shown} entries, but showed one of {seen} before")
        self.shown = shown
        self.seen = seen


@dataclass(frozen=True)
class Update:
    """What one round brought: sizes of the copy before and after, and the opened checkpoint."""

    before: int
    size: int
    head: Checkpoint
    note: Note
    witnessed: bool | None
    assurance: str


class Mirror:
    """A folder that follows one log."""

    def __init__(self, folder: Path, policy: Path | None = None) -> None:
        """Make the folder if it is missing; `policy`, a trust.toml, is needed then and kept.

        Raises BitwitnessError, TrustError.
        """
        self.folder = folder
        if (folder / CONFIG).exists() and not (folder / SEEN).exists() and not (folder / "trust.toml").exists():
            raise BitwitnessError(f"{folder} is a project of its own; give an empty folder")
        if not (folder / CONFIG).exists():
            if policy is None:
                raise BitwitnessError("whose log is it? give --policy trust.toml, with the log's and the root's key")
            load_trust(policy)
            folder.mkdir(parents=True, exist_ok=True)
            if policy.resolve() != (folder / "trust.toml").resolve():
                shutil.copyfile(policy, folder / "trust.toml")
            write_whole(folder / CONFIG, config_text().encode("utf-8"))
        self.project = Project.find(folder)
        if self.project.keys_dir.exists():
            raise BitwitnessError(f"{folder} has keys of its own and is no mirror; give another folder")
        self.trust = load_trust(policy or self.project.trust_path)

    def open(self) -> Ledger:
        """The copy, open for writing; made if it is missing."""
        path = self.project.ledger_path
        ledger = Ledger.open(path, writable=True) if path.exists() else Ledger.create(path, self.trust.origin)
        if ledger.origin != self.trust.origin:
            ledger.close()
            raise BitwitnessError(f"{path} is a copy of {ledger.origin}, not of {self.trust.origin}")
        return ledger

    def update(self, remote: Remote) -> Update:
        """Take in what is new. Raises ForkFound, NotWhatWasSigned, WentBack, RemoteError, and notes' errors."""
        text = remote.get("checkpoint", MAX_NOTE).decode("utf-8", "replace")
        with self.open() as ledger:
            head, note = self._open_head(ledger, text)
            witnessed, assurance = witness_line(self.trust.witnesses, note)
            if witnessed is False:
                raise NotWhatWasSigned(f"its checkpoint of {head.size} entries is {assurance}")
            source = _Tiles(remote, head)
            self._compare_with_seen(ledger, text, head, source)
            before = ledger.size
            self._copy(ledger, text, head, source)
            if ledger.size == head.size:
                ledger.keep_checkpoint(text)
            return Update(before, ledger.size, head, note, witnessed, assurance)

    def verify_proof(self, proof: tlog_proof.Proof, leaf_hash: bytes) -> None:
        """Whether an entry is under a checkpoint of the log. Raises NotWhatWasSigned, ProofError and notes' errors."""
        with self.open() as ledger:
            head, _note = self._open_head(ledger, proof.checkpoint_note)
        merkle.verify_inclusion(proof.index, head.size, leaf_hash, proof.hashes, head.root)

    def _open_head(self, ledger: Ledger, text: str) -> tuple[Checkpoint, Note]:
        """Verify a checkpoint with the pinned log key and those by which the root replaced it."""
        until: dict[bytes, int | None] = {self.trust.log.key.raw: None}
        query = (
            "SELECT public, (SELECT min(from_index) FROM key_revocations WHERE key = keys.entry)"
            " FROM keys WHERE role = 'log'"
        )
        for public, end in ledger.connection.execute(query):
            until[bytes.fromhex(public)] = end
        verifiers = [Verifier(self.trust.origin, PublicKey(raw)) for raw in until]
        head, note = open_checkpoint(text, verifiers, self.trust.origin, self.trust.cosigners)
        ends = [until[item.verifier.key.raw] for item in note.verified if item.verifier in verifiers]
        if all(end is not None and head.size > end for end in ends):
            raise NotWhatWasSigned(f"its checkpoint of {head.size} entries is signed by a log key that has ended")
        return head, note

    def _compare_with_seen(self, ledger: Ledger, text: str, head: Checkpoint, source: _Tiles) -> None:
        """Hold the checkpoint against the newest one seen; remember it if it extends that. Raises ForkFound."""
        path = self.folder / SEEN
        if path.exists():
            seen_text = path.read_bytes().decode("utf-8", "replace")
            seen, _note = self._open_head(ledger, seen_text)
            if head.size == seen.size and head.root != seen.root:
                self._fork(f"two roots for {head.size} entries", fork.two_roots(seen_text, text))
            if head.size < seen.size:
                self._compare_older(ledger, text, head, seen_text, seen)
            if 0 < seen.size < head.size:
                hashes = fork.prefix_hashes(seen.size, head.size, source.node)
                old, new = fork.fold_prefix(seen.size, head.size, hashes)
                if new != head.root:
                    raise NotWhatWasSigned(f"its tiles do not hash to the root that it signed for {head.size} entries")
                if old != seen.root:
                    self._fork(
                        f"its {head.size} entries do not begin with the {seen.size} that it signed before",
                        fork.two_histories(seen_text, text, hashes),
                    )
            if head.size == seen.size and text == seen_text:
                return
        write_whole(path, text.encode("utf-8"))

    def _compare_older(self, ledger: Ledger, text: str, head: Checkpoint, seen_text: str, seen: Checkpoint) -> None:
        if head.size > 0 and seen.size <= ledger.size and ledger.root(head.size) != head.root:
            hashes = fork.prefix_hashes(head.size, seen.size, ledger.node)
            self._fork(
                f"{seen.size} entries that it signed do not begin with the {head.size} that it shows now",
                fork.two_histories(text, seen_text, hashes),
            )
        raise WentBack(head.size, seen.size)

    def _copy(self, ledger: Ledger, text: str, head: Checkpoint, source: _Tiles) -> None:
        """Append the entries up to the checkpoint, once their leaf hashes are known to be the signed tree's."""
        start = ledger.size
        if start >= head.size:
            return
        tree = merkle.Frontier.load(start, ledger.node)
        spans = [
            tiles.tile_at(0, index, head.size) for index in range(start // tiles.WIDTH, -(-head.size // tiles.WIDTH))
        ]
        hashes = [source.fetch(tile) for tile in spans]
        for tile, data in zip(spans, hashes, strict=True):
            for leaf in tiles.decode_hashes(data, tile.width)[max(0, start - tile.start) :]:
                tree.append(leaf)
        if tree.root() != head.root:
            raise NotWhatWasSigned(f"its leaf hashes do not give the root that it signed for {head.size} entries")
        for tile, data in zip(spans, hashes, strict=True):
            bundle = Tile(None, tile.index, tile.width)
            entries = tiles.decode_bundle(source.fetch(bundle), bundle.width)
            for number, (entry, leaf) in enumerate(
                zip(entries, tiles.decode_hashes(data, tile.width), strict=True), tile.start
            ):
                if merkle.leaf_hash(entry) != leaf:
                    raise NotWhatWasSigned(f"entry {number} in its bundle is not the one that it signed")
            self._append(ledger, text, head, source, entries[max(0, start - tile.start) :])

    def _append(self, ledger: Ledger, text: str, head: Checkpoint, source: _Tiles, entries: list[bytes]) -> None:
        if ledger.size == 0:
            self._check_first(entries[0])
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

    def _check_first(self, entry: bytes) -> None:
        envelope = open_envelope(entry)
        if check(envelope.statement).name != "key" or envelope.keyid != self.trust.root.keyid:
            raise NotWhatWasSigned("its first entry does not enrol the root key that the policy pins")

    def _run_forked(
        self, ledger: Ledger, text: str, head: Checkpoint, source: _Tiles, entry: bytes, error: RunForked
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
            fork.two_entries(text, placed),
        )

    def _fork(self, reason: str, evidence: bytes) -> None:
        path = self.folder / FORKS / f"{hashlib.sha256(evidence).hexdigest()[:16]}.fork.json"
        write_whole(path, evidence + b"\n")
        raise ForkFound(reason, path)


class _Tiles:
    """The tiles of one checkpoint on the other side."""

    def __init__(self, remote: Remote, head: Checkpoint) -> None:
        self._remote = remote
        self.node = tiles.nodes_from_tiles(head.size, self.fetch)

    def fetch(self, tile: Tile) -> bytes:
        """A tile's bytes; where a partial one is gone, the first part of the full one."""
        limit = tiles.MAX_BUNDLE if tile.level is None else tiles.WIDTH * merkle.HASH_SIZE
        try:
            return self._remote.get(tile.path, limit)
        except NotThere:
            if tile.width == tiles.WIDTH:
                raise
            data = self._remote.get(tile.whole.path, limit)
        if tile.level is None:
            return tiles.encode_bundle(tiles.decode_bundle(data, tiles.WIDTH)[: tile.width])
        return data[: tile.width * merkle.HASH_SIZE]
