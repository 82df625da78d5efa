"""What SOURCE names: a run of this project, another project, an export, or a log elsewhere; to audit, or to read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import typer

from bitwitness.ledger.cli.options import current_project, load_key, project_at
from bitwitness.ledger.cli.output import note
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.exchange.tile_export import CHECKPOINT
from bitwitness.ledger.follow.remote import Remote, is_address
from bitwitness.ledger.project import CONFIG, Project

from ..auditing.remote_venue import RemotePlace, RemoteVenue, work_folder
from ..auditing.venue import LocalPlace, LocalVenue, Place, Venue

RunOption = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Name or hash of the run there; the only one unless given."),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Whose log it is: his trust.toml. Needed for a URL or an export."),
]
WorkOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keeps the mirrored log and what was fetched; in the cache unless given."),
]
_P = TypeVar("_P", bound=Place, covariant=True)


@dataclass(frozen=True)
class Source(Generic[_P]):
    """An opened log, and the run if its name was the source itself."""

    place: _P
    named: str | None = None
    words: tuple[str, str] = ("", "")
    """What leads to this log on the command line, before the run's name and after it."""

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
        with self.place.open() as ledger:
            names = [str(row[0]) for row in ledger.connection.execute("SELECT name FROM runs ORDER BY entry LIMIT 20")]
        if len(names) != 1:
            there = ", ".join(names) or "none"
            raise BitwitnessError(f"say which run is meant, after the source; there: {there}")
        return names[0]

    def again(self, run: str) -> str:
        """How a command names that run of this source."""
        return " ".join(part for part in (self.words[0], shlex.quote(run), self.words[1]) if part)


@contextmanager
def open_source(
    text: str | None,
    *,
    policy: Path | None = None,
    key: Path | None = None,
    out: Path | None = None,
    work: Path | None = None,
) -> Iterator[Source[Venue]]:
    """Open what a SOURCE names, to audit there. An address or a folder with a checkpoint is somebody else's log.

    Without a SOURCE it is this project. Raises BitwitnessError.
    """
    if text is not None and _is_elsewhere(text):
        auditor = load_key(key, "auditor") if key is not None else current_project().signer("auditor")
        with Remote(text) as remote:
            there = RemoteVenue(remote, _work(policy, work), policy, auditor, out=out)
            with _telling(there):
                yield Source(there, words=_words(text, policy, work))
        return
    elsewhere = [] if out is None and policy is None and work is None else ["--policy", "--out", "--work"]
    project, named = _project(text, elsewhere, "whose own ledger an audit writes")
    venue: Venue = LocalVenue(project, None if key is None else load_key(key, "auditor"))
    yield Source(venue, named, _words(text, None, None) if named is None and text is not None else ("", ""))


@contextmanager
def open_to_read(text: str, *, policy: Path | None = None, work: Path | None = None) -> Iterator[Source[Place]]:
    """Open what a SOURCE names, to replay from it: no key is needed, and nothing is written there. The same rules."""
    if _is_elsewhere(text):
        with Remote(text) as remote:
            place = RemotePlace(remote, _work(policy, work), policy)
            with _telling(place):
                yield Source(place, words=_words(text, policy, work))
        return
    elsewhere = [] if policy is None and work is None else ["--policy", "--work"]
    project, named = _project(text, elsewhere, "which is read as it is")
    yield Source(LocalPlace(project), named, _words(text, None, None) if named is None else ("", ""))


@contextmanager
def _telling(place: RemotePlace) -> Iterator[None]:
    """Say at the end what the log signed and does not show."""
    try:
        yield
    finally:
        for item in place.unserved:
            note(f"note: {item}")


def _is_elsewhere(text: str) -> bool:
    return is_address(text) or (Path(text) / CHECKPOINT).is_file()


def _project(text: str | None, elsewhere: list[str], why: str) -> tuple[Project, str | None]:
    """The project that is meant, and the run where the text is one's name. `elsewhere`: options of a remote log."""
    if elsewhere:
        said = f"{', '.join(elsewhere[:-1])} and {elsewhere[-1]}"
        if text is not None and (Path(text) / CONFIG).is_file():
            raise BitwitnessError(
                f"{text} is a project, {why}: leave {said} out, or give an export of it (`ledger export --tiles`)"
            )
        raise BitwitnessError(f"{said} are for a log elsewhere, which a URL or an export is")
    if text is None:
        return current_project(), None
    folder = Path(text)
    if (folder / CONFIG).is_file():
        return project_at(folder), None
    if "/" in text or text in (".", ".."):
        raise BitwitnessError(f"{text} is neither a project, nor an export of a log (it has no checkpoint)")
    return current_project(), text


def _words(text: str, policy: Path | None, work: Path | None) -> tuple[str, str]:
    options = [("--policy", policy), ("--work", work)]
    return shlex.quote(text), " ".join(f"{name} {shlex.quote(str(path))}" for name, path in options if path is not None)


def _work(policy: Path | None, work: Path | None) -> Path:
    if work is not None:
        return work
    if policy is None:
        raise BitwitnessError("whose log is it? give --policy trust.toml, with the log's and the root's key")
    return work_folder(policy)


__all__ = ["PolicyOption", "RunOption", "Source", "WorkOption", "open_source", "open_to_read"]
