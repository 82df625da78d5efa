"""The sequence of windows that training reads: a pure function of (seed, dataset root, window length).

Window w covers the tokens [w·T, w·T + T) of the stream, and the token after it as its last target; there are
n = ⌊(N − 1)/T⌋ of them. Sample i, counted from 0 over the whole run, is window permutation(i mod n) of epoch
i div n (docs/arithmetic.md, permutation). Nothing is kept between samples, so a replay starts anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bitwitness.kernels import philox

from .dataset import Dataset
from .errors import TooShort

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Rows:
    """R = windows · T rows as the operators take them, each int32 [R].

    `start` is the first row that a row sees, counted within these rows. `targets` is −1 where nothing is to
    be predicted.
    """

    windows: tuple[int, ...]
    inputs: Int32
    targets: Int32
    pos: Int32
    start: Int32

    @property
    def valid(self) -> int:
        """How many rows have a target."""
        return int(np.count_nonzero(self.targets >= 0))


@dataclass(frozen=True)
class Reading:
    """A part of one document that a window reads.

    `tokens` and `bytes` are ranges (first, one past last) within the document; `tokens` counts its end token.
    """

    dataset: str
    document: int
    path: str
    line: int
    tokens: tuple[int, int]
    bytes: tuple[int, int]
    source: str


class WindowStream:
    """Windows of T tokens of one dataset, in the order of a seed.

    `reset_documents`: a row sees only rows of its own document, positions restart with each document, and the
    end token predicts nothing, since what follows is not visible from it. Raises TooShort.
    """

    def __init__(self, dataset: Dataset, window_length: int, seed: int, *, reset_documents: bool = False) -> None:
        if dataset.tokens <= window_length:
            raise TooShort(
                f"dataset {dataset.name} has {dataset.tokens} tokens; a window of {window_length} needs "
                f"{window_length + 1}: build it from more text or set a smaller data.window"
            )
        self.dataset, self.window_length, self.reset_documents = dataset, window_length, reset_documents
        self.count = (dataset.tokens - 1) // window_length
        self._key = philox.derive_key(seed, "windows", dataset.commitment.root)

    def number(self, sample: int) -> int:
        """The window that sample i (absolute, from 0) reads."""
        epoch, slot = divmod(sample, self.count)
        return int(philox.permutation(slot, self.count, self._key, epoch))

    def tokens_of(self, window: int) -> tuple[int, int]:
        """The tokens (first, one past last) that a window reads, its last target included."""
        if not 0 <= window < self.count:
            raise IndexError(f"window {window} of {self.count}")
        first = window * self.window_length
        return first, first + self.window_length + 1

    def windows_of(self, document: int) -> range:
        """The windows that read any token of a document, as input or as last target."""
        record, length = self.dataset.index[document], self.window_length
        first = max(0, -(-(record.start - length) // length))
        return range(first, min(self.count - 1, (record.end - 1) // length) + 1)

    def samples(self, first: int, count: int) -> Rows:
        """The rows of the samples [first, first + count), in order."""
        return self.rows([self.number(sample) for sample in range(first, first + count)])

    def rows(self, windows: Sequence[int]) -> Rows:
        """The rows of these windows, in this order (held-out loss reads windows 0, 1, 2…)."""
        T = self.window_length
        shape = (len(windows), T)
        inputs, targets, pos, start = (np.empty(shape, dtype=np.int32) for _ in range(4))
        column = np.arange(T, dtype=np.int32)
        for row, window in enumerate(windows):
            first, last = self.tokens_of(window)
            tokens = self.dataset.read(first, last)
            inputs[row], targets[row] = tokens[:-1], tokens[1:]
            visible = np.zeros(T, dtype=np.int32)
            if self.reset_documents:
                for document in self.dataset.documents_in(first, last - 1):
                    record = self.dataset.index[document]
                    visible[max(0, record.start - first) : record.end - first] = max(0, record.start - first)
                    if record.end <= last - 1:
                        targets[row, record.end - 1 - first] = -1
            pos[row] = column - visible
            start[row] = visible + row * T
        return Rows(tuple(windows), inputs.ravel(), targets.ravel(), pos.ravel(), start.ravel())

    def check(self, windows: Sequence[int]) -> None:
        """Check what these windows read against the dataset's commitment; see Dataset.check_range."""
        for window in windows:
            self.dataset.check_range(*self.tokens_of(window))

    def check_samples(self, first: int, count: int) -> None:
        """Check what the samples [first, first + count) read; a document is hashed once per open dataset."""
        self.check([self.number(sample) for sample in range(first, first + count)])

    def where(self, sample: int) -> list[Reading]:
        """The documents and byte ranges that a sample read."""
        return self.where_window(self.number(sample))

    def where_window(self, window: int) -> list[Reading]:
        """The documents and byte ranges that a window reads, in the order of the stream."""
        first, last = self.tokens_of(window)
        readings = []
        for document in self.dataset.documents_in(first, last):
            record = self.dataset.index[document]
            low, high = max(first, record.start) - record.start, min(last, record.end) - record.start
            readings.append(
                Reading(
                    self.dataset.name,
                    document,
                    self.dataset.path(document),
                    record.line,
                    (low, high),
                    self.dataset.byte_range(document, low, high),
                    record.source.hex(),
                )
            )
        return readings
