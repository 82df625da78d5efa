"""Each value of each format replaced by all that it is not: every reader refuses in one line, or takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .readers import FORMATS, refuses_in_one_line


@pytest.mark.parametrize("name", FORMATS)
def test_one_clear_line(name: str, tmp_path: Path) -> None:
    reader = FORMATS[name](tmp_path)
    seen: set[str] = set()
    refused = 0
    for specimen in reader.specimens:
        reader.read(specimen)
        for mutant in reader.mutants(specimen, seen):
            refused += refuses_in_one_line(reader.read, mutant)
    assert refused > 40
