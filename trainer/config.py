"""The run configuration: strict, typed, resolved once, and recorded whole in the genesis.

`run.toml` holds sections [run], [data], [model], [optimizer], [schedule]. An unknown key is an error that names
it. `RunConfig.resolved()` is what the genesis records: every default written out, floats as the hex of their
binary64 bits, since signed JSON holds no numbers but integers.
"""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_origin

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files.schema_error import reason
from bitwitness.ledger.jcs import f64_from_hex, f64_hex

from .models.presets import PRESETS

_SIZE_LIMIT = 1 << 20

# Of runs and datasets, each of which has a folder of its name: none begins with a dot.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Module = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,190}\.py:[A-Za-z_][A-Za-z0-9_]{0,99}$")]
Layer = Annotated[str, Field(pattern=r"^[ -~]*$")]
Start = Annotated[
    str, Field(pattern=r"^(import:[A-Za-z0-9][A-Za-z0-9._-]{0,99}|[A-Za-z0-9][A-Za-z0-9._-]{0,63}@[1-9][0-9]{0,9})$")
]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Share = Annotated[int, Field(ge=1, le=2**16)]
Side = Annotated[int, Field(ge=1, le=2**20)]
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

    layers: Annotated[int, Field(ge=1, le=1024)]
    width: Side = Field(description="of the residual stream; a multiple of heads")
    heads: Side = Field(description="query heads; a multiple of kv_heads")
    kv_heads: Side = Field(description="key and value heads")
    hidden: Side = Field(description="width of the feed-forward layer")
    vocabulary: int = Field(ge=1, le=2**24, description="token ids; at least the dataset's")
    tied: bool = Field(default=True, description="embedding and head are one matrix")
    rope_theta: Positive = Field(default=10000.0, description="base of the rotary frequencies")
    norm_epsilon: Positive = Field(default=1e-5, description="of RMSNorm, inside the root")
    init_std: Positive = Field(default=0.02, description="of the initial matrices, cut at 3 standard deviations")
    sliding_window: Literal[0] = Field(default=0, description="reserved: 0, every earlier token is seen")
    qk_norm: Literal[False] = Field(default=False, description="reserved")
    ksplit: Literal[1] = Field(default=1, description="reserved for tensor parallelism")

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


class UserModel(Section):
    """A model of your own instead (docs/your-own-model.md)."""

    module: Module = Field(description="FILE.py:CLASS, the file in the project folder")
    arguments: dict[str, bool | int | float | str] = Field(default={}, description="what CLASS is called with")
    dropout: dict[Layer, Ratio] | None = Field(
        default=None, description="layer name = p of every Dropout; training fills it in, for the record"
    )

    @model_validator(mode="after")
    def plain(self) -> Self:
        if ".." in self.file.split("/"):
            raise ValueError("model.module must name a file inside the project folder")
        for name, value in self.arguments.items():
            if not name.isidentifier() or not name.isascii():
                raise ValueError(f"model.arguments: {name!r} is not the name of an argument")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"model.arguments.{name} must be finite")
            if isinstance(value, int) and abs(value) >= 2**53:
                raise ValueError(f"model.arguments.{name} must be below 2^53")
        return self

    @property
    def file(self) -> str:
        return self.module.rpartition(":")[0]

    @property
    def cls(self) -> str:
        return self.module.rpartition(":")[2]


def _kind(model: Any) -> str:
    named = "module" in model if isinstance(model, dict) else isinstance(model, UserModel)
    return "module" if named else "decoder"


class Data(Section):
    """Which windows a step reads: S shards of a fixed number of windows each (docs/arithmetic.md, A step)."""

    train: Name = Field(description="name of a dataset in the ledger")
    window: Side = Field(description="tokens in a window")
    shards: Share = Field(default=1, description="shards of a step, folded in the shape of an RFC 6962 tree")
    windows_per_shard: Share = 1
    reset_documents: bool = Field(default=False, description="a token sees only its own document")
    held_out: Name | None = Field(default=None, description="dataset of the eval; NAME.held-out unless given")

    @property
    def windows_per_step(self) -> int:
        return self.shards * self.windows_per_shard


class Optimizer(Section):
    """AdamW (Loshchilov and Hutter 2019), epsilon outside the root, float32 moments."""

    name: Literal["adamw"] = "adamw"
    learning_rate: Positive = Field(default=3e-3, description="the highest of the schedule")
    beta1: Ratio = 0.9
    beta2: Ratio = 0.95
    epsilon: Positive = Field(default=1e-8, description="outside the root")
    weight_decay: NonNegative = Field(default=0.1, description="of matrices; gains do not decay")
    weight_decay_overrides: dict[str, NonNegative] = Field(default={}, description="tensor name = its own decay")
    frozen: tuple[str, ...] = Field(default=(), description="names of tensors that are not updated", strict=False)
    clip: Positive = Field(default=1.0, description="highest norm of the mean gradient")


class Schedule(Section):
    """The learning rate over the updates; `wsd` is warm-up, stable, decay."""

    kind: Literal["constant", "cosine", "wsd"] = "cosine"
    warmup: Natural = Field(default=0, description="updates of the linear warm-up")
    decay: Natural = Field(default=0, description="steps of the final decay of `wsd`")
    floor: Ratio = Field(default=0.1, description="the last learning rate over the highest")
    after: Count | None = Field(
        default=None, description='updates before the schedule begins: N of `from = "NAME@N"`, for a warm-up of its own'
    )


class Loss(Section):
    """Softmax cross-entropy of the next token."""

    z_loss: NonNegative = Field(default=0.0, description="weight of the squared log-partition")
    weights: Literal["none"] = Field(default="none", description="reserved: every token weighs the same")


class Run(Section):
    """Length, seed, and what is recorded how often."""

    name: Name = Field(description="a label, unique in the ledger")
    steps: Count = Field(description="updates in all, with those before the step that `from` names")
    seed: Natural = Field(default=0, description="of initial weights and window order")
    start: Start | None = Field(
        default=None,
        alias="from",
        description="`import:NAME` begins with imported weights instead of the seed's, `NAME@N` goes on from the state"
        " after step N of another run",
    )
    precision: Literal["bfp", "fp32"] = Field(default="bfp", description="of the matrix products")
    storage: Literal["F32"] = Field(default="F32", description="of weights and moments")
    head_backward: Literal["fp32"] = Field(default="fp32", description="precision of the head's backward products")
    state_every: Count = Field(default=50, description="steps between stored states, where replays start")
    eval_every: Natural = Field(default=0, description="steps between held-out losses; 0 for none")
    eval_windows: Count = Field(default=8, description="windows of a held-out loss")
    commit_optimizer_every: Count = Field(default=1, description="steps between commitments to the moments")
    commit: Literal["step", "parts"] = Field(
        default="step", description="`parts`: every step also commits to each gradient of its fold"
    )
    checkpoint_every: Count = Field(default=50, description="steps between signed checkpoints of the log")


class RunConfig(Section):
    """A whole run.toml."""

    run: Run
    data: Data
    model: Annotated[Annotated[Model, Tag("decoder")] | Annotated[UserModel, Tag("module")], Discriminator(_kind)]
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    loss: Loss = Loss()

    @property
    def parent(self) -> tuple[str, int] | None:
        """(name, step) of the run that this one goes on from, if it does."""
        name, at, step = (self.run.start or "").partition("@")
        return (name, int(step)) if at else None

    @model_validator(mode="after")
    def consistent(self) -> Self:
        schedule, after = self.schedule, self.schedule.after or 0
        if after > (0 if self.parent is None else self.parent[1]):
            raise ValueError(f"schedule.after = {after} is beyond the steps before this run, of which run.from tells")
        if schedule.warmup > self.run.steps - after:
            of = "run.steps" if not after else "run.steps - schedule.after"
            raise ValueError(f"schedule.warmup = {schedule.warmup} exceeds {of} = {self.run.steps - after}")
        if schedule.kind == "wsd" and schedule.warmup + schedule.decay > self.run.steps - after:
            raise ValueError("schedule.warmup + schedule.decay exceeds run.steps")
        if self.parent is not None and self.run.steps <= self.parent[1]:
            raise ValueError(
                f"run.steps = {self.run.steps} counts the {self.parent[1]} steps before run.from, too; make it more"
            )
        if self.run.start is not None and self.parent is None and isinstance(self.model, UserModel):
            raise ValueError("run.from imports weights of the built-in model; a module begins from its seed")
        return self

    @property
    def decoder(self) -> Model:
        """The built-in model of this run. Raises ConfigError where it is a module of the user's."""
        if isinstance(self.model, UserModel):
            raise ConfigError(f"the model of this run is {self.model.module}, not the built-in one")
        return self.model

    @property
    def dropout(self) -> dict[str, float]:
        """p of every dropout layer, by name, as recorded; none in the built-in model."""
        return (isinstance(self.model, UserModel) and self.model.dropout) or {}

    def with_dropout(self, dropout: dict[str, float] | None) -> RunConfig:
        """The same with the dropout of the module's layers filled in."""
        return self.model_copy(update={"model": self.model.model_copy(update={"dropout": dropout})})

    def resolved(self) -> dict[str, Any]:
        """Return the whole configuration as ledger JSON: floats as 16 hex digits, tuples as lists."""
        dumped = self.model_dump(exclude_none=True, by_alias=True)
        if isinstance(self.model, UserModel):  # no type is declared here that would tell a float's digits from text
            dumped["model"]["arguments"] = {
                name: {"f64": value} if isinstance(value, float) else value
                for name, value in self.model.arguments.items()
            }
        return {section: _to_ledger(fields) for section, fields in dumped.items()}


def load_config(
    path: Path, *, name: str | None = None, model_of: Callable[[str], Model | UserModel] | None = None
) -> RunConfig:
    """Read `run.toml`. `[model]` may name a preset and override its fields. Raises ConfigError.

    `model_of` gives the model of what `run.from` names, for a file that leaves [model] out.
    """
    try:
        table = tomllib.loads(_read(path).decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `ledger init` writes a run.toml to start from") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: a folder; give the configuration of a run, such as {path / 'run.toml'}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text, but a run's configuration is TOML, as `ledger init` writes it") from None
    except (ValueError, RecursionError) as error:  # ValueError: of TOML, or of a number too long
        raise ConfigError(f"{path}: not readable as TOML: {error}") from None
    run = table.get("run", {})
    if name is not None and isinstance(run, dict):
        table["run"] = run = {**run, "name": name}
    if model_of is not None and "model" not in table and isinstance(run, dict) and isinstance(run.get("from"), str):
        table["model"] = model_of(run["from"]).model_dump()
    return parse_config(table, where=str(path))


def _read(path: Path) -> bytes:
    """The bytes of a regular file of at most 1 MiB. Raises ConfigError, OSError."""
    if path.is_dir():
        raise IsADirectoryError(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a FIFO would be waited for
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _SIZE_LIMIT:
            raise ConfigError(f"{path}: not a regular file of at most {_SIZE_LIMIT >> 20} MiB")
        return file.read(_SIZE_LIMIT)


def parse_config(table: dict[str, Any], *, where: str) -> RunConfig:
    """Build a RunConfig from plain tables as TOML gives them. Raises ConfigError with one line."""
    if isinstance(table.get("model"), str):
        table = {**table, "model": {"module": table["model"]}}
    model = dict(table.get("model", {})) if isinstance(table.get("model", {}), dict) else table["model"]
    if isinstance(model, dict) and "preset" in model:
        preset = model.pop("preset")
        if not isinstance(preset, str) or preset not in PRESETS:
            raise ConfigError(f"{where}: model.preset = {preset!r} is unknown; choose one of {', '.join(PRESETS)}")
        model = {**PRESETS[preset], **model}
    try:
        return RunConfig.model_validate({**table, "model": model})
    except ValidationError as error:
        # Unknown keys first: most of what else is wrong then follows from a key that was not written as it is called.
        found = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
        raise ConfigError(f"{where}: {'; '.join(_explain(item) for item in found)}") from None


def config_from_ledger(resolved: dict[str, Any]) -> RunConfig:
    """Rebuild the configuration that a genesis recorded. Raises ConfigError if it is not one of ours.

    A key that is left out is none of ours either: today's default may not be what the run was computed with.
    """
    try:
        config = RunConfig.model_validate(_from_ledger(resolved, RunConfig))
    except ValidationError as error:
        raise ConfigError(f"config in the ledger: {'; '.join(_explain(item) for item in error.errors())}") from None
    for section, fields in config.resolved().items():
        if absent := sorted(fields.keys() - resolved.get(section, {}).keys()):
            raise ConfigError(
                f"config in the ledger: it leaves out {section}.{absent[0]}; a genesis relies on no default"
            )
    return config


def differences(old: RunConfig, new: RunConfig) -> str:
    """Every key in which two configurations differ, for a person."""
    a, b = old.model_dump(), new.model_dump()
    return "; ".join(
        f"{section}.{key} was {a[section].get(key)!r}, is {b[section].get(key)!r}"
        for section in a
        for key in {**a[section], **b[section]}
        if a[section].get(key) != b[section].get(key)
    )


def _explain(item: Any) -> str:
    parts, kind = [str(part) for part in item["loc"]], [""]
    if parts[:1] == ["model"]:
        kind = parts[1:2]
        del parts[1:2]  # which kind of model it is
    if parts == ["model", "module"] and item["type"] == "string_pattern_mismatch":
        return "model.module: must be FILE.py:CLASS, the file in the project folder"
    said = reason(item, where=parts)
    if item["type"] == "extra_forbidden":
        section: Any = UserModel if kind == ["module"] else _SECTIONS.get(parts[0])
        known = RunConfig if len(parts) == 1 else section
        names = [] if known is None else [field.alias or name for name, field in known.model_fields.items()]
        if close := get_close_matches(parts[-1], names, n=1):
            said += f", did you mean {'.'.join([*parts[:-1], close[0]])}?"
    return said


_SECTIONS = {"run": Run, "data": Data, "model": Model, "optimizer": Optimizer, "schedule": Schedule, "loss": Loss}


def _to_ledger(value: Any) -> Any:
    if isinstance(value, float):
        return f64_hex(value)
    if isinstance(value, dict):
        return {key: _to_ledger(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_ledger(item) for item in value]
    return value


def _of_module(name: str, values: Any) -> Any:
    """The arguments of a module, which mark their floats, or the dropout of its layers, which are floats."""
    if not isinstance(values, dict):
        return values
    if name == "dropout":
        return {layer: _from_ledger(p, float) for layer, p in values.items()}
    return {key: _from_ledger(v, float).get("f64", v) if isinstance(v, dict) else v for key, v in values.items()}


_HEX = re.compile(r"[0-9a-f]{16}")


def _from_ledger(value: Any, kind: Any) -> Any:
    """Turn the hex of binary64 bits back into floats, guided by the declared type of each field."""
    if get_origin(kind) in (Union, UnionType) and isinstance(value, dict):  # the model
        kind = {"decoder": Model, "module": UserModel}[_kind(value)]
    if kind is UserModel:
        return value | {name: _of_module(name, value[name]) for name in ("arguments", "dropout") if name in value}
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
