"""Every page of docs/formats has a worked example, and every example runs and says what the code does."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

FORMATS = Path(__file__).resolve().parents[1] / "docs" / "formats"
PAGES = sorted(path.stem for path in FORMATS.glob("*.md") if path.stem != "README")


def test_the_index_has_every_page_once() -> None:
    text = (FORMATS / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[([a-z-]+)\]\(\1\.md\) \|", text, re.MULTILINE)) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_the_page_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FORMATS.parents[1])  # some examples read files of the repository
    result = doctest.testfile(str(FORMATS / f"{page}.md"), module_relative=False, encoding="utf-8")
    assert result.attempted > 3 and result.failed == 0
