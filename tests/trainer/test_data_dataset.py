"""Building datasets: the bytes, all or nothing, tampering, private data, both tokenizers."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwitness.ledger import jcs, keys, merkle
from bitwitness.ledger.commitments import Commitment, document_digest, document_leaf, tree
from bitwitness.ledger.entry.envelope import open_envelope
from bitwitness.ledger.errors import BitwitnessError
from bitwitness.trainer.data import (
    BuildOptions,
    Built,
    CannotWrite,
    DataError,
    Dataset,
    DatasetDamaged,
    DocumentErased,
    NameTaken,
    NoDocuments,
    NoSuchDataset,
    NotText,
    TokenizerUnusable,
    build,
    dataset_names,
    entry_bytes,
    entry_leaf,
    load_tokenizer,
    record,
)
from bitwitness.trainer.data import shards as shards_module
from bitwitness.trainer.data.index import node_position
from bitwitness.trainer.data.split import is_held_out, parse_fraction

SIGNER = keys.generate("trainer")
TEXTS = {f"{i:03d}.txt": f"document {i}: {'wörd ' * (i % 7)}\n" for i in range(60)}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def made(data: Path, source: Path | str, name: str = "d", *, tokenizer: Path | None = None, **options: Any) -> Built:
    return build(
        data,
        [str(source)],
        BuildOptions(name, **{"shard_bytes": 400, **options}),
        signer=SIGNER,
        tokenizer=load_tokenizer(tokenizer),
        now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )


def digest_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_dataset_is_the_documents_in_path_order(tmp_path: Path, corpus: Path) -> None:
    made(tmp_path / "data", corpus, held_out="0")
    dataset = Dataset.open(tmp_path / "data", "d")
    expected = [number for text in TEXTS.values() for number in (*text.encode(), 256)]
    assert dataset.read(0, dataset.tokens).tolist() == expected
    leaves, start = [], 0
    for number, (name, text) in enumerate(TEXTS.items()):
        source = text.encode()
        tokens = np.array([*source, 256], dtype="<u2").tobytes()
        leaves.append(
            document_leaf(
                count=len(source) + 1,
                start=start,
                source=document_digest(source),
                tokens=document_digest(tokens),
            )
        )
        assert dataset.path(number) == f"corpus/{name}" and dataset.source(number) == source
        start += len(source) + 1
    assert dataset.commitment == tree("dataset/1", leaves)
    assert len(list((tmp_path / "data" / "d").glob("tokens-*.bin"))) == -(-2 * start // 400)
    dataset.check_range(0, dataset.tokens)
    for number in range(len(TEXTS)):
        dataset.check_source(number)


def test_manifest_and_entry(tmp_path: Path, corpus: Path) -> None:
    built = made(tmp_path / "data", corpus, held_out="0", license="CC0-1.0")
    folder = tmp_path / "data" / "d"
    manifest = jcs.parse((folder / "manifest.json").read_bytes())
    assert manifest["documents"] == 60 and manifest["bytes"] == sum(len(t.encode()) for t in TEXTS.values())
    for file in manifest["files"]:
        raw = (folder / file["name"]).read_bytes()
        assert len(raw) == file["bytes"] and hashlib.sha256(raw).hexdigest() == file["sha256"]
    dataset = Dataset.open(tmp_path / "data", "d", expected=built.train.dataset)
    envelope = open_envelope(entry_bytes(dataset))
    envelope.verify(SIGNER.public)
    predicate = envelope.statement["predicate"]
    assert predicate["tokenizer"] == {"name": "bytes-1", "vocabulary": 257}
    assert predicate["license"] == "CC0-1.0" and predicate["time"] == "2026-01-02T03:04:05Z"
    assert "corpus" not in json.dumps(envelope.statement)


def test_the_held_out_part_is_decided_by_content(tmp_path: Path, corpus: Path) -> None:
    (corpus / "copy.txt").write_bytes((corpus / "000.txt").read_bytes())
    built = made(tmp_path / "data", corpus, held_out="0.25")
    assert built.held_out is not None and dataset_names(tmp_path / "data") == ["d", "d.held-out"]
    train, held = Dataset.open(tmp_path / "data", "d"), Dataset.open(tmp_path / "data", "d.held-out")
    fraction = parse_fraction("0.25")
    for dataset, side in ((train, False), (held, True)):
        dataset.check_range(0, dataset.tokens)
        assert all(is_held_out(dataset.source(n), fraction) is side for n in range(dataset.commitment.size))
    assert train.commitment.size + held.commitment.size == 61
    assert 5 <= held.commitment.size <= 30
    # More data never moves a document to the other side.
    kept = {held.source(n) for n in range(held.commitment.size)}
    (corpus / "zzz.txt").write_text("more")
    made(tmp_path / "data", corpus, "e", held_out="0.25")
    more = Dataset.open(tmp_path / "data", "e.held-out")
    assert kept - {b"more"} == {more.source(n) for n in range(more.commitment.size)} - {b"more"}


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("0", True),
        ("0.05", True),
        (".5", True),
        *((bad, False) for bad in ("1", "-0.1", "1/3", "nan", "x", "")),
    ],
)
def test_fractions(text: str, good: bool) -> None:
    if good:
        parse_fraction(text)
    else:
        with pytest.raises(DataError, match="decimal from 0 to below 1"):
            parse_fraction(text)


def test_a_split_that_takes_all_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one")
    with pytest.raises(NoDocuments, match="held-out"):
        made(tmp_path / "data", tmp_path / "one.txt", held_out="0.9999999")
    built = made(tmp_path / "data", tmp_path / "one.txt", held_out="0.0000001")
    assert built.held_out is None and built.notes
    assert dataset_names(tmp_path / "data") == ["d"]


def test_the_same_bytes_whatever_locale_umask_and_order(tmp_path: Path, corpus: Path) -> None:
    made(tmp_path / "data", corpus, held_out="0.1")
    script = (
        "import os, sys; os.umask(int(sys.argv[4], 8));"
        "from pathlib import Path; from datetime import datetime;"
        "from bitwitness.ledger import keys; from bitwitness.trainer.data import *;"
        "build(Path(sys.argv[1]), sys.argv[2:4], BuildOptions('d', shard_bytes=400, held_out='0.1'),"
        " signer=keys.generate('trainer'))"
    )
    other = tmp_path / "elsewhere" / "corpus"
    other.mkdir(parents=True)
    for name in reversed(TEXTS):  # another creation order in the folder
        shutil.copy(corpus / name, other / name)
    for number, (locale, umask) in enumerate([("C", "077"), ("de_DE.ISO-8859-1", "000")]):
        data = tmp_path / f"data{number}"
        environment = {
            "LC_ALL": locale,
            "PATH": os.environ["PATH"],
            "PYTHONUTF8": "0",
            "PYTHONHASHSEED": str(number),
        }
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        arguments = [str(other / "*.txt"), str(other)] if number else [str(other), str(other / "001.txt")]
        subprocess.run([sys.executable, "-c", script, str(data), *arguments, umask], env=environment, check=True)
        expected, found = digest_of(tmp_path / "data" / "d"), digest_of(data / "d")
        for digests in (expected, found):  # the entry holds a time and a key
            digests.pop("entry.json"), digests.pop("held-out/entry.json")
        assert found == expected


def test_max_bytes_stops_before_the_document_that_exceeds_it(tmp_path: Path, corpus: Path) -> None:
    sizes = [len(text.encode()) for text in TEXTS.values()]
    for limit in (sizes[0], sum(sizes[:7]), sum(sizes[:7]) - 1, sum(sizes)):
        name = f"d{limit}"
        built = made(tmp_path / "data", corpus, name, held_out="0", max_bytes=limit)
        expected = next(n for n in range(len(sizes), 0, -1) if sum(sizes[:n]) <= limit)
        assert built.train.documents == expected and built.stopped_at_limit is (expected < len(sizes))
    with pytest.raises(NoDocuments, match="max-bytes"):
        made(tmp_path / "data", corpus, max_bytes=3)


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoDocuments, match="no text files"):
        made(tmp_path / "data", tmp_path / "empty")
    (tmp_path / "empty" / "a.txt").touch()
    with pytest.raises(NoDocuments, match="no text in"):
        made(tmp_path / "data", tmp_path / "empty")
    assert os.listdir(tmp_path / "data") == []


def test_names(tmp_path: Path, corpus: Path) -> None:
    for name in ("", "a/b", "..", ".x", "-x", "x.held-out", "ä", "a" * 56):
        with pytest.raises(DataError, match="name"):
            made(tmp_path / "data", corpus, name)
    made(tmp_path / "data", corpus)
    before = digest_of(tmp_path / "data")
    with pytest.raises(NameTaken, match="already"):
        made(tmp_path / "data", corpus)
    assert digest_of(tmp_path / "data") == before
    with pytest.raises(NoSuchDataset, match=r"no dataset x .*there: d, d\.held-out"):
        Dataset.open(tmp_path / "data", "x")
    with pytest.raises(DataError, match="SPDX"):
        made(tmp_path / "data", corpus, "e", license="no\nlicense")


def test_a_failed_build_leaves_nothing(tmp_path: Path, corpus: Path) -> None:
    (corpus / "999.txt").write_bytes(b"\xff")
    with pytest.raises(NotText):
        made(tmp_path / "data", corpus)
    assert os.listdir(tmp_path / "data") == []


def test_disk_full(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    def write(self: shards_module.FileWriter, data: bytes) -> None:
        nonlocal written
        written += len(data)
        if written > 3000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shards_module.FileWriter, "write", write)
    with pytest.raises(CannotWrite, match="No space left on device; the build was undone"):
        made(tmp_path / "data", corpus)
    assert os.listdir(tmp_path / "data") == []


def test_a_full_device_for_real(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full refuses at flush, after the write seemed to succeed."""
    real_open = os.open

    def open_full(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        full = str(path).endswith("paths.bin")
        return real_open("/dev/full" if full else path, os.O_WRONLY if full else flags, mode, **rest)

    monkeypatch.setattr(os, "open", open_full)
    with pytest.raises(CannotWrite, match="No space left"):
        made(tmp_path / "data", corpus)
    assert os.listdir(tmp_path / "data") == []


def test_what_a_killed_build_left_is_replaced(tmp_path: Path, corpus: Path) -> None:
    left = tmp_path / "data" / ".building-d" / "train"
    left.mkdir(parents=True)
    (left / "tokens-00000.bin").write_text("half")
    assert dataset_names(tmp_path / "data") == []
    made(tmp_path / "data", corpus)
    assert os.listdir(tmp_path / "data") == ["d"]


def test_a_killed_build_leaves_no_dataset(tmp_path: Path, corpus: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path;"
        "from bitwitness.ledger import keys; from bitwitness.trainer.data import *;"
        "build(Path(sys.argv[1]), [sys.argv[2]], BuildOptions('d'), signer=keys.generate('trainer'),"
        " progress=lambda done, of, size: done == 30 and os.kill(os.getpid(), signal.SIGKILL))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "data"), str(corpus)], env=environment)
    assert killed.returncode == -9
    assert dataset_names(tmp_path / "data") == []
    made(tmp_path / "data", corpus)
    assert os.listdir(tmp_path / "data") == ["d"]


def test_a_running_build_of_the_same_name_is_respected(tmp_path: Path, corpus: Path) -> None:
    def again(done: int, of: int, size: int) -> None:
        if done == 5:
            with pytest.raises(NameTaken, match="another build of d is running"):
                made(tmp_path / "data", corpus)

    options = BuildOptions("d")
    build(tmp_path / "data", [str(corpus)], options, signer=SIGNER, progress=again)
    Dataset.open(tmp_path / "data", "d")


def test_a_folder_that_cannot_be_written(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "data").write_text("a file in its place")
    with pytest.raises(CannotWrite, match="undone"):
        made(tmp_path / "data", corpus)


# Tampering ---------------------------------------------------------------------------------------------


def test_every_changed_token_is_found_in_its_range_and_only_there(tmp_path: Path, corpus: Path) -> None:
    made(tmp_path / "data", corpus, held_out="0")
    tokens = Dataset.open(tmp_path / "data", "d").tokens
    for position in range(0, 2 * tokens, 97):
        file = tmp_path / "data" / "d" / f"tokens-{position // 400:05d}.bin"
        original = file.read_bytes()
        changed = bytearray(original)
        changed[position % 400] ^= 1 << (position % 8)
        file.write_bytes(bytes(changed))
        dataset = Dataset.open(tmp_path / "data", "d")
        token = position // 2
        (document,) = dataset.documents_in(token, token + 1)
        with pytest.raises(DatasetDamaged, match=f"document {document} "):
            dataset.check_range(token, token + 1)
        bounds = dataset.index[document]
        if bounds.start:
            dataset.check_range(0, bounds.start)
        if bounds.end < tokens:
            dataset.check_range(bounds.end, tokens)
        file.write_bytes(original)


@pytest.mark.parametrize("file", ["documents.bin", "tree.bin"])
def test_every_changed_byte_of_index_and_tree(tmp_path: Path, corpus: Path, file: str) -> None:
    """What the commitment covers is found; path, line and place of the text are only for people."""
    made(tmp_path / "data", corpus, held_out="0", max_bytes=300)
    path = tmp_path / "data" / "d" / file
    original = path.read_bytes()
    covered = {*range(16), *range(48, 112)} if file == "documents.bin" else set(range(112))
    for position in range(0, len(original)):
        if position % 112 not in covered:
            continue
        changed = bytearray(original)
        changed[position] ^= 0x10
        path.write_bytes(bytes(changed))
        dataset = Dataset.open(tmp_path / "data", "d")
        with pytest.raises(DatasetDamaged):
            for document in range(dataset.commitment.size):
                dataset.check_document(document)
    path.write_bytes(original)
    Dataset.open(tmp_path / "data", "d").check_range(0, 1)


def test_a_forged_dataset_is_another_one(tmp_path: Path, corpus: Path) -> None:
    honest = made(tmp_path / "data", corpus, held_out="0").train.dataset
    shutil.rmtree(tmp_path / "data" / "d")
    (corpus / "005.txt").write_text("forged")
    made(tmp_path / "data", corpus, held_out="0")
    with pytest.raises(DatasetDamaged, match="is not the ledger's"):
        Dataset.open(tmp_path / "data", "d", expected=honest)


def change(manifest: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**manifest, **values}


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: change(m, format="bitwitness/dataset/v9"),
        lambda m: change(m, extra=1),
        lambda m: {key: value for key, value in m.items() if key != "files"},
        lambda m: change(m, tokens=m["tokens"] + 1),
        lambda m: change(m, documents=m["documents"] - 1),
        lambda m: change(m, documents="60"),
        lambda m: change(m, end=257),
        lambda m: change(m, shard_bytes=0),
        lambda m: change(m, shard_bytes=6),
        lambda m: change(m, tokenizer={"name": "words-1", "vocabulary": 257}),
        lambda m: change(m, tokenizer=7),
        lambda m: change(m, files=[{"name": "../../x.bin", "bytes": 1, "sha256": ""}]),
        lambda m: change(m, files=m["files"][1:]),
        lambda m: change(m, dataset={"type": "weights/1", **{k: m["dataset"][k] for k in ("size", "root")}}),
        lambda m: change(m, name="other"),
        lambda m: [],
    ],
)
def test_a_wrong_manifest_is_one_clear_line(tmp_path: Path, corpus: Path, edit: Callable[[Any], Any]) -> None:
    made(tmp_path / "data", corpus, held_out="0")
    path = tmp_path / "data" / "d" / "manifest.json"
    path.write_bytes(jcs.encode(edit(jcs.parse(path.read_bytes()))))
    with pytest.raises(DatasetDamaged, match="dataset d") as caught:
        Dataset.open(tmp_path / "data", "d")
    assert "\n" not in str(caught.value)


def test_files_that_are_cut_missing_or_not_json(tmp_path: Path, corpus: Path) -> None:
    made(tmp_path / "data", corpus, held_out="0")
    folder = tmp_path / "data" / "d"
    for name in ("tokens-00001.bin", "documents.bin", "tree.bin", "paths.bin"):
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(original[:-1])
        with pytest.raises(DatasetDamaged, match=f"{name} has"):
            Dataset.open(tmp_path / "data", "d")
        (folder / name).unlink()
        with pytest.raises(DatasetDamaged, match=f"{name}: No such file"):
            Dataset.open(tmp_path / "data", "d")
        (folder / name).write_bytes(original)
    (folder / "entry.json").write_text("{}")
    with pytest.raises(DatasetDamaged, match="entry"):
        entry_bytes(Dataset.open(tmp_path / "data", "d"))
    (folder / "manifest.json").write_text("not json")
    with pytest.raises(DatasetDamaged, match=r"manifest\.json is not valid"):
        Dataset.open(tmp_path / "data", "d")


def test_an_entry_of_another_dataset_is_refused(tmp_path: Path, corpus: Path) -> None:
    made(tmp_path / "data", corpus)
    made(tmp_path / "data", corpus, "e", held_out="0")
    shutil.copy(tmp_path / "data" / "e" / "entry.json", tmp_path / "data" / "d" / "entry.json")
    with pytest.raises(DatasetDamaged, match="another dataset"):
        entry_bytes(Dataset.open(tmp_path / "data", "d"))


# The ledger --------------------------------------------------------------------------------------------


class Log:
    """As much of a ledger as recording needs."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    def find(self, leaf_hash: bytes) -> int | None:
        hashes = [merkle.leaf_hash(entry) for entry in self.entries]
        return hashes.index(leaf_hash) if leaf_hash in hashes else None

    def append(self, entries: Any) -> None:
        self.entries += entries


def test_entries_are_recorded_once(tmp_path: Path, corpus: Path) -> None:
    made(tmp_path / "data", corpus)
    datasets = [Dataset.open(tmp_path / "data", name) for name in dataset_names(tmp_path / "data")]
    log = Log()
    leaves = record(log, datasets)
    assert leaves == record(log, datasets) == [entry_leaf(dataset) for dataset in datasets]
    assert [merkle.leaf_hash(entry).hex() for entry in log.entries] == leaves


# Private data ------------------------------------------------------------------------------------------


def test_private_data_is_salted_and_readable_only_by_its_owner(tmp_path: Path, corpus: Path) -> None:
    made(tmp_path / "data", corpus, private=True, held_out="0")
    made(tmp_path / "data", corpus, "again", private=True, held_out="0")
    private, again = (Dataset.open(tmp_path / "data", name) for name in ("d", "again"))
    assert private.commitment != again.commitment
    assert len({private.index[n].source for n in range(60)}) == 60
    assert private.index[0].source.hex() != document_digest(private.source(0))
    private.check_range(0, private.tokens)
    for path in (tmp_path / "data" / "d").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
    assert open_envelope(entry_bytes(private)).statement["predicate"]["visibility"] == "private"


def test_an_erased_document_is_told_apart_from_a_damaged_one(tmp_path: Path, corpus: Path) -> None:
    made(tmp_path / "data", corpus, private=True, held_out="0")
    salts = tmp_path / "data" / "d" / "salts.bin"
    data = bytearray(salts.read_bytes())
    data[7 * 32 : 8 * 32] = bytes(32)
    salts.write_bytes(bytes(data))
    dataset = Dataset.open(tmp_path / "data", "d")
    bounds = dataset.index[7]
    dataset.check_range(0, bounds.start)
    with pytest.raises(DocumentErased) as caught:
        dataset.check_range(bounds.end - 1, bounds.end + 1)
    assert caught.value.document == 7


# tokenizer.json ----------------------------------------------------------------------------------------


def bpe(path: Path, special: list[str], **model: Any) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    made_ = tokenizers.Tokenizer(tokenizers.models.BPE(**model))
    made_.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made_.train_from_iterator(TEXTS.values(), trainer)
    made_.save(str(path))
    return path


def test_a_tokenizer_json(tmp_path: Path, corpus: Path) -> None:
    file = bpe(tmp_path / "bpe.json", ["<|endoftext|>"])
    made(tmp_path / "data", corpus, tokenizer=file, held_out="0", shard_bytes=64)
    dataset = Dataset.open(tmp_path / "data", "d")
    assert (tmp_path / "data" / "d" / "tokenizer.json").read_bytes() == file.read_bytes()
    assert dataset.tokenizer.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert dataset.tokenizer.end == 0 and dataset.tokens < dataset.manifest.source_bytes
    assert open_envelope(entry_bytes(dataset)).statement["predicate"]["tokenizer"]["digest"] == dataset.tokenizer.digest
    dataset.check_range(0, dataset.tokens)
    for number, text in enumerate(TEXTS.values()):
        assert dataset.source(number) == text.encode()
        dataset.check_source(number)
        bounds = dataset.index[number]
        # Byte ranges of neighbouring tokens tile the source.
        spans = [dataset.byte_range(number, n, n + 1) for n in range(bounds.count - 1)]
        assert dataset.byte_range(number, bounds.count - 1, bounds.count) == (bounds.size, bounds.size)
        assert spans[0][0] == 0 and spans[-1][1] == bounds.size
        assert all(b[0] <= a[1] <= b[1] for a, b in pairwise(spans))


def test_another_tokenizer_file_is_noticed(tmp_path: Path, corpus: Path) -> None:
    file = bpe(tmp_path / "bpe.json", ["<|endoftext|>"])
    made(tmp_path / "data", corpus, tokenizer=file, held_out="0")
    copy = tmp_path / "data" / "d" / "tokenizer.json"
    copy.write_bytes(copy.read_bytes().replace(b'"lstrip": false', b'"lstrip":  true'))
    with pytest.raises(DatasetDamaged, match=r"tokenizer\.json is not the one"):
        Dataset.open(tmp_path / "data", "d").check_source(0)


def test_paths_that_cannot_be_printed(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    for name in (b"a\xff.txt", b"b\x1b[31m.txt", b"c\n.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path / "c") + b"/" + name)).write_text("x" + str(name))
    made(tmp_path / "data", tmp_path / "c", held_out="0")
    dataset = Dataset.open(tmp_path / "data", "d")
    paths = [dataset.path(n) for n in range(3)]
    assert paths == ["c/a\\xff.txt", "c/b\\x1b[31m.txt", "c/c\\x0a.txt"]


def test_a_tokenizer_without_an_end_token_gets_one_more_number(tmp_path: Path, corpus: Path) -> None:
    file = bpe(tmp_path / "bpe.json", [])
    info = load_tokenizer(file).info
    assert info.end == info.vocabulary - 1
    assert load_tokenizer(file, end_token="a").info.end < info.end
    with pytest.raises(TokenizerUnusable, match="no token"):
        load_tokenizer(file, end_token="<missing>")
    with pytest.raises(TokenizerUnusable, match="goes with --tokenizer"):
        load_tokenizer(None, end_token="a")


def test_tokenizers_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(TokenizerUnusable, match="No such file"):
        load_tokenizer(tmp_path / "none.json")
    for content in (b"", b"{}", b"\xff", b"[]", b'{"model": 5}'):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(TokenizerUnusable, match=r"not a tokenizer\.json") as caught:
            load_tokenizer(tmp_path / "bad.json")
        assert "\n" not in str(caught.value)
    with pytest.raises(TokenizerUnusable, match="dropout"):
        load_tokenizer(bpe(tmp_path / "dropout.json", [], dropout=0.1))
    file = bpe(tmp_path / "bpe.json", [])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizerUnusable, match=r"pip install 'bitwitness\[tokenizers\]'"):
        load_tokenizer(file)


def test_padding_and_truncation_are_off(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    plain = tokenizers.Tokenizer.from_file(str(bpe(tmp_path / "bpe.json", [])))
    plain.enable_truncation(3)
    plain.enable_padding(length=50)
    plain.save(str(tmp_path / "cut.json"))
    text = b"document 1: and so on, at some length"
    assert (
        load_tokenizer(tmp_path / "cut.json").encode(text).tolist()
        == plain.encode(text.decode(), add_special_tokens=False).ids[:0]
        + load_tokenizer(tmp_path / "bpe.json").encode(text).tolist()
    )


# Properties --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=30), st.integers(1, 40))
def test_any_documents_come_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard: int) -> None:
    folder = tmp_path_factory.mktemp("any")
    lines = [json.dumps({"text": text}) for text in texts if not any("\ud800" <= c <= "\udfff" for c in text)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    expected = [json.loads(line)["text"].encode() for line in lines]
    if not expected:
        return
    made(folder / "data", folder / "a.jsonl", held_out="0", shard_bytes=4 * shard)
    dataset = Dataset.open(folder / "data", "d")
    assert [dataset.source(n) for n in range(dataset.commitment.size)] == expected
    assert [dataset.index[n].line for n in range(len(expected))] == list(range(1, len(expected) + 1))
    for token in range(dataset.tokens):
        (number,) = dataset.documents_in(token, token + 1)
        assert dataset.index[number].start <= token < dataset.index[number].end
    dataset.check_range(0, dataset.tokens)


@given(st.integers(1, 300))
def test_the_tree_file_is_in_order_of_completion(size: int) -> None:
    frontier = merkle.Frontier()
    position = 0
    for leaf in range(size):
        for level, index, _hash in frontier.append(leaf.to_bytes(32, "big")):
            assert node_position(level, index) == position
            position += 1


def test_errors_have_exit_codes() -> None:
    assert DatasetDamaged("x").exit_code == 1 and NoDocuments("x").exit_code == 2
    assert issubclass(DocumentErased, BitwitnessError)
    assert Commitment.from_json(tree("dataset/1", [b"x"]).to_json()).size == 1
