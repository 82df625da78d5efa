"""Errors of the data floor: one class per case that a caller or a user handles, each with one clear line."""

from __future__ import annotations

from bitwitness.ledger.errors import BitwitnessError, FoundWrong


class DataError(BitwitnessError):
    """Data that cannot be built or read; the message says what to do."""


class NoDocuments(DataError):
    """The sources hold no text at all."""


class SourceUnreadable(DataError):
    """A source that does not exist or that the operating system refuses to read."""


class NotText(DataError):
    """A file that is not UTF-8, with the byte offset of the first bad byte."""

    def __init__(self, path: str, offset: int) -> None:
        self.path, self.offset = path, offset
        super().__init__(f"{path}: not UTF-8 text (byte {offset}); convert it, --exclude it, or pass --skip-invalid")


class MalformedLine(DataError):
    """A line of a .jsonl file that is not a JSON object with a string field `text`."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path, self.line, self.reason = path, line, reason
        super().__init__(f"{path}, line {line}: {reason}; correct the line or pass --skip-invalid")


class DocumentTooLarge(DataError):
    """A document above the size that a check can hash as one piece."""


class NameTaken(DataError):
    """A dataset of that name is already there, or is being built."""


class TokenizerUnusable(DataError):
    """A tokenizer that is missing, not installed, or would not give the same tokens twice."""


class NoSuchDataset(DataError):
    """No dataset of that name in the project."""


class TooShort(DataError):
    """Fewer tokens than one window needs."""


class CannotWrite(DataError):
    """The disk is full or the folder cannot be written; nothing was kept."""


class DocumentErased(DataError):
    """A document whose text, tokens and salt were erased: a step that read it is `redacted`."""

    def __init__(self, dataset: str, document: int) -> None:
        self.dataset, self.document = dataset, document
        super().__init__(f"dataset {dataset}: document {document} was erased; steps that read it cannot be replayed")


class DatasetDamaged(FoundWrong):
    """Files of a dataset that differ from what its manifest or its commitment says."""
