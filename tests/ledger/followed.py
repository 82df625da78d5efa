"""A log that others follow: served as a folder of tiles, honest or not."""

from __future__ import annotations

import shutil
from pathlib import Path

from bitwitness.ledger import keys, merkle, note, tiles
from bitwitness.ledger.checkpoint import Checkpoint
from bitwitness.ledger.exchange.tile_export import export_tiles
from bitwitness.ledger.follow.mirror import Mirror
from bitwitness.ledger.follow.remote import Remote
from bitwitness.ledger.store import Ledger
from bitwitness.ledger.trust import Trust

from . import small_ledger as small

LOG = small.SIGNERS["log"]


def policy_text(trust: Trust = small.TRUST) -> str:
    return f'[log]\norigin = "{trust.origin}"\nkey = "{trust.log.vkey}"\n[root]\nkey = "{trust.root.raw.hex()}"\n'


class Log:
    """A log that is served as a folder of tiles; `publish` signs what was appended."""

    def __init__(self, folder: Path, steps: int = 3) -> None:
        self.path, self.tiles, self.policy = folder / "log.db", folder / "tiles", folder / "trust.toml"
        self.folder = folder
        self.steps = steps
        with small.with_run(self.path, steps) as ledger:
            self.run = small.begin(ledger, "second").run
        self.policy.write_text(policy_text())
        self.publish()

    def publish(self, *signers: keys.Signer) -> None:
        with Ledger.open(self.path, writable=True) as ledger:
            ledger.sign_checkpoint(*(signers or (LOG,)))
            export_tiles(ledger, self.tiles)

    def append(self, name: str, number: int = 1) -> None:
        """A new run with so many steps."""
        with Ledger.open(self.path, writable=True) as ledger:
            writer = small.begin(ledger, name)
            writer.append_all([("step", small.step(index, name)) for index in range(1, number + 1)])

    def twin(self, name: str) -> Log:
        """A copy as it is now, to be continued otherwise."""
        twin = object.__new__(Log)
        twin.__dict__.update(self.__dict__)
        twin.folder = self.folder / name
        shutil.copytree(self.tiles, twin.folder / "tiles")
        twin.path, twin.tiles = twin.folder / "log.db", twin.folder / "tiles"
        shutil.copyfile(self.path, twin.path)
        return twin


def follow(mirror: Mirror, log: Log) -> int:
    with Remote(str(log.tiles)) as remote:
        return mirror.update(remote).size


def raw_log(log: Log, data: list[bytes]) -> None:
    """Publish entries that our writer would refuse."""
    log.path.unlink()
    for suffix in ("-wal", "-shm"):
        Path(f"{log.path}{suffix}").unlink(missing_ok=True)
    shutil.rmtree(log.tiles)
    leaves = [merkle.leaf_hash(item) for item in data]
    levels = [leaves]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([merkle.node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)])
    for tile in tiles.tiles_of(len(data)):
        path = log.tiles / tile.path
        path.parent.mkdir(parents=True, exist_ok=True)
        span = slice(tile.start, tile.start + tile.width)
        path.write_bytes(
            tiles.encode_bundle(data[span]) if tile.level is None else b"".join(levels[8 * tile.level][span])
        )
    head = Checkpoint(small.ORIGIN, len(data), merkle.root(leaves))
    (log.tiles / "checkpoint").write_text(note.sign_note(head.format(), small.ORIGIN, LOG))


def status(sequence: int, time: str = small.TIME) -> bytes:
    """What the log says by its own key, at a time."""
    said = {"sequence": sequence, "time": time, "revoked_keys": [], "revoked_releases": []}
    return small.seal(
        "status", {**said, "ledger": small.tree("ledger/1", 1, "x"), "runs": small.tree("runs/1", 1, "r")}
    )
