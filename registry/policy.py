"""`trust.toml`: the keys and rules that a consumer decides on, and the only things the gate trusts.

docs/formats/trust-policy.md describes every key. An unknown key is an error that names it: a rule that is
misspelt must not silently allow everything.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files.regular_file import open_regular
from bitwitness.ledger.files.schema_error import first_reason
from bitwitness.ledger.witness_policy import NONE, WitnessPolicy
from bitwitness.ledger.witness_policy import parse_policy as parse_witness_policy

_HEX64 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[1-9][0-9]{0,8}")
_SIZE_LIMIT = 1 << 20


class PolicyError(BitwitnessError):
    """The policy file is missing, is not TOML, or has a key or value that its description does not allow."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"policy {path}: {reason}")
        self.path = path
        self.reason = reason


def _hex64(value: str) -> str:
    if not _HEX64.fullmatch(value):
        raise ValueError("must be 64 lower-case hex digits")
    return value


def _version(value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise ValueError("must be NAME/VERSION")
    return value


Hex64 = Annotated[str, AfterValidator(_hex64)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LogTrust(_Strict):
    """The one log whose checkpoints count: its origin line and its key as a C2SP vkey."""

    origin: str = Field(min_length=1, max_length=255)
    key: str = Field(min_length=1, max_length=1024)


class RootTrust(_Strict):
    """The offline key that enrols all others: the raw Ed25519 public key as 64 hex digits."""

    key: Hex64


def _witness_policy(value: str) -> str:
    try:
        parse_witness_policy(value)
    except BitwitnessError as error:
        raise ValueError(str(error)) from None
    return value


class WitnessTrust(_Strict):
    """Who must have cosigned the checkpoint: the text of a C2SP tlog-policy, whose `quorum` decides."""

    policy: Annotated[str, AfterValidator(_witness_policy)]


class Rules(_Strict):
    """What a model must show on top of valid proofs. Everything is off unless it is written down."""

    require_audit: bool = False
    self_chosen_auditors: list[Hex64] = []
    max_open_intents: Annotated[int, Field(ge=0, le=1_000)] = 0
    min_audited_steps: Annotated[int, Field(ge=1)] | None = None
    min_audited_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    require_status: bool = False
    max_status_age: Annotated[int, Field(ge=1, le=36_500)] | None = None
    max_checkpoint_age: Annotated[int, Field(ge=1, le=36_500)] | None = None
    trainers: list[Hex64] | None = None
    publishers: list[Hex64] | None = None
    datasets: list[Hex64] | None = None
    code: list[Hex64] | None = None
    licenses: list[str] | None = None
    models: list[str] | None = None
    min_version: Annotated[int, Field(ge=1)] | None = None
    auditors: list[Hex64] | None = None
    min_auditors: Annotated[int, Field(ge=1, le=1_000)] | None = None
    precisions: list[str] | None = None
    max_loss: dict[Hex64, Annotated[float, Field(gt=0)]] | None = None
    require_eval_audit: bool = False
    forbidden_keys: list[Hex64] = []
    forbidden_versions: list[Annotated[str, AfterValidator(_version)]] = []
    refuse_deprecated: bool = False

    @model_validator(mode="after")
    def _fit(self) -> Rules:
        if self.require_eval_audit and not self.max_loss:
            raise ValueError("require_eval_audit goes with max_loss, which names the datasets")
        return self


class NewestStatus(_Strict):
    """Where the log's newest `status` is kept (status_file.py), beside the policy unless absolute, and its age in days.

    It is the log's signed list of what it took back: without it the gate knows only what the bundle tells.
    """

    file: str = Field(min_length=1, max_length=4096)
    max_age: Annotated[int, Field(ge=1, le=36_500)] | None = None


def _p256(value: str) -> str:
    from bitwitness.ledger.p256 import parse_public  # most policies name no such key

    parse_public(value.encode())
    return value


class OmsTrust(_Strict):
    """Whose OpenSSF signature, model.sig, a model must carry: a P-256 public key as PEM."""

    key: Annotated[str, Field(max_length=4096), AfterValidator(_p256)]


def _certificates(value: str) -> str:
    from bitwitness.ledger.timestamp import load_roots  # most policies name no authority

    try:
        found = load_roots(value.encode())
    except BitwitnessError as error:
        raise ValueError(str(error)) from None
    if not found:
        raise ValueError("must hold a certificate")
    return value


class TimestampTrust(_Strict):
    """Who must have stamped the checkpoint: PEM certificates of RFC 3161 authorities' roots, and its age in days.

    What a timestamp shows is that the checkpoint existed by then.
    """

    authorities: Annotated[str, Field(min_length=1, max_length=1 << 18), AfterValidator(_certificates)]
    max_age: Annotated[int, Field(ge=1, le=36_500)] | None = None


class Policy(_Strict):
    log: LogTrust
    root: RootTrust
    rules: Rules = Rules()
    oms: OmsTrust | None = None
    status: NewestStatus | None = None
    timestamps: TimestampTrust | None = None
    witnesses: WitnessTrust | None = None

    @property
    def quorum(self) -> WitnessPolicy | None:
        """The policy of [witnesses], None if no cosignature is asked for."""
        parsed = self._witnesses
        return None if parsed is None or parsed.quorum == NONE else parsed

    @property
    def witness_keys(self) -> frozenset[str]:
        """The keyids of all witnesses of [witnesses], whatever the quorum: their cosignatures count as beacons."""
        parsed = self._witnesses
        return frozenset() if parsed is None else frozenset(item.key.keyid for item in parsed.verifiers)

    @property
    def _witnesses(self) -> WitnessPolicy | None:
        return None if self.witnesses is None else parse_witness_policy(self.witnesses.policy)


def load_policy(path: Path) -> Policy:
    """Read and check a policy file; raises PolicyError with one line that names the key at fault."""
    try:
        with open_regular(path) as file:
            data = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise PolicyError(path, error.strerror or "cannot be read") from error
    if len(data) > _SIZE_LIMIT:
        raise PolicyError(path, f"larger than {_SIZE_LIMIT} bytes")
    return parse_policy(data, path)


def parse_policy(data: bytes, path: Path) -> Policy:
    """Check the bytes of a policy; ``path`` only names them in errors."""
    try:
        fields = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise PolicyError(path, "is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:  # ValueError: of TOML, or of a number too long
        raise PolicyError(path, f"is not TOML: {error}") from error
    try:
        return Policy.model_validate(fields)
    except ValidationError as error:
        raise PolicyError(path, first_reason(error)) from error
