"""From files to documents: one per text file, one per line of a .jsonl file, in path order.

A text document's source is the file's bytes as they are on disk; a .jsonl document's is the UTF-8 of its
`text`. Nothing is normalised, so anyone who has the file can recompute the digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bitwitness.ledger import jcs
from bitwitness.ledger.errors import JsonError

from .errors import DocumentTooLarge, MalformedLine, NotText, SourceUnreadable
from .sources import SourceFile

# A check hashes a whole document before it trusts any part of it, so a document has a bound.
MAX_DOCUMENT = 1 << 29


@dataclass(frozen=True)
class Document:
    """A document's UTF-8 bytes, the path of its file, and its line in a .jsonl file (0: the whole file)."""

    path: bytes
    line: int
    source: bytes


@dataclass
class Skipped:
    """What was left out, counted: documents without a byte, and invalid ones where that is allowed."""

    empty: int = 0
    invalid: int = 0
    first_invalid: str = ""


def read_documents(
    files: Sequence[SourceFile],
    skipped: Skipped,
    *,
    skip_invalid: bool = False,
    on_file: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    """Yield the documents of `files` in order; `on_file(n)` is called after the n-th file.

    Documents without a byte are counted and passed over. Text that is not UTF-8 and malformed lines raise
    NotText and MalformedLine, or are counted when `skip_invalid` or the file's source allows it. Raises
    SourceUnreadable and DocumentTooLarge.
    """
    for number, file in enumerate(files, 1):
        lenient = skip_invalid or file.lenient
        reader = _lines if file.label.lower().endswith(b".jsonl") else _whole
        try:
            for document in reader(file, skipped, lenient):
                if document.source:
                    yield document
                else:
                    skipped.empty += 1
        except OSError as error:
            raise SourceUnreadable(f"{file.location}: {error.strerror}") from None
        if on_file is not None:
            on_file(number)


def _refuse(error: NotText | MalformedLine, skipped: Skipped, lenient: bool) -> None:
    if not lenient:
        raise error from None
    skipped.invalid += 1
    skipped.first_invalid = skipped.first_invalid or str(error).split(";")[0]


def _bounded(file: SourceFile, size: int) -> None:
    if size > MAX_DOCUMENT:
        raise DocumentTooLarge(f"{file.location}: a document is larger than {MAX_DOCUMENT >> 20} MiB; split it")


def _whole(file: SourceFile, skipped: Skipped, lenient: bool) -> Iterator[Document]:
    with open(file.location, "rb") as stream:
        data = stream.read(MAX_DOCUMENT + 1)
    _bounded(file, len(data))
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(NotText(str(file.location), error.start), skipped, lenient)
        return
    yield Document(file.label, 0, data)


def _lines(file: SourceFile, skipped: Skipped, lenient: bool) -> Iterator[Document]:
    offset, line = 0, 0
    with open(file.location, "rb") as stream:
        while raw := stream.readline(MAX_DOCUMENT + 1):
            line += 1
            _bounded(file, len(raw))
            try:
                # Windows editors begin a file with a byte order mark; JSON does not allow it.
                content = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
                if content.strip():
                    yield Document(file.label, line, _text_field(content.decode("utf-8")))
            except UnicodeDecodeError as error:
                _refuse(NotText(str(file.location), offset + error.start), skipped, lenient)
            except (ValueError, RecursionError, JsonError) as error:
                stated = error.reason if isinstance(error, JsonError) else str(error)
                reason = stated if type(error) in (ValueError, JsonError) else "not valid JSON"
                _refuse(MalformedLine(str(file.location), line, reason), skipped, lenient)
            offset += len(raw)


def _text_field(content: str) -> bytes:
    value = json.loads(content, object_pairs_hook=jcs.keys_once)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    text = value.get("text")
    if not isinstance(text, str):
        raise ValueError("no field `text` that holds a string")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("field `text` holds half of a surrogate pair, which is no character") from None
