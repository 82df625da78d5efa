"""Checks that `config.json` describes the model that the genesis describes.

The same weights under another number of heads, epsilon or rotary base are another function, so a signed file is
not enough: what it says must follow from the run's configuration. Written apart from the trainer's own
`huggingface_config`, so that a slip in one shows against the other, and so that the gate needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from bitwitness.ledger.errors import FoundWrong, JsonError
from bitwitness.ledger.jcs import f64_from_hex

# Keys by which a library may be made to run code that comes with the model, or to read the weights differently.
_REFUSED = ("auto_map", "custom_pipelines", "quantization_config", "rope_scaling")


class ConfigRefused(FoundWrong):
    """`config.json` does not describe the run's model; the message names the key."""


def check_config(data: bytes, resolved: Mapping[str, Any]) -> str:
    """Compare the bytes of `config.json` with a genesis's resolved configuration; one line if they agree."""
    found = _parse(data)
    for key in _REFUSED:
        if found.get(key) is not None:
            raise ConfigRefused(f"config.json has the key {key}, which the run's model does not have")
    try:
        expected = expected_config(resolved)
    except (KeyError, TypeError, ZeroDivisionError, JsonError) as error:
        # The genesis schema leaves the configuration free, so a signed one may be of another kind of model.
        raise ConfigRefused("the run's configuration does not describe a Llama-style model") from error
    for key, value in expected.items():
        if key not in found:
            raise ConfigRefused(f"config.json lacks {key}")
        if type(found[key]) is not type(value) or found[key] != value:
            raise ConfigRefused(f"config.json says {key} = {found[key]!a}, the run says {value!a}")
    return f"config.json agrees with the run's configuration in {len(expected)} keys"


def expected_config(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What a Llama `config.json` must say for a run's resolved configuration (floats there are hex of their bits)."""
    model = resolved["model"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "head_dim": model["width"] // model["heads"],
        "hidden_act": "silu",
        "hidden_size": model["width"],
        "intermediate_size": model["hidden"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": model["heads"],
        "num_hidden_layers": model["layers"],
        "num_key_value_heads": model["kv_heads"],
        "rms_norm_eps": f64_from_hex(model["norm_epsilon"]),
        "rope_theta": f64_from_hex(model["rope_theta"]),
        "tie_word_embeddings": model["tied"],
        "vocab_size": model["vocabulary"],
    }


def _parse(data: bytes) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            raise ConfigRefused("config.json has a key twice")
        return result

    def constant(text: str) -> NoReturn:
        raise ConfigRefused(f"config.json holds {text}")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise ConfigRefused("config.json is not JSON") from error
    if not isinstance(value, dict):
        raise ConfigRefused("config.json is not an object")
    return value
