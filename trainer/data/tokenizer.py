"""Tokenizers: text in, token numbers out, always the same ones.

`bytes-1`: tokens 0–255 are bytes, 256 ends a document. `huggingface-1`: a tokenizer.json through the
`tokenizers` package, without special tokens, padding or truncation. Every document ends with `end`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bitwitness.ledger.files.regular_file import read_regular

from .errors import TokenizerUnusable

Tokens = npt.NDArray[np.int64]
BYTES = "bytes-1"
HUGGING_FACE = "huggingface-1"
TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER_FILE = 1 << 29
# What published tokenizers call the token that ends a document, most usual first.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")


@dataclass(frozen=True)
class TokenizerInfo:
    """What a dataset says of its tokenizer: kind, SHA-256 of tokenizer.json, vocabulary, end of document."""

    name: str
    vocabulary: int
    end: int
    digest: str | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of a stored token: 2 where every number fits, else 4."""
        return 2 if self.vocabulary <= 65536 else 4

    def to_json(self) -> dict[str, Any]:
        """The object of the `dataset` entry: name, vocabulary, digest where there is a file."""
        found: dict[str, Any] = {"name": self.name, "vocabulary": self.vocabulary}
        return found if self.digest is None else {**found, "digest": self.digest}


class Tokenizer(Protocol):
    """Text to tokens. `encode` gives the document's tokens without the end token."""

    @property
    def info(self) -> TokenizerInfo: ...

    @property
    def file(self) -> bytes | None:
        """The bytes of tokenizer.json, kept with the dataset."""

    def encode(self, source: bytes) -> Tokens:
        """Tokens of one document's UTF-8 bytes, int64."""

    def spans(self, source: bytes) -> Tokens:
        """First and one-past-last byte of each token of a document: int64 [tokens, 2]."""


class ByteTokenizer:
    """`bytes-1`: a token is a byte."""

    info = TokenizerInfo(BYTES, vocabulary=257, end=256)
    file: bytes | None = None

    def encode(self, source: bytes) -> Tokens:
        return np.frombuffer(source, dtype=np.uint8).astype(np.int64)

    def spans(self, source: bytes) -> Tokens:
        first = np.arange(len(source), dtype=np.int64)
        return np.stack([first, first + 1], axis=1)


class HuggingFaceTokenizer:
    """`huggingface-1`: a tokenizer.json. Raises TokenizerUnusable if it cannot give the same tokens twice."""

    def __init__(self, data: bytes, *, where: str, end_token: str | None = None) -> None:
        try:
            import tokenizers  # an extra: most runs use bytes
        except ImportError:
            raise TokenizerUnusable(
                f"{where}: reading it needs the package `tokenizers`; pip install 'bitwitness[tokenizers]'"
            ) from None
        try:
            text = data.decode("utf-8")
            model = json.loads(text).get("model", {})
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # `tokenizers` raises bare Exception for a file it does not understand
            raise TokenizerUnusable(f"{where}: not a tokenizer.json: {_one_line(error)}") from None
        if isinstance(model, dict) and model.get("dropout"):
            raise TokenizerUnusable(f"{where}: its BPE dropout draws at random; set model.dropout to null")
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        numbers: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        vocabulary = max(numbers.values(), default=-1) + 1
        if end_token is not None and end_token not in numbers:
            raise TokenizerUnusable(f"{where}: has no token {end_token!r}; --end-token names one of its tokens")
        known = [end_token] if end_token is not None else [token for token in END_TOKENS if token in numbers]
        # A tokenizer without any such token gets one more number.
        end = numbers[known[0]] if known else vocabulary
        digest = hashlib.sha256(data).hexdigest()
        self.file: bytes | None = data
        self._where = where
        self.info = TokenizerInfo(HUGGING_FACE, max(vocabulary, end + 1), end, digest)

    def encode(self, source: bytes) -> Tokens:
        return np.array(self._encoded(source.decode("utf-8")).ids, dtype=np.int64)

    def spans(self, source: bytes) -> Tokens:
        text = source.decode("utf-8")
        encoding = self._encoded(text)
        width = np.fromiter((len(char.encode("utf-8")) for char in text), dtype=np.int64, count=len(text))
        at = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(width)])
        spans = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return np.asarray(at[spans], dtype=np.int64)

    def _encoded(self, text: str) -> Any:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:
            raise TokenizerUnusable(f"{self._where}: cannot encode a text: {_one_line(error)}") from None


def load_tokenizer(path: Path | None, *, end_token: str | None = None) -> Tokenizer:
    """The byte tokenizer, or that of a tokenizer.json file. Raises TokenizerUnusable."""
    if path is None:
        if end_token is not None:
            raise TokenizerUnusable("--end-token goes with --tokenizer FILE; bytes have their own, 256")
        return ByteTokenizer()
    try:
        data = read_regular(path, MAX_TOKENIZER_FILE)
    except OSError as error:
        raise TokenizerUnusable(f"{path}: {error.strerror}") from None
    return HuggingFaceTokenizer(data, where=str(path), end_token=end_token)


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
