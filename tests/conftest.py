"""Shared by all tests: golden files that change only by --update-goldens, and the public test vectors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples on every machine and every run: a red test can be met again.
settings.register_profile("bitwitness", deadline=None, derandomize=True)
settings.load_profile("bitwitness")

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="rewrite tests/golden with what the code computes now; review every changed line",
    )


class Golden:
    """One golden file, a JSON object: check(key, value) compares, or records with --update-goldens."""

    def __init__(self, path: Path, update: bool) -> None:
        self.path, self.update = path, update
        self.values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def check(self, key: str, value: Any) -> None:
        if self.update:
            self.values[key] = value
            return
        assert key in self.values, f"{self.path.name} has no {key!r}; run pytest --update-goldens and review"
        assert value == self.values[key], f"{key} differs from {self.path.name}"

    def save(self) -> None:
        text = json.dumps(self.values, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        self.path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Golden]]:
    """golden("ledger-1.json") -> the golden file of that name, shared by the session."""
    update = bool(request.config.getoption("--update-goldens"))
    files: dict[str, Golden] = {}
    yield lambda name: files.setdefault(name, Golden(GOLDEN / name, update))
    if update:
        for file in files.values():
            file.save()


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of public test vectors; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("BITWITNESS_VECTORS", ROOT.parent / "shared" / "vectors"))
    if not folder.is_dir():
        pytest.skip(f"no public test vectors at {folder}; set BITWITNESS_VECTORS")
    return folder
