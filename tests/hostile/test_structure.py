"""Each value of each format replaced by all that it is not: every reader refuses in one line, or takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitwitness.kernels.errors import KernelError
from bitwitness.ledger.errors import BitwitnessError

from .readers import FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_one_clear_line(name: str, tmp_path: Path) -> None:
    reader = FORMATS[name](tmp_path)
    seen: set[str] = set()
    refused = 0
    for specimen in reader.specimens:
        reader.read(specimen)
        for mutant in reader.mutants(specimen, seen):
            try:
                reader.read(mutant)
            except (BitwitnessError, KernelError) as error:
                refused += 1
                assert str(error).isprintable() and 0 < len(str(error)) < 600, mutant[:500]
            except Exception as error:
                raise AssertionError(f"{type(error).__name__} for {mutant[:500]!r}") from error
    assert refused > 40
