"""Puts RFC 3161 timestamps into the bundle of a version: `ledger model timestamp`.

An authority's word on the bundle's checkpoint is added beside everything else, to the bundle as it stands; whose word
counts, a consumer's policy says (timestamp_check.py).
"""

from __future__ import annotations

import base64
from datetime import datetime

from bitwitness.ledger import timestamp
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.project import Project
from bitwitness.ledger.timestamp import LIMIT

from ..bundles import bundle
from ..folder import Folder
from ..names import Version, find_version
from ..refresh import replace_file

__all__ = ["LIMIT", "TooMany", "add"]


class TooMany(BitwitnessError):
    """A bundle that holds as many timestamps as it may."""


def add(project: Project, name: str, url: str, roots: bytes) -> tuple[Version, datetime]:
    """Have the authority at ``url`` stamp the checkpoint of a version's bundle, and put the answer into the bundle.

    ``roots`` are the PEM certificates that the answer must be under; returns the time that it names (UTC). Raises
    NoSuchModel, TooMany, BundleError, and what ledger/timestamp.py raises; the bundle is then as it was.
    """
    trusted = timestamp.load_roots(roots)
    with project.open_ledger() as ledger:
        version = find_version(ledger, name)
    note = _read(project, version).checkpoint.encode()
    answer = timestamp.ask(url, note)
    time = timestamp.check(answer, note, trusted)
    with project.open_ledger(writable=True):  # so that nobody makes the bundle anew meanwhile
        read = _read(project, version)
        if read.checkpoint.encode() != note:
            raise BitwitnessError(
                f"the bundle of {version} was made anew while the authority answered, and stays as it is: ask again"
            )
        added = read.model_copy(update={"timestamps": [*(read.timestamps or []), base64.b64encode(answer).decode()]})
        replace_file(version.folder(project) / bundle.FILE_NAME, bundle.parse(added.encode()).encode())
    return version, time


def _read(project: Project, version: Version) -> bundle.Provenance:
    """The bundle of a version, which has room for another timestamp."""
    folder = version.folder(project)
    if not folder.is_dir():
        raise BitwitnessError(f"{version} is not on disk ({folder}); `ledger model refresh {version}` writes it again")
    with Folder(folder) as opened:
        read = bundle.parse(bytes(opened.read(bundle.FILE_NAME, limit=bundle.SIZE_LIMIT)))
    if len(held := read.timestamps or []) >= bundle.TIMESTAMPS_LIMIT:
        raise TooMany(
            f"the bundle of {version} holds {len(held)} timestamps already; `ledger model refresh` drops them"
        )
    return read
