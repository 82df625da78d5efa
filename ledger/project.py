"""A project folder: one ledger, its keys, and the places of data, stored states and models.

bitwitness.toml   paths of everything else, relative to it
ledger.db         the ledger
keys/             root, log, trainer, auditor and publisher (mode 0600); keep root.pem offline once enrolled
data/ runs/ models/
trust.toml        the policy of a consumer who trusts this project's keys and nothing else
run.toml          a run to start from
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from . import keys, project_init
from .checkpoint import default_origin
from .entry._fields import ORIGIN
from .entry.key_entries import enrolment
from .errors import BitwitnessError, EntryError, KeyFileError
from .keys import PassphraseSource, Signer
from .note import Verifier
from .sqlite.ledger_file import unmerged
from .store import Ledger
from .trust import Trust, load_trust

CONFIG = "bitwitness.toml"
ROLES = ("root", "log", "trainer", "auditor", "publisher")
PATHS = {"ledger": "ledger.db", "keys": "keys", "data": "data", "runs": "runs", "models": "models"}
TRUST = "trust.toml"
FORMAT = 1

_FILES = (
    CONFIG,
    TRUST,
    "run.toml",
    *(f"{PATHS['ledger']}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", ".lock")),
    *(f"{PATHS['keys']}/{role}{suffix}" for role in ROLES for suffix in (".pem", ".pub")),
    f"{PATHS['keys']}/log{keys.MEMORY_SUFFIX}",
)


class ProjectNotFound(BitwitnessError):
    """No folder from `start` upwards holds a bitwitness.toml."""

    def __init__(self, start: Path) -> None:
        super().__init__(
            f"{start} is not in a project; run `ledger init` or give --project DIR"
            if start.is_dir()
            else f"{start}: the folder does not exist"
        )
        self.start = str(start)


class ProjectError(BitwitnessError):
    """A bitwitness.toml that cannot be used. `path` names it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)


@dataclass(frozen=True)
class Project:
    """An existing project. `root` is its folder; all paths are absolute."""

    root: Path
    paths: Mapping[str, Path]
    passphrase: PassphraseSource | None = None
    """Where the passphrase of an encrypted key comes from, if not from the environment."""
    alias_policies: Mapping[str, Path] = field(default_factory=dict)
    """The policy file that a release must pass before an alias may name it (`[aliases]` of bitwitness.toml)."""
    named_policy: Path | None = None
    """The policy that was named for it, which its own trust.toml then says nothing against."""

    @classmethod
    def find(cls, start: Path | str | None = None) -> Project:
        """The project of the folder `start`, or of the nearest one above the current folder.

        With `start` given the folder itself must be a project. Raises ProjectNotFound, ProjectError.
        """
        if start is not None:
            folder = Path(start).absolute()
            if not (folder / CONFIG).is_file():
                raise ProjectNotFound(folder)
            return cls._read(folder)
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / CONFIG).is_file():
                return cls._read(folder)
        raise ProjectNotFound(here)

    @classmethod
    def create(cls, folder: Path | str, *, passphrase: bytes | None = None, origin: str | None = None) -> Project:
        """Make a project in `folder`: keys, ledger with the keys enrolled, trust.toml, run.toml.

        Creates what is missing and refuses to replace any file. With `passphrase` all keys are encrypted.
        Raises BitwitnessError.
        """
        folder = Path(folder).absolute()
        if origin is not None:
            check_origin(origin)
        project = cls(folder, {name: folder / path for name, path in PATHS.items()})
        try:
            with project_init.alone(folder):
                project_init.clear(folder, CONFIG)
                _refuse_existing(folder, _FILES)
                with project_init.stage(folder) as stage:
                    cls(stage, {name: stage / path for name, path in PATHS.items()})._fill(passphrase, origin)
                    # The configuration comes last, since it is what makes the folder a project.
                    project_init.put_in_place(stage, folder, (CONFIG,))
                os.chmod(project.keys_dir, 0o700)
        except FileExistsError as error:
            raise _exists(Path(error.filename2 or error.filename)) from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BitwitnessError(f"{error.filename or folder}: {reason}") from None
        return project

    def _fill(self, passphrase: bytes | None, origin: str | None) -> None:
        for folder in (self.keys_dir, self.data_dir, self.runs_dir, self.models_dir):
            folder.mkdir()
        signers = {role: keys.generate(role) for role in ROLES}
        for role, signer in signers.items():
            keys.save(signer, self.key_path(role), passphrase)
        log = replace(signers["log"], memory=self.key_path("log").with_suffix(keys.MEMORY_SUFFIX))
        origin = origin or default_origin(log.public)
        with Ledger.create(self.ledger_path, origin) as ledger:
            ledger.append([enrolment(signers["root"], signers[role].public, role) for role in ROLES])
            ledger.sign_checkpoint(log)
        _write_new(self.trust_path, self.trust_policy_text(origin, signers))
        _write_new(self.root / "run.toml", _template("run.toml"))
        _write_new(self.config, _template(CONFIG))

    @classmethod
    def _read(cls, folder: Path) -> Project:
        path = folder / CONFIG
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # ValueError: of TOML, of UTF-8, of a number too long
            raise ProjectError(path, f"not readable as TOML: {error}") from None
        unknown = sorted(table.keys() - {"format", "paths", "aliases"})
        if unknown:
            raise ProjectError(path, f"unknown key {unknown[0]}")
        if table.get("format") != FORMAT or type(table["format"]) is not int:
            raise ProjectError(path, f"format = {table.get('format')!r} is not {FORMAT}, which this program knows")
        given = table.get("paths", {})
        if not isinstance(given, dict):
            raise ProjectError(path, "[paths] is not a table")
        for name, value in given.items():
            if name not in PATHS:
                raise ProjectError(path, f"unknown key paths.{name}")
            if not isinstance(value, str) or not value or "\0" in value:
                raise ProjectError(path, f"paths.{name} is not a path")
        policies = _alias_policies(path, table.get("aliases", {}))
        paths = {name: folder / given.get(name, default) for name, default in PATHS.items()}
        return cls(folder, paths, alias_policies={alias: folder / policy for alias, policy in policies.items()})

    @property
    def config(self) -> Path:
        return self.root / CONFIG

    @property
    def ledger_path(self) -> Path:
        return self.paths["ledger"]

    @property
    def keys_dir(self) -> Path:
        return self.paths["keys"]

    @property
    def data_dir(self) -> Path:
        return self.paths["data"]

    @property
    def runs_dir(self) -> Path:
        return self.paths["runs"]

    @property
    def models_dir(self) -> Path:
        return self.paths["models"]

    @property
    def inbox_dir(self) -> Path:
        """Where audit entries wait that came while a run was being trained (inbox.py)."""
        return self.root / "inbox"

    @property
    def trust_path(self) -> Path:
        """The policy that it is verified under: the one that was named, else its trust.toml."""
        return self.named_policy or self.root / TRUST

    def trust(self) -> Trust | None:
        """What that policy says; None where there is no such file. Raises TrustError."""
        return load_trust(self.trust_path) if self.trust_path.exists() else None

    def key_path(self, role: str) -> Path:
        """Where the private key of `role` stands."""
        return self.keys_dir / f"{role}.pem"

    def signer(self, role: str) -> Signer:
        """The project's key of one role; an encrypted one asks `passphrase`, after $BITWITNESS_PASSPHRASE.

        Raises KeyFileError, WrongPassphrase.
        """
        signer = keys.load_private(self.key_path(role), keys.passphrase_from_env() or self.passphrase)
        if signer.role != role:
            raise KeyFileError(self.key_path(role), f"this is a {signer.role} key, not a {role} key")
        return signer

    def open_ledger(self, *, writable: bool = False) -> Ledger:
        """Open the project's ledger; see Ledger.open.

        One that no longer extends what the log key has signed is not opened for writing (LogRolledBack).
        """
        ledger = Ledger.open(self.ledger_path, writable=writable)
        if writable:
            try:
                ledger.check_memory(self.key_path("log").with_suffix(keys.MEMORY_SUFFIX))
            except BaseException:
                with unmerged(self.ledger_path):
                    ledger.close()
                raise
        return ledger

    @staticmethod
    def trust_policy_text(origin: str, signers: Mapping[str, Signer]) -> str:
        """A policy that pins this project's log and root key (docs/formats/trust-policy.md)."""
        return _template("trust.toml").format(
            origin=origin,
            log_key=Verifier(origin, signers["log"].public).vkey,
            root_key=signers["root"].public.raw.hex(),
            auditor=signers["auditor"].keyid,
        )


def _alias_policies(path: Path, given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        raise ProjectError(path, "[aliases] is not a table")
    for alias, policy in given.items():
        if not isinstance(policy, str) or not policy or "\0" in policy:
            raise ProjectError(path, f"aliases.{alias} is not the path of a policy file")
    return given


def config_text() -> str:
    """A bitwitness.toml with the usual paths."""
    return _template(CONFIG)


def check_origin(origin: str) -> None:
    """A log's name as entries and notes may hold it. Raises BitwitnessError."""
    try:
        ORIGIN.validate(origin, "origin")
    except EntryError as error:
        raise BitwitnessError(f"--origin: {error}") from None


def _refuse_existing(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            raise _exists(folder / name)


def _exists(path: Path) -> BitwitnessError:
    return BitwitnessError(f"{path} exists; `ledger init` replaces nothing, give it another folder")


def _template(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _write_new(path: Path, text: str) -> None:
    with open(path, "x", encoding="utf-8", newline="\n") as file:
        file.write(text)
