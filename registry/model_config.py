"""Checks that `config.json` describes the model that the genesis describes.

The same weights under another number of heads, epsilon or rotary base are another function, so a signed file is
not enough: every key and value in it must follow from the run's configuration. Libraries give meaning to many more
keys than are written here (rotary scaling, sliding windows, quantization, code to load), so a key that does not follow
is refused, whatever it is called. Written apart from the trainer's own
`huggingface_config`, so that a slip in one shows against the other, and so that the gate needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwitness.ledger import foreign_json
from bitwitness.ledger.errors import FoundWrong, JsonError
from bitwitness.ledger.jcs import f64_from_hex

# The names that `torch_dtype` gives to the dtypes of safetensors.
_TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


class ConfigRefused(FoundWrong):
    """`config.json` does not describe the run's model; the message names the key."""


def check_config(data: bytes, resolved: Mapping[str, Any], dtype: str) -> str:
    """Compare the bytes of `config.json` with a genesis's resolved configuration; one line if they agree.

    ``dtype`` is that of the release, as safetensors spells it. Exactly the expected keys are allowed.
    """
    found, expected = _parse(data), _expected(resolved, dtype)
    unknown = sorted(found.keys() - expected.keys())
    if unknown:
        raise ConfigRefused(f"config.json has the key {unknown[0][:60]!a}, which does not follow from the run")
    for key, value in expected.items():
        if key not in found:
            raise ConfigRefused(f"config.json lacks {key}")
        if type(found[key]) is not type(value) or found[key] != value:
            raise ConfigRefused(f"config.json says {key} = {str(found[key])[:60]!a}, the run says {value!a}")
    return f"config.json follows from the run's configuration in all its {len(expected)} keys"


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys of `config.json` that two resolved configurations give other values, but for the window.

    A window is how much of a text is read at a time; weights of several windows are of one function.
    """
    left, right = (_expected(resolved, "F32") for resolved in (one, other))
    return sorted(key for key in left if left[key] != right[key] and key != "max_position_embeddings")


def _expected(resolved: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    try:
        return expected_config(resolved, dtype)
    except (KeyError, TypeError, ZeroDivisionError, JsonError) as error:
        # The genesis schema leaves the configuration free, so a signed one may be of another kind of model.
        raise ConfigRefused("the run's configuration does not describe a Llama-style model") from error


def expected_config(resolved: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """All that a Llama `config.json` says for a run's resolved configuration (floats there are hex of their bits)."""
    model = resolved["model"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "head_dim": model["width"] // model["heads"],
        "hidden_act": "silu",
        "hidden_size": model["width"],
        "intermediate_size": model["hidden"],
        "max_position_embeddings": resolved["data"]["window"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": model["heads"],
        "num_hidden_layers": model["layers"],
        "num_key_value_heads": model["kv_heads"],
        "rms_norm_eps": f64_from_hex(model["norm_epsilon"]),
        "rope_theta": f64_from_hex(model["rope_theta"]),
        "tie_word_embeddings": model["tied"],
        "torch_dtype": _TORCH_DTYPES[dtype],
        "vocab_size": model["vocabulary"],
    }


def _parse(data: bytes) -> dict[str, Any]:
    try:
        value = foreign_json.parse(data)
    except JsonError as error:
        raise ConfigRefused(f"config.json: {error.reason}") from error
    if not isinstance(value, dict):
        raise ConfigRefused("config.json is not an object")
    return value
