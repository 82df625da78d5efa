"""The making of a project's folder: all of it or nothing, and nothing that anybody else made is touched.

Everything is made in a hidden folder inside the project's, then linked into place, bitwitness.toml last. An operating
system lock on the folder keeps a second `ledger init` out and goes with the process, however that ends; what a killed
one left is known by the hidden folder, whose files are the very ones (the same inode) that were put in place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import BitwitnessError
from .files import folder_lock

STAGE = ".bitwitness-init-"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if it is missing, against another `ledger init`. Raises BitwitnessError, OSError.

    Folders that were made are taken away again where nothing has come to stand in them.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    if folder.exists() and not folder.is_dir():
        raise BitwitnessError(f"{folder} is a file; give `ledger init` a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock.held(folder, BitwitnessError(f"another `ledger init` is at work in {folder}")):
        try:
            yield
        except BaseException:
            for path in made:
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise


def clear(folder: Path, config: str) -> None:
    """Take away what a killed `ledger init` left in the folder, if it had not come to its end. Hold it (`alone`)."""
    for stage in folder.glob(f"{STAGE}*"):
        if stage.is_symlink() or not stage.is_dir():
            continue
        if not (folder / config).exists():
            for file in _files(stage):
                _unlink_same(stage / file, folder / file)
        shutil.rmtree(stage)


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Path]:
    """A hidden folder in which everything is made, mode 0700; gone at the end."""
    made = Path(tempfile.mkdtemp(prefix=STAGE, dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def put_in_place(stage: Path, folder: Path, last: Sequence[str]) -> None:
    """Link every file of the stage to its place in the folder, those named `last` at the end, replacing none.

    Takes back what it did if one of the places is taken (FileExistsError).
    """
    done: list[Path] = []
    try:
        for directory in sorted(path for path in stage.rglob("*") if path.is_dir()):
            place = folder / directory.relative_to(stage)
            place.mkdir(exist_ok=True)
        files = [file for file in _files(stage) if str(file) not in last] + [Path(name) for name in last]
        for file in files:
            _link(stage / file, folder / file)
            done.append(file)
    except BaseException:
        for file in done:
            _unlink_same(stage / file, folder / file)
        raise


def _files(stage: Path) -> list[Path]:
    return sorted(path.relative_to(stage) for path in stage.rglob("*") if path.is_file())


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without links; the lock on the folder keeps other inits out.
        if os.path.lexists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place)) from None
        os.rename(source, place)


def _unlink_same(made: Path, place: Path) -> None:
    """Unlink `place` if it is the very file that was made."""
    with contextlib.suppress(OSError):
        if not made.exists() or os.path.samestat(made.lstat(), place.lstat()):
            place.unlink()
