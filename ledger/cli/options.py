"""Options that every command has, and the project that they choose.

A command of any floor declares `json_output: JsonOption = False` and calls `current_project()`; `--project` is
accepted before and after the command's name (see plugins.with_project).
"""

from __future__ import annotations

import getpass
import os
import sys
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BitwitnessError, KeyFileError
from ..keys import (
    PASSPHRASE_VARIABLE,
    PassphraseSource,
    Signer,
    load_private,
    passphrase_from_env,
    passphrase_from_file,
    passphrase_from_prompt,
)

if TYPE_CHECKING:
    from ..project import Project

PROJECT_VARIABLE = "BITWITNESS_PROJECT"
PASSPHRASE_FILE_VARIABLE = "BITWITNESS_PASSPHRASE_FILE"

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ProjectOption = Annotated[
    Path | None,
    typer.Option(
        "--project",
        metavar="DIR",
        envvar=PROJECT_VARIABLE,
        help="The project's folder; else the nearest one from here upwards.",
    ),
]

_project: ContextVar[Path | None] = ContextVar("bitwitness_project", default=None)


def choose_project(folder: Path | None) -> None:
    """Remember the folder given by --project; None leaves the choice as it is."""
    if folder is not None:
        _project.set(folder)


def forget_project() -> None:
    """Begin a new command line."""
    _project.set(None)


def current_project() -> Project:
    """The project that the command line chose. Raises ProjectNotFound, ProjectError.

    An encrypted key's passphrase comes from $BITWITNESS_PASSPHRASE, from the file that $BITWITNESS_PASSPHRASE_FILE
    names, or from the terminal; never from the command line, which others can see.
    """
    return project_at(_project.get())


def project_at(folder: Path | None) -> Project:
    """The project of a folder, as current_project() gives it."""
    from ..project import Project  # a gate has none, and need not import the store

    return replace(Project.find(folder), passphrase=_passphrase("Passphrase of the project's keys: "))


def load_key(path: Path, role: str) -> Signer:
    """A private key file that a command was given. Raises KeyFileError, WrongPassphrase."""
    signer = load_private(path, passphrase_from_env() or _passphrase(f"Passphrase of {path}: "))
    if signer.role != role:
        raise KeyFileError(path, f"this is a {signer.role} key, not a {role} key")
    return signer


def _passphrase(text: str) -> PassphraseSource:
    file = os.environ.get(PASSPHRASE_FILE_VARIABLE)
    return passphrase_from_file(file) if file else passphrase_from_prompt(_ask, text)


def new_passphrase(file: Path | None = None) -> bytes:
    """The passphrase of a key that is being made: from a file, $BITWITNESS_PASSPHRASE, or asked for twice."""
    source = passphrase_from_file(file) if file is not None else passphrase_from_env()
    if source is not None:
        return source()
    first = _ask("New passphrase: ")
    if _ask("Again: ") != first:
        raise BitwitnessError("the two passphrases differ; nothing was made")
    return first.encode("utf-8", "surrogateescape")


def _ask(text: str) -> str:
    if not sys.stdin.isatty():
        raise PassphraseNeeded()
    return getpass.getpass(text)


class PassphraseNeeded(BitwitnessError):
    """A key is encrypted, and there is neither a variable nor a terminal to get its passphrase from."""

    def __init__(self) -> None:
        super().__init__(f"a passphrase is needed; set ${PASSPHRASE_VARIABLE} or ${PASSPHRASE_FILE_VARIABLE}")
