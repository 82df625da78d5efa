"""What a run read: the documents behind a step, and the steps behind a document.

Everything follows from the run's entries: the genesis names the dataset and the configuration, each step its
cursor, the number of the first sample that the next step reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bitwitness.ledger.commitments import Commitment
from bitwitness.ledger.errors import BitwitnessError

from .dataset import Dataset
from .windows import Reading, WindowStream

if TYPE_CHECKING:
    from ..history import RunHistory


class NoSuchStep(BitwitnessError):
    """The run has no such step in the ledger. `before` is the run that has it, which this one goes on from."""

    def __init__(self, history: RunHistory, step: int, *, before: str | None = None) -> None:
        self.before = before
        there = "" if before is None else f"; step {step} is in run {before}, which it goes on from"
        has = f"it has {history.first + 1} to {history.last_step}{there}"
        super().__init__(f"run {history.name} has no step {step} in the ledger; {has}")


@dataclass(frozen=True)
class SampleRead:
    """One window that a step read, and the documents in it."""

    step: int
    sample: int
    window: int
    readings: tuple[Reading, ...] = ()


def training_stream(history: RunHistory, data_dir: Path) -> WindowStream:
    """The windows that a run trains on. Raises what opening the dataset raises, for another root too."""
    name, expected = training_dataset(history)
    return training_windows(history, Dataset.open(data_dir, name, expected=expected))


def training_dataset(history: RunHistory) -> tuple[str, Commitment]:
    """Name and commitment of the dataset that a run trains on."""
    use = next(use for use in history.genesis["datasets"] if use["role"] == "train")
    return use["name"], Commitment.from_json(use["dataset"], type="dataset/1")


def training_windows(history: RunHistory, dataset: Dataset) -> WindowStream:
    """The windows that a run reads of its training set. Raises TooShort."""
    config = history.config
    return WindowStream(dataset, config.data.window, config.run.seed, reset_documents=config.data.reset_documents)


def samples_of_step(history: RunHistory, step: int) -> range:
    """The samples that a step read. Raises NoSuchStep."""
    if step not in history.steps:
        raise NoSuchStep(history, step)
    end = int(history.computed(step)["control"]["cursor"])
    return range(end - history.config.data.windows_per_step, end)


def reads_of_step(history: RunHistory, stream: WindowStream, step: int) -> list[SampleRead]:
    """The windows that a step read, in order, with their documents and byte ranges."""
    reads = []
    for sample in samples_of_step(history, step):
        window = stream.number(sample)
        reads.append(SampleRead(step, sample, window, tuple(stream.where_window(window))))
    return reads


def reads_of_documents(history: RunHistory, stream: WindowStream, documents: Collection[int]) -> list[SampleRead]:
    """The steps so far that read any of these documents, with their samples and windows, in order."""
    windows = {window for document in documents for window in stream.windows_of(document)}
    reads = []
    for step in sorted(history.steps):
        for sample in samples_of_step(history, step):
            window = stream.number(sample)
            if window in windows:
                reads.append(SampleRead(step, sample, window))
    return reads
