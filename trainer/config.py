"""The run configuration: strict, typed, resolved once, and recorded whole in the genesis.

`run.toml` holds sections [run], [data], [model], [optimizer], [schedule]. An unknown key is an error that names
it. `RunConfig.resolved()` is what the genesis records: every default written out, floats as the hex of their
binary64 bits, since signed JSON holds no numbers but integers (DESIGN section 5).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.jcs import f64_from_hex, f64_hex

from .presets import PRESETS

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Natural = Annotated[int, Field(ge=0, lt=2**53)]
Ratio = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class ConfigError(BitwitnessError):
    """A run configuration that is not valid; the message names each key."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Model(Section):
    """A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention."""

    layers: Count
    width: Count
    heads: Count
    kv_heads: Count
    hidden: Count = Field(description="width of the feed-forward layer")
    vocabulary: Count
    tied: bool = True
    rope_theta: Positive = 10000.0
    norm_epsilon: Positive = 1e-5
    init_std: Positive = 0.02
    qk_norm: Literal[False] = False
    ksplit: Literal[1] = 1

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @model_validator(mode="after")
    def fits(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"model.heads = {self.heads} does not divide model.width = {self.width}")
        if self.heads % self.kv_heads:
            raise ValueError(f"model.kv_heads = {self.kv_heads} does not divide model.heads = {self.heads}")
        if self.head_width % 2:
            raise ValueError(f"model.width / model.heads = {self.head_width} is odd; rotary positions need pairs")
        return self


class Data(Section):
    """Which windows a step reads: S shards of a fixed number of windows each (DESIGN section 3)."""

    train: Name = Field(description="name of a dataset in the ledger")
    window: Count = Field(description="tokens in a window")
    shards: Count = 1
    windows_per_shard: Count = 1
    reset_documents: bool = False
    held_out: Name | None = Field(default=None, description="dataset of the eval; NAME.held-out unless given")

    @property
    def windows_per_step(self) -> int:
        return self.shards * self.windows_per_shard


class Optimizer(Section):
    """AdamW (Loshchilov and Hutter 2019), epsilon outside the root, float32 moments."""

    name: Literal["adamw"] = "adamw"
    learning_rate: Positive = 3e-3
    beta1: Ratio = 0.9
    beta2: Ratio = 0.95
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.1
    weight_decay_overrides: dict[str, NonNegative] = {}
    frozen: tuple[str, ...] = Field(default=(), description="tensors that are not updated", strict=False)
    clip: Positive = 1.0


class Schedule(Section):
    kind: Literal["constant", "cosine", "wsd"] = "cosine"
    warmup: Natural = 0
    decay: Natural = Field(default=0, description="steps of the final decay of `wsd`")
    floor: Ratio = Field(default=0.1, description="the last learning rate over the highest")


class Loss(Section):
    z_loss: NonNegative = 0.0


class Run(Section):
    name: Name
    steps: Count
    seed: Natural = 0
    precision: Literal["fp32", "bfp"] = Field(default="fp32", description="of the matrix products")
    storage: Literal["F32"] = "F32"
    head_backward: Literal["fp32"] = "fp32"
    state_every: Count = 50
    eval_every: Natural = 0
    eval_windows: Count = 8
    commit_optimizer_every: Count = 1
    commit: Literal["step"] = "step"
    checkpoint_every: Count = 50


class RunConfig(Section):
    run: Run
    data: Data
    model: Model
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    loss: Loss = Loss()

    @model_validator(mode="after")
    def consistent(self) -> Self:
        if self.schedule.warmup > self.run.steps:
            raise ValueError(f"schedule.warmup = {self.schedule.warmup} exceeds run.steps = {self.run.steps}")
        if self.schedule.kind == "wsd" and self.schedule.warmup + self.schedule.decay > self.run.steps:
            raise ValueError("schedule.warmup + schedule.decay exceeds run.steps")
        return self

    def resolved(self) -> dict[str, Any]:
        """Return the whole configuration as ledger JSON: floats as 16 hex digits, tuples as lists."""
        return {section: _to_ledger(fields) for section, fields in self.model_dump(exclude_none=True).items()}


def load_config(path: Path, *, name: str | None = None) -> RunConfig:
    """Read `run.toml`. `[model]` may name a preset and override its fields. Raises ConfigError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `ledger init` writes a run.toml to start from") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {error}") from None
    if name is not None:
        table.setdefault("run", {})["name"] = name
    return parse_config(table, where=str(path))


def parse_config(table: dict[str, Any], *, where: str) -> RunConfig:
    """Build a RunConfig from plain tables as TOML gives them. Raises ConfigError with one line."""
    model = dict(table.get("model", {})) if isinstance(table.get("model", {}), dict) else table["model"]
    if isinstance(model, dict) and "preset" in model:
        preset = model.pop("preset")
        if preset not in PRESETS:
            raise ConfigError(f"{where}: model.preset = {preset!r} is unknown; choose one of {', '.join(PRESETS)}")
        model = {**PRESETS[preset], **model}
    try:
        return RunConfig.model_validate({**table, "model": model})
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(_explain(item) for item in error.errors())}") from None


def config_from_ledger(resolved: dict[str, Any]) -> RunConfig:
    """Rebuild the configuration that a genesis recorded. Raises ConfigError if it is not one of ours."""
    try:
        return RunConfig.model_validate(_from_ledger(resolved, RunConfig))
    except ValidationError as error:
        raise ConfigError(f"config in the ledger: {'; '.join(_explain(item) for item in error.errors())}") from None


def _explain(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"unknown key {where}"
    if item["type"] == "missing":
        return f"missing key {where}"
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _to_ledger(value: Any) -> Any:
    if isinstance(value, float):
        return f64_hex(value)
    if isinstance(value, dict):
        return {key: _to_ledger(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_ledger(item) for item in value]
    return value


_HEX = re.compile(r"[0-9a-f]{16}")


def _from_ledger(value: Any, kind: Any) -> Any:
    """Turn the hex of binary64 bits back into floats, guided by the declared type of each field."""
    if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, dict):
        fields = kind.model_fields
        return {
            key: _from_ledger(item, fields[key].annotation) if key in fields else item for key, item in value.items()
        }
    if isinstance(value, dict):
        return {key: _from_ledger(item, float) for key, item in value.items()}
    if kind is float and isinstance(value, str) and _HEX.fullmatch(value):
        return f64_from_hex(value)
    return value
