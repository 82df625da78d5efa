"""What a verifier trusts before it looks: one log and one root key, pinned in `trust.toml`.

Only the tables [log] and [root] are read here; docs/formats/trust-policy.md describes the whole file, and the
registry, which decides on models, reads it all strictly.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from .errors import BitwitnessError
from .keys import PublicKey
from .note import Verifier

_SIZE_LIMIT = 1 << 20


class TrustError(BitwitnessError):
    """The policy file is missing or does not pin a log and a root key. `path` names it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"policy {path}: {reason}")
        self.path = str(path)
        self.reason = reason


@dataclass(frozen=True)
class Trust:
    """The pinned log (its origin and the key of its checkpoints) and the root key that enrols all others."""

    origin: str
    log: Verifier
    root: PublicKey


def load_trust(path: Path) -> Trust:
    """Read the pinned keys of a policy file. Raises TrustError."""
    try:
        with open(path, "rb") as file:
            data = file.read(_SIZE_LIMIT + 1)
        if len(data) > _SIZE_LIMIT:
            raise TrustError(path, f"larger than {_SIZE_LIMIT} bytes")
        table = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise TrustError(path, (error.strerror or "cannot be read").lower()) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise TrustError(path, f"not TOML: {error}") from None

    def text(section: str, name: str) -> str:
        value = table.get(section, {})
        value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, str):
            raise TrustError(path, f"the key {section}.{name} is missing")
        return value

    try:
        return Trust(text("log", "origin"), Verifier.parse(text("log", "key")), PublicKey.from_hex(text("root", "key")))
    except TrustError:
        raise
    except BitwitnessError as error:
        raise TrustError(path, str(error)) from None
