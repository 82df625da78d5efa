"""Data in very many files: read a few at a time, whatever the limit of open files is."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bitwitness.trainer.data.ranges import BLOCK, RangedFile, RangedShards
from bitwitness.trainer.data.shards import MOST_MAPPED, ShardReader, ShardWriter

FILES, EACH = 300, 8
DATA = np.arange(FILES * EACH // 4, dtype=np.int32).tobytes()


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Room for as many files as stay mapped, and a few more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + MOST_MAPPED + 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_folder_of_many_files(tmp_path: Path, few_descriptors: None) -> None:
    writer = ShardWriter(tmp_path, "tokens", EACH)
    writer.write(DATA)
    assert len(writer.close()) == FILES
    reader = ShardReader(tmp_path, "tokens", len(DATA), EACH)
    kept = [reader.read(first, first + EACH) for first in range(0, 10 * EACH, EACH)]
    for _ in range(2):
        assert reader.read(0, len(DATA)).tobytes() == DATA
    assert b"".join(part.tobytes() for part in kept) == DATA[: 10 * EACH]
    assert [reader.read(first, first + 3).tobytes() for first in (7, 2000)] == [DATA[7:10], DATA[2000:2003]]


def test_many_files_elsewhere(tmp_path: Path, few_descriptors: None) -> None:
    asked: list[tuple[int, int, int]] = []

    def file(number: int) -> RangedFile:
        def fetch(first: int, count: int) -> bytes:
            asked.append((number, first, count))
            return DATA[number * EACH + first :][:count]

        return RangedFile(tmp_path / "kept" / f"{number}", EACH, fetch)

    shards = RangedShards([file(number) for number in range(FILES)], EACH)
    for _ in range(2):
        assert shards.read(0, len(DATA)).tobytes() == DATA
    assert asked == [(number, 0, EACH) for number in range(FILES)]  # once each
    shards.forget(EACH, 2 * EACH)
    assert shards.read(0, 3 * EACH).tobytes() == DATA[: 3 * EACH] and asked[FILES:] == [(1, 0, EACH)]


@pytest.mark.parametrize("stays_open", [False, True])
def test_what_was_fetched_is_fetched_once_and_kept(tmp_path: Path, stays_open: bool) -> None:
    data, asked = bytes(range(256)) * (3 * BLOCK // 256) + b"end", []

    def fetch(first: int, count: int) -> bytes:
        asked.append(first)
        return data[first : first + count]

    file = RangedFile(tmp_path / "f", len(data), fetch, stays_open=stays_open)
    assert file.read(BLOCK + 5, 10) == data[BLOCK + 5 : BLOCK + 15] and asked == [BLOCK]
    assert file.read(0, len(data) + 9) == data and asked == [BLOCK, 0, 2 * BLOCK]
    file.close()
    again = RangedFile(tmp_path / "f", len(data), fetch, stays_open=stays_open)
    assert again.read(0, len(data)) == data and len(asked) == 3
    again.close()
    other = RangedFile(tmp_path / "f", len(data) - 1, fetch)  # another size: of another time
    assert other.read(0, 4) == data[:4] and len(asked) == 4
