"""Find documents by their text or by their path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .dataset import Dataset
from .patterns import included


@dataclass(frozen=True)
class Found:
    """A document that matched: `offsets` are the bytes at which the text begins in it, at most 100."""

    dataset: str
    document: int
    path: str
    line: int
    size: int
    source: str
    tokens: tuple[int, int]
    offsets: tuple[int, ...] = ()


MOST_OFFSETS = 100


def documents_with_text(dataset: Dataset, text: bytes) -> Iterator[Found]:
    """The documents that hold these bytes, in order. Reads the whole dataset, one document at a time."""
    for document in range(dataset.commitment.size):
        source = dataset.source(document)
        offsets: list[int] = []
        at = source.find(text)
        while at >= 0 and len(offsets) < MOST_OFFSETS:
            offsets.append(at)
            at = source.find(text, at + 1)
        if offsets:
            yield found(dataset, document, tuple(offsets))


def documents_at_path(dataset: Dataset, path: str) -> Iterator[Found]:
    """The documents of this path: exact, or a pattern as --include takes it. A .jsonl file has one per line."""
    for document in range(dataset.commitment.size):
        if (name := dataset.path(document)) == path or included(name, (path,)):
            yield found(dataset, document)


def found(dataset: Dataset, document: int, offsets: tuple[int, ...] = ()) -> Found:
    record = dataset.index[document]
    return Found(
        dataset=dataset.name,
        document=document,
        path=dataset.path(document),
        line=record.line,
        size=record.size,
        source=record.source.hex(),
        tokens=(record.start, record.end),
        offsets=offsets,
    )
