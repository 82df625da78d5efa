"""The sequence of windows: order, contents, document resets, where each came from."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwitness.kernels.reference import philox as reference
from bitwitness.ledger import keys
from bitwitness.trainer.data import BuildOptions, Dataset, DatasetDamaged, TooShort, WindowStream, build

SIGNER = keys.generate("trainer")


def dataset(folder: Path, texts: list[str], *, shard_bytes: int = 64) -> Dataset:
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    options = BuildOptions("d", held_out="0", shard_bytes=shard_bytes)
    build(folder / "data", [str(folder / "a.jsonl")], options, signer=SIGNER)
    return Dataset.open(folder / "data", "d")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    texts = [f"document {n} " * (1 + n % 5) for n in range(40)]
    return dataset(tmp_path_factory.mktemp("windows"), texts)


corpora = st.lists(st.text("abc", min_size=1, max_size=20), min_size=2, max_size=12)


@settings(deadline=None, max_examples=60)
@given(corpora, st.integers(1, 24), st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_an_epoch_reads_each_window_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], length: int, seed: int, epoch: int
) -> None:
    data = dataset(tmp_path_factory.mktemp("epoch"), texts)
    if data.tokens <= length:
        with pytest.raises(TooShort, match=f"needs {length + 1}"):
            WindowStream(data, length, seed)
        return
    stream = WindowStream(data, length, seed)
    assert stream.count == (data.tokens - 1) // length
    order = [stream.number(epoch * stream.count + slot) for slot in range(stream.count)]
    assert sorted(order) == list(range(stream.count))
    key = reference.derive_key(seed, "windows", data.commitment.root)
    assert order == [reference.permutation(slot, stream.count, key, epoch) for slot in range(stream.count)]
    covered = np.concatenate([stream.rows([window]).inputs for window in range(stream.count)])
    assert np.array_equal(covered, data.read(0, stream.count * length))


def test_targets_are_the_next_tokens(made: Dataset) -> None:
    stream = WindowStream(made, 16, 7)
    tokens = made.read(0, made.tokens)
    rows = stream.samples(5, 9)
    assert rows.inputs.dtype == rows.targets.dtype == rows.pos.dtype == rows.start.dtype == np.int32
    for row, window in enumerate(rows.windows):
        part = slice(row * 16, row * 16 + 16)
        assert np.array_equal(rows.inputs[part], tokens[window * 16 : window * 16 + 16])
        assert np.array_equal(rows.targets[part], tokens[window * 16 + 1 : window * 16 + 17])
        assert rows.pos[part].tolist() == list(range(16))
        assert set(rows.start[part].tolist()) == {row * 16}
    assert rows.valid == 9 * 16


def test_samples_are_the_same_however_they_are_read(made: Dataset) -> None:
    stream = WindowStream(made, 16, 7)
    whole = stream.samples(0, 3 * stream.count)
    for first, count in ((0, 1), (stream.count - 1, 3), (2 * stream.count + 1, 5)):
        part = WindowStream(made, 16, 7).samples(first, count)
        assert part.windows == whole.windows[first : first + count]
        assert np.array_equal(part.inputs, whole.inputs[first * 16 : (first + count) * 16])
        assert np.array_equal(part.start, whole.start[first * 16 : (first + count) * 16] - first * 16)


def test_the_order_depends_on_seed_and_data_and_epoch(made: Dataset, tmp_path: Path) -> None:
    stream = WindowStream(made, 16, 7)
    order = [stream.number(i) for i in range(stream.count)]
    assert order != [WindowStream(made, 16, 8).number(i) for i in range(stream.count)]
    assert order != [stream.number(stream.count + i) for i in range(stream.count)]
    other = dataset(tmp_path / "other", [f"document {n} " * (1 + n % 5) for n in range(39)] + ["document 38 " * 5])
    shifted = WindowStream(other, 16, 7)
    assert shifted.count == stream.count
    assert order != [shifted.number(i) for i in range(stream.count)]


@settings(deadline=None, max_examples=60)
@given(corpora, st.integers(1, 24))
def test_with_resets_nothing_crosses_a_document(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], length: int
) -> None:
    data = dataset(tmp_path_factory.mktemp("resets"), texts)
    if data.tokens <= length:
        return
    stream = WindowStream(data, length, 0, reset_documents=True)
    owner = np.repeat(np.arange(len(texts)), [len(text) + 1 for text in texts])
    rows = stream.rows(list(range(stream.count)))
    tokens = data.read(0, data.tokens)
    for row in range(len(rows.inputs)):
        start, window = int(rows.start[row]), row // length
        assert window * length <= start <= row
        assert len(set(owner[start : row + 1].tolist())) == 1  # sees its own document only,
        assert start == window * length or owner[start - 1] != owner[row]  # and all of it in the window
        assert rows.pos[row] == row - start
        ends = tokens[row] == 256
        assert rows.targets[row] == (-1 if ends else tokens[row + 1])
    assert rows.valid == int(np.count_nonzero(tokens[: len(rows.inputs)] != 256))


def test_where_names_documents_and_bytes(made: Dataset) -> None:
    stream = WindowStream(made, 16, 7)
    for sample in range(stream.count):
        readings = stream.where(sample)
        text = b""
        for reading in readings:
            source = made.source(reading.document)
            text += source[slice(*reading.bytes)]
            if reading.tokens[1] == made.index[reading.document].count:
                text += b"\n"
            assert reading.line == reading.document + 1 and reading.path == "a.jsonl"
            assert reading.source == made.index[reading.document].source.hex()
        first, last = stream.tokens_of(stream.number(sample))
        assert text == bytes(10 if token == 256 else token for token in made.read(first, last).tolist())
        assert sum(reading.tokens[1] - reading.tokens[0] for reading in readings) == 17


def test_windows_of_a_document(made: Dataset) -> None:
    stream = WindowStream(made, 16, 7)
    for document in range(made.commitment.size):
        expected = [
            window
            for window in range(stream.count)
            if document in {reading.document for reading in stream.where_window(window)}
        ]
        assert list(stream.windows_of(document)) == expected


def test_windows_out_of_range(made: Dataset) -> None:
    stream = WindowStream(made, 16, 7)
    for window in (-1, stream.count):
        with pytest.raises(IndexError):
            stream.rows([window])


def test_a_check_covers_what_the_windows_read_and_no_more(tmp_path: Path) -> None:
    data = dataset(tmp_path, [f"document {n:03d}, all of one length" for n in range(50)], shard_bytes=1 << 20)
    stream = WindowStream(data, 16, 7)
    file = data.folder / "tokens-00000.bin"
    changed = bytearray(file.read_bytes())
    victim = data.index[25]
    changed[2 * victim.start + 8] ^= 1
    file.write_bytes(bytes(changed))
    reads = Counter[bool]()
    for window in range(stream.count):
        fresh = WindowStream(Dataset.open(data.folder.parent, "d"), 16, 7)
        touched = any(reading.document == 25 for reading in fresh.where_window(window))
        reads[touched] += 1
        if touched:
            with pytest.raises(DatasetDamaged, match="document 25 "):
                fresh.check([window])
        else:
            fresh.check([window])
    assert reads[True] >= 2 and reads[False] >= 2


def test_only_what_is_needed_is_opened(tmp_path: Path) -> None:
    """One window of a dataset of many shards maps one shard, or two at a border."""
    data = dataset(tmp_path, ["x" * 50] * 40, shard_bytes=512)
    WindowStream(data, 32, 0).samples(3, 1)
    assert 1 <= data._shards._map.cache_info().currsize <= 2
