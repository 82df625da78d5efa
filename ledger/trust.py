"""What a verifier trusts before it looks: one log and one root key, pinned in `trust.toml`.

Only the tables [log], [root] and [witnesses] are read here; docs/formats/trust-policy.md describes the whole file,
and the registry, which decides on models, reads it all strictly.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .errors import BitwitnessError, NoteError
from .keys import PublicKey
from .note import ED25519, Note, Verifier
from .witness_policy import NONE, WitnessPolicy, WitnessPolicyError, parse_policy

_SIZE_LIMIT = 1 << 20


class TrustError(BitwitnessError):
    """The policy file is missing or does not pin a log and a root key. `path` names it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"policy {path}: {reason}")
        self.path = str(path)
        self.reason = reason


@dataclass(frozen=True)
class Trust:
    """The pinned log (its origin and the key of its checkpoints) and the root key that enrols all others.

    With `witnesses`, a checkpoint counts only if their quorum has cosigned it.
    """

    origin: str
    log: Verifier
    root: PublicKey
    witnesses: WitnessPolicy | None = None

    def __post_init__(self) -> None:
        if self.log.type != ED25519:
            raise NoteError("log.key", "a witness's key (type 0x04), not a log's (0x01)")
        if self.log.name != self.origin:
            raise NoteError("log.key", f"its name is {self.log.name}, not the origin {self.origin}")

    @property
    def asks_for_witnesses(self) -> bool:
        """Whether a checkpoint needs cosignatures to count."""
        return self.witnesses is not None and self.witnesses.quorum != NONE

    @property
    def cosigners(self) -> tuple[Verifier, ...]:
        """The keys of the witnesses."""
        return () if self.witnesses is None else self.witnesses.verifiers


def witness_line(policy: WitnessPolicy | None, note: Note) -> tuple[bool | None, str]:
    """Whether the quorum cosigned an opened checkpoint, in one line; None if no quorum is asked for."""
    if policy is None or policy.quorum == NONE:
        return None, (
            "self-asserted: the policy asks for no witness, so only the log itself says that others see the same"
        )
    names = ", ".join(item.verifier.name for item in policy.cosignatures(note)) or "nobody"
    if not policy.met_by(note):
        return False, f"not witnessed: the policy asks for {policy.describe()}; cosigned by {names}"
    return True, f"witnessed by {names} ({policy.describe()}), as of {time_text(policy.witnessed_at(note) or 0)}"


def time_text(seconds: int) -> str:
    """Seconds since 1970 as RFC 3339, or as they are where no calendar reaches."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds} seconds after 1970"


def pinned_witnesses(text: str, log: Verifier) -> WitnessPolicy:
    """The policy in `witnesses.policy`. Raises WitnessPolicyError, also if it lists logs but not the pinned one."""
    policy = parse_policy(text)
    if policy.logs and all(item.verifier != log for item in policy.logs):
        raise WitnessPolicyError(0, "it lists other logs than the pinned one")
    return policy


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
        origin, log = text("log", "origin"), Verifier.parse(text("log", "key"))
        witnesses = pinned_witnesses(text("witnesses", "policy"), log) if "witnesses" in table else None
        return Trust(origin, log, PublicKey.from_hex(text("root", "key")), witnesses)
    except TrustError:
        raise
    except BitwitnessError as error:
        raise TrustError(path, str(error)) from None
