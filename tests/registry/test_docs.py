"""The published formats say what the code does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitwitness.registry import bundle

from .conftest import Registered

FORMATS = Path(__file__).parents[2] / "docs" / "formats"


def test_the_json_schema_is_that_of_the_code(request: pytest.FixtureRequest) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://bitwitness.dev/provenance/v1/schema",
        **bundle.Provenance.model_json_schema(),
    }
    text = json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    path = FORMATS / "provenance.schema.json"
    if request.config.getoption("--update-goldens"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_every_check_is_described(registered: Registered) -> None:
    text = (FORMATS / "provenance.md").read_text(encoding="utf-8")
    for name in registered.verdict():
        assert f"`{name}`" in text, name
    for name in bundle.Provenance.model_fields:
        assert f"`{name}`" in text, name
