"""The tokenizer of a run's dataset as files that `transformers` reads.

`bytes-1` becomes a byte-level BPE without merges: every byte is a token, exactly as the trainer encodes it. Its end
token, 256, is in the vocabulary but matched in no text: what is written `<|endoftext|>` in a document is 13 bytes.
`huggingface-1` is the very tokenizer.json whose SHA-256 the dataset's entry holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bitwitness.ledger.errors import FoundWrong

TOKENIZER, TOKENIZER_CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
# How the trainer's tokenizers are called in a dataset's entry.
BYTES, HUGGING_FACE = "bytes-1", "huggingface-1"
END, END_NUMBER = "<|endoftext|>", 256
LIMIT = 1 << 29


class TokenizerRefused(FoundWrong):
    """A tokenizer file that does not follow from the dataset that the run was trained on."""


def byte_tokenizer() -> bytes:
    """tokenizer.json of `bytes-1`."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocabulary = {character: byte for byte, character in enumerate(_alphabet())} | {END: END_NUMBER}
    return _json(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [],
            },
        }
    )


def tokenizer_config(window: int, end: str | None) -> bytes:
    """tokenizer_config.json. Special tokens in a text are text, as they were in training."""
    value: dict[str, Any] = {
        "clean_up_tokenization_spaces": False,
        "model_max_length": window,
        "split_special_tokens": True,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return _json(value if end is None else {**value, "eos_token": end})


def generation_config(end: int | None) -> bytes:
    """generation_config.json: without it `transformers` would take the tokens 1 and 2 for begin and end."""
    value: dict[str, Any] = {"bos_token_id": None, "eos_token_id": end}
    return _json(value)


def check_tokenizer(data: bytes, tokenizer: Mapping[str, Any]) -> None:
    """The bytes of tokenizer.json against the `tokenizer` of a signed dataset entry. Raises TokenizerRefused."""
    if tokenizer["name"] == BYTES:
        if data != byte_tokenizer():
            raise TokenizerRefused(f"{TOKENIZER} is not the byte tokenizer that the dataset was made with")
    elif hashlib.sha256(data).hexdigest() != tokenizer.get("digest"):
        raise TokenizerRefused(f"{TOKENIZER} is not the one that the dataset was made with")


def check_settings(config: bytes | None, generation: bytes | None, window: int, tokenizer: bytes) -> None:
    """tokenizer_config.json and generation_config.json: ours for this window, with one end token of tokenizer.json.

    Raises TokenizerRefused.
    """
    end, numbers = _end_of(config), _numbers(tokenizer)
    if config is not None and ((end is not None and end not in numbers) or config != tokenizer_config(window, end)):
        raise TokenizerRefused(f"{TOKENIZER_CONFIG} does not follow from the run")
    if generation is not None and (config is None or generation != generation_config(numbers.get(end or ""))):
        raise TokenizerRefused(f"{GENERATION} does not follow from {TOKENIZER_CONFIG}")


def end_token(tokenizer: bytes, number: int) -> str | None:
    """The token with this number in a tokenizer.json, None if it is one that the dataset added."""
    return {index: token for token, index in _numbers(tokenizer).items()}.get(number)


def _end_of(config: bytes | None) -> str | None:
    """The end token of a tokenizer_config.json; None if it names none, or is no such file."""
    try:
        end = None if config is None else json.loads(config).get("eos_token")
    except (ValueError, AttributeError, RecursionError):
        return None
    return end if isinstance(end, str) and _is_text(end) else None


def _numbers(tokenizer: bytes) -> dict[str, int]:
    """Token → number of a tokenizer.json, of what are tokens and numbers in it; empty where it is no such file."""
    try:
        value = json.loads(tokenizer)
        vocabulary, added = value["model"]["vocab"], value["added_tokens"]
        pairs = (
            vocabulary.items() if isinstance(vocabulary, dict) else ((item[0], i) for i, item in enumerate(vocabulary))
        )
        found = [*pairs, *((item["content"], item["id"]) for item in added)]
    except (ValueError, AttributeError, KeyError, TypeError, IndexError, RecursionError):
        return {}
    return {
        token: number for token, number in found if isinstance(token, str) and _is_text(token) and type(number) is int
    }


def _is_text(token: str) -> bool:
    """Whether a string can be written: JSON may hold half of a surrogate pair."""
    return not any("\ud800" <= char <= "\udfff" for char in token)


def _alphabet() -> list[str]:
    """The character that byte-level tokenizers write for each byte: itself if it prints, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
