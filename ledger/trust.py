"""What a verifier trusts before it looks: one log and one root key, pinned in `trust.toml`.

Only the tables [log], [root] and [witnesses] are used here, but every key of the file must be one that
docs/formats/trust-policy.md describes; the registry, which decides on models, applies the rules.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BitwitnessError, NoteError
from .files import rfc3339
from .files.regular_file import read_regular
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

    With `witnesses`, a checkpoint counts only if their quorum has cosigned it. `auditors` are the keyids of those whose
    word counts even where they chose themselves what to audit.
    """

    origin: str
    log: Verifier
    root: PublicKey
    witnesses: WitnessPolicy | None = None
    auditors: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.log.type != ED25519:
            raise NoteError("log.key", "a witness's key (type 0x04), not a log's (0x01)")
        if self.log.name != self.origin:
            raise NoteError("log.key", f"its name is {self.log.name}, not the origin {self.origin}")

    @property
    def pins(self) -> dict[str, str]:
        """What makes it this log and no other: its origin, the log key and the root key."""
        return {"origin": self.origin, "log key": self.log.key.raw.hex(), "root key": self.root.raw.hex()}

    @property
    def asks_for_witnesses(self) -> bool:
        """Whether a checkpoint needs cosignatures to count."""
        return self.witnesses is not None and self.witnesses.quorum != NONE

    @property
    def cosigners(self) -> tuple[Verifier, ...]:
        """The keys of the witnesses."""
        return () if self.witnesses is None else self.witnesses.verifiers

    @property
    def witness_keys(self) -> frozenset[str]:
        """The keyids of the witnesses, whatever their quorum."""
        return frozenset(item.key.keyid for item in self.cosigners)


def witness_line(policy: WitnessPolicy | None, note: Note) -> tuple[bool | None, str]:
    """Whether the quorum cosigned an opened checkpoint, in one line; None if no quorum is asked for."""
    if policy is None or policy.quorum == NONE:
        return None, (
            "self-asserted: the policy asks for no witness, so only the log itself says that others see the same"
        )
    names = ", ".join(item.verifier.name for item in policy.cosignatures(note)) or "nobody"
    if not policy.met_by(note):
        return False, f"not witnessed: the policy asks for {policy.describe()}; cosigned by {names}"
    when = rfc3339.text_of_seconds(policy.witnessed_at(note) or 0)
    return True, f"witnessed by {names} ({policy.describe()}), as of {when}"


def pinned_witnesses(text: str, log: Verifier) -> WitnessPolicy:
    """The policy in `witnesses.policy`. Raises WitnessPolicyError, also if it lists logs but not the pinned one."""
    policy = parse_policy(text)
    if policy.logs and all(item.verifier != log for item in policy.logs):
        raise WitnessPolicyError(0, "it lists other logs than the pinned one")
    return policy


def read_policy(path: Path) -> bytes:
    """The bytes of a policy file. Raises OSError."""
    return read_regular(path, _SIZE_LIMIT)


def load_trust(path: Path) -> Trust:
    """Read the pinned keys of a policy file, all of which must be as its description says. Raises TrustError."""
    try:
        table = tomllib.loads(read_policy(path).decode("utf-8"))
    except OSError as error:
        raise TrustError(path, (error.strerror or "cannot be read").lower()) from None
    except UnicodeDecodeError:
        raise TrustError(path, "not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # of TOML, or of a path with a zero byte
        raise TrustError(path, f"not TOML: {error}") from None
    wrong = policy_fault(table)
    if wrong is not None:
        raise TrustError(path, wrong)
    try:
        log = Verifier.parse(table["log"]["key"])
        witnesses = pinned_witnesses(table["witnesses"]["policy"], log) if "witnesses" in table else None
        auditors = frozenset(table.get("rules", {}).get("self_chosen_auditors", []))
        return Trust(table["log"]["origin"], log, PublicKey.from_hex(table["root"]["key"]), witnesses, auditors)
    except BitwitnessError as error:
        raise TrustError(path, str(error)) from None


# Every key of a policy, by its table: its type, and whether it must be there. The registry gives the rules their
# meaning; an unknown one is refused here, too, so that one file means the same to every command.
_HASHES, _TEXTS = ("a list of 64 lower-case hex digits each", "a list of texts")
_NUMBERS = "a table from 64 lower-case hex digits to numbers"
POLICY_KEYS: dict[str, dict[str, str]] = {
    "log": {"origin": "a text", "key": "a text"},
    "root": {"key": "a text"},
    "witnesses": {"policy": "a text"},
    "status": {"file": "a text", "max_age": "a whole number"},
    "oms": {"key": "a text"},
    "timestamps": {"authorities": "a text", "max_age": "a whole number"},
    "rules": {
        "require_audit": "true or false",
        "self_chosen_auditors": _HASHES,
        "max_open_intents": "a whole number",
        "min_audited_steps": "a whole number",
        "min_audited_fraction": "a number",
        "require_status": "true or false",
        "max_status_age": "a whole number",
        "max_checkpoint_age": "a whole number",
        "trainers": _HASHES,
        "publishers": _HASHES,
        "datasets": _HASHES,
        "code": _HASHES,
        "licenses": _TEXTS,
        "models": _TEXTS,
        "min_version": "a whole number",
        "auditors": _HASHES,
        "min_auditors": "a whole number",
        "precisions": _TEXTS,
        "max_loss": _NUMBERS,
        "require_eval_audit": "true or false",
        "forbidden_keys": _HASHES,
        "forbidden_versions": _TEXTS,
        "refuse_deprecated": "true or false",
    },
}
_REQUIRED = ("log", "root")
_OPTIONAL = frozenset({"status.max_age", "timestamps.max_age"})
_KEYID = re.compile("[0-9a-f]{64}")


def policy_fault(table: Mapping[str, Any]) -> str | None:
    """The first key of a parsed policy that is unknown, missing or of another type, in one line; None if none is."""
    for section in table:
        if section not in POLICY_KEYS:
            return f"unknown key {section}"
    for section, keys in POLICY_KEYS.items():
        if section not in table and section not in _REQUIRED:
            continue
        values = table.get(section, {})
        if not isinstance(values, dict):
            return f"{section}: must be a table"
        for name in values:
            if name not in keys:
                return f"unknown key {section}.{name}"
        for name, wanted in keys.items():
            if name not in values:
                if section != "rules" and f"{section}.{name}" not in _OPTIONAL:
                    return f"the key {section}.{name} is missing"
            elif not _is(wanted, values[name]):
                return f"{section}.{name}: must be {wanted}"
    return None


def _is(wanted: str, value: object) -> bool:
    if wanted == "a text":
        return isinstance(value, str)
    if wanted == "true or false":
        return isinstance(value, bool)
    if wanted == "a whole number":
        return type(value) is int
    if wanted == "a number":
        return type(value) in (int, float)
    if wanted == _NUMBERS:
        return isinstance(value, dict) and all(
            _KEYID.fullmatch(key) and type(item) in (int, float) for key, item in value.items()
        )
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return False
    return wanted == _TEXTS or all(_KEYID.fullmatch(item) for item in value)
