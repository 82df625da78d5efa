"""What `ledger audit SOURCE` names: a run of this project, another project, an export, or a log elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bitwitness.ledger.cli.options import current_project, load_key, project_at
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import CONFIG
from bitwitness.ledger.remote import Remote, is_address
from bitwitness.ledger.tile_export import CHECKPOINT

from ..remote_venue import RemoteVenue, work_folder
from ..venue import LocalVenue, Venue


@dataclass(frozen=True)
class Source:
    """A place to audit in, and the run if its name was the source itself."""

    venue: Venue
    named: str | None = None

    def run(self, given: str | None) -> str:
        """The run that is meant: the named one, or the only one there. Raises BitwitnessError."""
        if self.named is not None:
            if given is not None:
                raise BitwitnessError(
                    f"{self.named} is neither a folder nor an address, so it is the run; leave {given} out"
                )
            return self.named
        if given is not None:
            return given
        with self.venue.open() as ledger:
            names = [str(row[0]) for row in ledger.connection.execute("SELECT name FROM runs ORDER BY entry LIMIT 20")]
        if len(names) != 1:
            there = ", ".join(names) or "none"
            raise BitwitnessError(f"say which run is to be audited, after the source; there: {there}")
        return names[0]


@contextmanager
def open_source(
    text: str, *, policy: Path | None = None, key: Path | None = None, out: Path | None = None, work: Path | None = None
) -> Iterator[Source]:
    """Open what a SOURCE names. An address or a folder with a checkpoint is somebody else's log.

    Raises BitwitnessError.
    """
    folder = Path(text)
    if is_address(text) or (folder / CHECKPOINT).is_file():
        auditor = load_key(key, "auditor") if key is not None else current_project().signer("auditor")
        with Remote(text) as remote:
            yield Source(RemoteVenue(remote, _work(policy, work), policy, auditor, out=out))
        return
    if out is not None or policy is not None or work is not None:
        if (folder / CONFIG).is_file():
            raise BitwitnessError(
                f"{text} is a project, whose own ledger an audit writes: leave --policy, --out and --work out, or give"
                " an export of it (`ledger export --tiles`)"
            )
        raise BitwitnessError(
            "--policy, --out and --work are for a log elsewhere; of a project here the ledger is written"
        )
    signer = None if key is None else load_key(key, "auditor")
    if (folder / CONFIG).is_file():
        yield Source(LocalVenue(project_at(folder), signer))
        return
    if "/" in text or text in (".", ".."):
        raise BitwitnessError(f"{text} is neither a project, nor an export of a log (it has no checkpoint)")
    yield Source(LocalVenue(current_project(), signer), text)


def _work(policy: Path | None, work: Path | None) -> Path:
    if work is not None:
        return work
    if policy is None:
        raise BitwitnessError("whose log is it? give --policy trust.toml, with the log's and the root's key")
    return work_folder(policy)


__all__ = ["Source", "open_source"]
