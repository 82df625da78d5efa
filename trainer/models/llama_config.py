"""Reads the `config.json` of a Llama checkpoint as a model of ours, or refuses it.

Libraries give meaning to hundreds of keys. Here each key has a place in one of three lists: what the model is made of,
what must have the one value that our arithmetic has, and what changes no logits. A key in none of them is refused,
whatever it is called, so no checkpoint is trained as something else than it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from bitwitness.ledger import foreign_json
from bitwitness.ledger.errors import BitwitnessError, JsonError
from bitwitness.ledger.files.schema_error import first_reason

from ..config import Model

# Keys that say nothing of the function from tokens to logits.
_INERT = frozenset(
    {
        "_name_or_path", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "transformers_version",
        "use_cache", "max_position_embeddings", "dtype", "torch_dtype",
    }
)  # fmt: skip
# Keys that must say what our arithmetic is, where they stand. pretraining_tp > 1 splits products and sums.
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "architectures": (["LlamaForCausalLM"],),
    "attention_bias": (False,),
    "attention_dropout": (0.0, 0),
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "model_type": ("llama",),
    "pretraining_tp": (1,),
    "rope_scaling": (None,),
}
_REQUIRED = ("model_type", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
# What `transformers` assumes where a Llama config.json leaves them out.
_DEFAULT_EPSILON, _DEFAULT_THETA = 1e-6, 10000.0
_MODEL = frozenset(
    {*_REQUIRED, "head_dim", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "rope_theta",
     "tie_word_embeddings"}
)  # fmt: skip


class ConfigUnsupported(BitwitnessError):
    """A config.json that is not a Llama model of this arithmetic; the message names the key."""


def read_config(data: bytes, where: str) -> Model:
    """The model that a config.json describes. Raises ConfigUnsupported for anything that it would compute otherwise."""
    found = _parse(data, where)
    for key in _REQUIRED:
        if key not in found:
            raise ConfigUnsupported(f"{where}: the key {key} is missing")
    for key, allowed in _FIXED.items():
        if key in found and not any(found[key] == value and type(found[key]) is type(value) for value in allowed):
            raise ConfigUnsupported(f"{where}: {key} = {str(found[key])[:80]!a} is not supported, only {allowed[0]!a}")
    for key in sorted(found):
        if key not in _INERT and key not in _MODEL and key not in _FIXED:
            raise ConfigUnsupported(f"{where}: the key {key[:80]!a} is not known to leave a Llama model as it is")
    heads, width = found["num_attention_heads"], found["hidden_size"]
    kv_heads = found.get("num_key_value_heads")
    try:
        model = Model(
            layers=found["num_hidden_layers"],
            width=width,
            heads=heads,
            kv_heads=heads if kv_heads is None else kv_heads,
            hidden=found["intermediate_size"],
            vocabulary=found["vocab_size"],
            tied=found.get("tie_word_embeddings", False),
            rope_theta=_theta(found, where),
            norm_epsilon=_number(found.get("rms_norm_eps", _DEFAULT_EPSILON), "rms_norm_eps", where),
        )
    except ValidationError as error:
        raise ConfigUnsupported(f"{where}: {first_reason(error)}") from None
    if found.get("head_dim") not in (None, model.head_width):
        raise ConfigUnsupported(
            f"{where}: head_dim = {str(found['head_dim'])[:40]!a} is not hidden_size / num_attention_heads"
        )
    return model


def _theta(found: Mapping[str, Any], where: str) -> float:
    """The rotary base: `rope_theta`, or `rope_parameters` without any scaling."""
    parameters = found.get("rope_parameters")
    if parameters is None:
        return _number(found.get("rope_theta", _DEFAULT_THETA), "rope_theta", where)
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        raise ConfigUnsupported(f"{where}: rope_parameters scale the rotary positions, which is not supported")
    odd = sorted(parameters.keys() - {"rope_theta", "rope_type"})
    if odd:
        raise ConfigUnsupported(f"{where}: rope_parameters.{odd[0][:40]} is not supported")
    theta = parameters.get("rope_theta", _DEFAULT_THETA)
    if "rope_theta" in found and found["rope_theta"] != theta:
        raise ConfigUnsupported(f"{where}: rope_theta and rope_parameters.rope_theta differ")
    return _number(theta, "rope_theta", where)


def _number(value: Any, key: str, where: str) -> float:
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:  # not isfinite: an int may be too large
        raise ConfigUnsupported(f"{where}: {key} = {str(value)[:40]!a} is not a positive number")
    return float(value)


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = foreign_json.parse(data)
    except JsonError as error:
        raise ConfigUnsupported(f"{where}: {error.reason}") from None
    if not isinstance(value, dict):
        raise ConfigUnsupported(f"{where}: not a JSON object")
    return value
