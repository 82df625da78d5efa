"""Build a dataset: find files, read documents, tokenize, write, sign the `dataset` entry; all or nothing.

Everything is written to a hidden folder beside its place and renamed at the end, so an interrupted build
leaves nothing that could be taken for a dataset. Held-out documents become a dataset of their own inside.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

from bitwitness.ledger.files import durable, folder_lock, rfc3339
from bitwitness.ledger.keys import Signer

from .dataset import HELD_OUT_FOLDER, dataset_folder
from .documents import Skipped, read_documents
from .entry import dataset_entry
from .errors import CannotWrite, DataError, NameTaken, NoDocuments
from .manifest import ENTRY, Manifest, check_license, check_name
from .shards import SHARD_BYTES, private_mode
from .sources import select
from .split import RULE, held_out_name, is_held_out, parse_fraction
from .tokenizer import ByteTokenizer, Tokenizer
from .writer import DatasetWriter

HELD_OUT_DEFAULT = "0.05"

Progress = Callable[[int, int, int], None]
"""(files read, files in all, bytes taken)"""


@dataclass(frozen=True)
class BuildOptions:
    """What a build is asked to do; the defaults are those of `ledger data build`."""

    name: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_bytes: int | None = None
    held_out: str = HELD_OUT_DEFAULT
    private: bool = False
    license: str | None = None
    skip_invalid: bool = False
    shard_bytes: int = SHARD_BYTES


@dataclass(frozen=True)
class Built:
    """What a build made: the manifests, and what was left out."""

    train: Manifest
    held_out: Manifest | None
    skipped: Skipped
    links_skipped: int = 0
    stopped_at_limit: bool = False
    notes: list[str] = field(default_factory=list)


def build(
    data_dir: Path,
    sources: Sequence[str],
    options: BuildOptions,
    *,
    signer: Signer,
    tokenizer: Tokenizer | None = None,
    now: Callable[[], datetime] | None = None,
    progress: Progress | None = None,
) -> Built:
    """Build dataset `options.name` under `data_dir` and sign its entries (see entry.record for the ledger).

    Raises NameTaken, NoDocuments, CannotWrite and what sources, documents and tokenizers raise; then nothing
    is left behind.
    """
    check_name(options.name)
    fraction = parse_fraction(options.held_out)
    if options.license is not None:
        check_license(options.license)
    if options.shard_bytes <= 0 or options.shard_bytes % 4:
        raise DataError(f"shard_bytes = {options.shard_bytes} must be a positive multiple of 4")
    target = dataset_folder(data_dir, options.name)
    if target.exists():
        raise NameTaken(f"a dataset {options.name} is already in {data_dir}; choose another --name")
    selection = select(sources, include=options.include, exclude=options.exclude)
    if not selection.files:
        raise NoDocuments(f"no text files in {' '.join(sources)}; a folder gives .txt .md .py .jsonl unless --include")
    moment = rfc3339.now() if now is None else rfc3339.text(now())
    with _building(data_dir, options.name) as folder:
        build_ = _Build(folder, options, fraction, tokenizer or ByteTokenizer())
        try:
            skipped, limited = build_.read(selection.files, progress)
            built = build_.finish(sources, skipped, selection.links_skipped, limited)
            for part, manifest in ((folder / "train", built.train), (build_.held_folder, built.held_out)):
                if manifest is not None:
                    entry = dataset_entry(manifest, signer, moment)
                    durable.write_new(part / ENTRY, entry, mode=private_mode(options.private))
                    durable.sync_folder(part)
        except BaseException:
            build_.abandon()
            raise
        if built.held_out is not None:
            os.rename(build_.held_folder, folder / "train" / HELD_OUT_FOLDER)
            durable.sync_folder(folder / "train")
        if target.exists():
            raise NameTaken(f"a dataset {options.name} came into being meanwhile; choose another --name")
        os.rename(folder / "train", target)
        durable.sync_folder(data_dir)
    return built


class _Build:
    """The two folders that a build writes, train and held out."""

    def __init__(self, folder: Path, options: BuildOptions, fraction: Fraction, tokenizer: Tokenizer) -> None:
        self._options, self._fraction = options, fraction
        self.held_folder = folder / "held"

        def writer(place: Path) -> DatasetWriter:
            return DatasetWriter(place, tokenizer, private=options.private, shard_bytes=options.shard_bytes)

        self._train, self._held = writer(folder / "train"), writer(self.held_folder)

    def read(self, files: Sequence[Any], progress: Progress | None) -> tuple[Skipped, bool]:
        """Write every document to its side; stop before the one that would pass --max-bytes."""
        skipped, taken, limit = Skipped(), 0, self._options.max_bytes

        def on_file(done: int) -> None:
            if progress is not None:
                progress(done, len(files), taken)

        for document in read_documents(files, skipped, skip_invalid=self._options.skip_invalid, on_file=on_file):
            if limit is not None and taken + len(document.source) > limit:
                return skipped, True
            (self._held if is_held_out(document.source, self._fraction) else self._train).add(document)
            taken += len(document.source)
        return skipped, False

    def finish(self, sources: Sequence[str], skipped: Skipped, links: int, limited: bool) -> Built:
        options, train, held = self._options, self._train, self._held
        if not train.documents and not held.documents:
            if limited:
                raise NoDocuments("nothing taken: --max-bytes is smaller than the first document")
            raise NoDocuments(f"no text in {' '.join(sources)}")
        if not train.documents:
            raise NoDocuments(
                f"all {held.documents} documents fall into the held-out part; pass --held-out 0 or more text"
            )
        notes = []
        if self._fraction and not held.documents:
            notes.append(f"no document fell into the held-out part ({options.held_out}); there is none")

        def split(side: str) -> dict[str, Any] | None:
            return {"fraction": options.held_out, "rule": RULE, "side": side} if self._fraction else None

        held_manifest = None
        if held.documents:
            held_manifest = held.finish(held_out_name(options.name), license=options.license, split=split("held-out"))
        else:
            held.abandon()
        train_manifest = train.finish(options.name, license=options.license, split=split("train"))
        return Built(train_manifest, held_manifest, skipped, links, limited, notes)

    def abandon(self) -> None:
        self._train.abandon()
        self._held.abandon()


@contextmanager
def _building(data_dir: Path, name: str) -> Iterator[Path]:
    """A fresh hidden folder, locked while used and gone afterwards; what a killed build left is removed."""
    folder = data_dir / f".building-{name}"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        busy = NameTaken(f"another build of {name} is running; wait for it or choose another --name")
        with folder_lock.held(folder, busy):
            try:
                for left in folder.iterdir():
                    shutil.rmtree(left)
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise CannotWrite(f"{error.filename or data_dir}: {error.strerror}; the build was undone") from None
