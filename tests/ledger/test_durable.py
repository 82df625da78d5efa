"""Files that appear whole or not at all."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitwitness.ledger import keys
from bitwitness.ledger.files import durable
from bitwitness.ledger.witnessing.witness import Witness, WitnessStateError

from . import small_ledger as small


def _broken() -> Iterator[bytes]:
    yield b"half"
    raise OSError("the source ended")


def test_a_new_file_is_made_of_its_parts_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert durable.write_new(path, iter([b"one", memoryview(b"two")]), mode=0o600) == 6
    assert path.read_bytes() == b"onetwo"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        durable.write_new(path, b"other")
    assert path.read_bytes() == b"onetwo"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        durable.write_new(tmp_path / "link", b"data")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("write", [durable.write_new, durable.replace])
def test_an_error_leaves_nothing_behind(tmp_path: Path, write: object) -> None:
    assert callable(write)
    with pytest.raises(OSError, match="the source ended"):
        write(tmp_path / "file", _broken())
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole_and_a_leftover_of_the_callers_name_is_taken_over(tmp_path: Path) -> None:
    path, part = tmp_path / "file", tmp_path / "file.part"
    path.write_bytes(b"old")
    part.write_bytes(b"what a machine that stopped left")
    with pytest.raises(OSError, match="the source ended"):
        durable.replace(path, _broken(), temporary=part)
    assert path.read_bytes() == b"old"
    assert durable.replace(path, b"new", temporary=part) == 3
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"new"]


def test_a_full_disk_is_told_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="file") as caught:
            durable.write_new(path, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(path) and not path.exists()


def test_a_witness_says_that_its_disk_may_be_full(tmp_path: Path) -> None:
    signer, logs = keys.Signer.from_seed("witness", bytes([7]) * 32), [small.TRUST.log]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(WitnessStateError, match=r"w\.db: disk I/O error; the disk may be full"):
            Witness("w.example", signer, logs, tmp_path / "w.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
