"""Which files become documents, in which order, and what is said of bad ones."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwitness.trainer.data import MalformedLine, NotText, SourceUnreadable, patterns
from bitwitness.trainer.data.documents import Document, Skipped, read_documents
from bitwitness.trainer.data.errors import TokenizerUnusable
from bitwitness.trainer.data.patterns import compiled, excluded, included
from bitwitness.trainer.data.sources import select
from bitwitness.trainer.data.tokenizer import load_tokenizer


def labels(*sources: object, **options: object) -> list[str]:
    return [os.fsdecode(file.label) for file in select([str(source) for source in sources], **options).files]


def documents(source: Path, *, skip_invalid: bool = False) -> tuple[list[Document], Skipped]:
    skipped = Skipped()
    return list(read_documents(select([str(source)]).files, skipped, skip_invalid=skip_invalid)), skipped


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_a_folder_gives_its_text_files_in_byte_order(tmp_path: Path) -> None:
    names = [
        "b.txt",
        "a/z.md",
        "a.txt",
        "a-b.txt",
        "A.py",
        "ä.txt",
        "a/b/c.jsonl",
        "x.bin",
        ".hidden.txt",
        ".git/y.txt",
    ]
    random.Random(1).shuffle(names)
    for name in names:
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    expected = ["A.py", "a-b.txt", "a.txt", "a/b/c.jsonl", "a/z.md", "b.txt", "ä.txt"]
    assert labels(tmp_path / "corpus") == [f"corpus/{name}" for name in expected]


def test_labels_do_not_depend_on_where_the_folder_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "corpus", a_dot_txt="x", b__c_dot_txt="y")
    monkeypatch.chdir(tmp_path)
    relative = labels("corpus")
    assert relative == ["corpus/a.txt", "corpus/b/c.txt"] == labels(tmp_path / "corpus") == labels("./corpus/")
    monkeypatch.chdir(tmp_path / "corpus" / "b")
    assert labels("../../corpus") == relative
    assert labels("../a.txt", "c.txt") == ["a.txt", "c.txt"]


def test_a_file_is_taken_once_whatever_names_it(tmp_path: Path) -> None:
    write(tmp_path / "corpus", a_dot_txt="x")
    assert labels(tmp_path / "corpus", tmp_path / "corpus" / "a.txt", tmp_path / "corpus/*.txt") == ["corpus/a.txt"]


def test_the_order_of_the_arguments_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, p__1_dot_txt="x", q__2_dot_txt="y")
    monkeypatch.chdir(tmp_path)
    assert labels("p", "q") == labels("q", "p") == ["p/1.txt", "q/2.txt"]


def test_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, d__a_dot_txt="x", d__e__b_dot_txt="y", d__e__c_dot_md="z")
    monkeypatch.chdir(tmp_path)
    assert labels("d/**/*.txt") == ["d/a.txt", "d/e/b.txt"]
    assert labels("d/*", exclude=("c.md",)) == ["d/a.txt", "d/e/b.txt"]
    with pytest.raises(SourceUnreadable, match="matches no file"):
        select(["d/*.zip"])


def test_links_are_not_followed_out_of_the_source(tmp_path: Path) -> None:
    write(tmp_path, corpus__a_dot_txt="x", secret__key_dot_txt="no")
    (tmp_path / "corpus" / "link.txt").symlink_to(tmp_path / "secret" / "key.txt")
    (tmp_path / "corpus" / "folder").symlink_to(tmp_path / "secret")
    (tmp_path / "corpus" / "loop").symlink_to(tmp_path / "corpus")
    selection = select([str(tmp_path / "corpus")])
    assert [file.label for file in selection.files] == [b"corpus/a.txt"]
    assert selection.links_skipped == 1
    assert labels(tmp_path / "corpus" / "*.txt") == ["corpus/a.txt"]


def test_a_link_named_by_the_user_is_followed(tmp_path: Path) -> None:
    write(tmp_path, real__a_dot_txt="x")
    (tmp_path / "corpus").symlink_to(tmp_path / "real")
    assert labels(tmp_path / "corpus") == ["corpus/a.txt"]


def test_include_and_exclude(tmp_path: Path) -> None:
    root = write(tmp_path / "s", a_dot_py="x", b_dot_txt="x", t__c_dot_py="x", t__u__d_dot_py="x", e_dot_log="x")
    assert labels(root, include=("*.py",)) == ["s/a.py", "s/t/c.py", "s/t/u/d.py"]
    assert labels(root, include=("*.py",), exclude=("u",)) == ["s/a.py", "s/t/c.py"]
    assert labels(root, include=("t/*.py",)) == ["s/t/c.py"]
    assert labels(root, include=("t/**",)) == ["s/t/c.py", "s/t/u/d.py"]
    assert labels(root, include=("**/*.py",)) == ["s/a.py", "s/t/c.py", "s/t/u/d.py"]
    assert labels(root, exclude=("t",)) == ["s/a.py", "s/b.txt"]
    assert labels(root, include=("*.log",)) == ["s/e.log"]
    assert labels(root / "e.log") == ["e.log"]


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "a/b.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("a/**/c.py", "a/c.py", True),
        ("a/**/c.py", "a/b/b/c.py", True),
        ("?.py", "ab.py", False),
        ("[ab].py", "b.py", True),
        ("[!ab].py", "b.py", False),
        ("[a-c].py", "b.py", True),
        ("[z-a].py", "[z-a].py", True),
        ("[", "[", True),
        ("/a.py", "a.py", True),
        ("*.PY", "a.py", False),
    ],
)
def test_patterns(pattern: str, path: str, expected: bool) -> None:
    assert included(path, (pattern,)) is expected


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_text_is_a_pattern(pattern: str, path: str) -> None:
    compiled(pattern)
    assert excluded(path, (pattern,)) in (True, False)


def test_stdlib_is_this_pythons_library_without_its_tests() -> None:
    found = labels("STDLIB", include=("*.py",))
    assert {"STDLIB/abc.py", "STDLIB/json/decoder.py"} <= set(found)
    assert not [label for label in found if {"test", "tests", "site-packages"} & set(label.split("/"))]


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match=r"nowhere: no such file or folder"):
        select([str(tmp_path / "nowhere")])
    with pytest.raises(SourceUnreadable, match=r"x: File name too long"):
        select(["x" * 5000])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceUnreadable, match="not a regular file"):
        select([str(tmp_path / "pipe")])
    assert labels(tmp_path) == []


def test_text_is_kept_byte_for_byte(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbfone\r\ntwo\x00\xf0\x9f\x98\x80"
    found, _ = documents(write(tmp_path / "c", a_dot_txt=raw))
    assert found == [Document(b"c/a.txt", 0, raw)]


def test_text_that_is_not_utf8_is_named_with_its_offset(tmp_path: Path) -> None:
    root = write(tmp_path / "c", a_dot_txt=b"good \xff bad", b_dot_txt="fine")
    with pytest.raises(NotText, match=r"c/a\.txt: not UTF-8 text \(byte 5\)") as caught:
        documents(root)
    assert caught.value.offset == 5 and "\n" not in str(caught.value)
    found, skipped = documents(root, skip_invalid=True)
    assert [document.path for document in found] == [b"c/b.txt"]
    assert skipped.invalid == 1 and skipped.first_invalid.endswith("(byte 5)")


def test_jsonl(tmp_path: Path) -> None:
    lines = [
        json.dumps({"text": "eins\n"}),
        "",
        json.dumps({"id": 7, "text": "zwö"}),
        json.dumps({"text": ""}),
    ]
    found, skipped = documents(write(tmp_path / "c", a_dot_jsonl="\ufeff" + "\n".join(lines)))
    assert found == [Document(b"c/a.jsonl", 1, b"eins\n"), Document(b"c/a.jsonl", 3, "zwö".encode())]
    assert skipped.empty == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "open', "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"body": "x"}', "no field `text`"),
        ('{"text": 5}', "no field `text`"),
        ('{"text": "a", "text": "b"}', "occurs twice"),
        ('{"text": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "not valid JSON"),
        ('{"text": "a", "n": ' + "9" * 5000 + "}", "line 2"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    root = write(tmp_path / "c", a_dot_jsonl='{"text": "first"}\n' + line + '\n{"text": "third"}\n')
    with pytest.raises(MalformedLine, match=r"a\.jsonl, line 2: .*") as caught:
        documents(root)
    assert reason in str(caught.value) and "\n" not in str(caught.value) and caught.value.line == 2
    found, skipped = documents(root, skip_invalid=True)
    assert [document.source for document in found] == [b"first", b"third"]
    assert skipped.invalid == 1


def test_a_jsonl_line_that_is_not_utf8(tmp_path: Path) -> None:
    root = write(tmp_path / "c", a_dot_jsonl=b'{"text": "first"}\n{"text": "\xff"}\n')
    with pytest.raises(NotText, match=r"byte 28"):
        documents(root)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "c", a_dot_txt="x")
    files = select([str(root)]).files
    (root / "a.txt").unlink()
    with pytest.raises(SourceUnreadable, match=r"a\.txt: No such file"):
        list(read_documents(files, Skipped()))


def test_many_stars_take_no_longer_than_the_path_times_the_pattern() -> None:
    path = "a" * 2000 + "/" + "b" * 200
    begun = time.monotonic()
    for pattern in ("*" * 60 + "c", "*a" * 60 + "c", "**/" * 40 + "c", "/" + "**a" * 60 + "/c", "*b" * 60 + "?c"):
        assert not included(path, [pattern])
    assert included(path, ["**a" * 40 + "/" + "*b" * 40])
    assert time.monotonic() - begun < 10


def test_patterns_with_many_stars_match_as_those_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same patterns, followed place by place and through Python's matcher."""
    draw = random.Random(5)
    parts = ["a", "b", "/", "*", "*", "**", "**/", "?", "[ab]", "[!a]", "[", ".", "\n", "[b-a]"]
    answers = set()
    for _ in range(3000):
        pattern = "".join(draw.choices(parts, k=draw.randint(1, 7)))
        path = "".join(draw.choices("aab/.\n", k=draw.randint(0, 8)))
        found = []
        for stars in (0, 99):
            monkeypatch.setattr(patterns, "_MOST_STARS", stars)
            patterns.compiled.cache_clear()
            found.append(patterns.compiled(pattern).fullmatch(path))
        assert found[0] == found[1], (pattern, path)
        answers.add(found[0])
    assert answers == {True, False}
    patterns.compiled.cache_clear()


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_tokenizer_that_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tokenizer.json"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(TokenizerUnusable, match="not a regular file"):
        load_tokenizer(path)
