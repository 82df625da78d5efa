"""Files that a command writes where a person says: whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from bitwitness.ledger.errors import BitwitnessError
from bitwitness.ledger.files.user_files import write_file


def test_what_was_there_stays_until_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_file(path, "old")

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(BitwitnessError, match=r"status\.json: no space left on device$"):
                write_file(path, "new")
        assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["status.json"]
    with path.open() as reader:  # who reads meanwhile reads what was there
        write_file(path, b"new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_mode_links_and_devices_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_file(link, "new")
    assert link.is_symlink() and path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o640
    write_file(Path(os.devnull), "nowhere")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    for path, text in ((tmp_path / "none" / "x", "a"), (tmp_path, "a"), (tmp_path / "x", "\ud800"), (Path("\0"), "a")):
        with pytest.raises(BitwitnessError) as error:
            write_file(path, text)
        assert "\n" not in str(error.value)
    os.symlink(tmp_path, tmp_path / "folder")
    with pytest.raises(BitwitnessError, match=r"/folder: is a directory$"):  # as it was named
        write_file(tmp_path / "folder", "a")
