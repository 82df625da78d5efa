"""The published formats say what the code does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bitwitness.ledger import jcs
from bitwitness.registry.bundles import bundle

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


def test_bundles_keep_to_the_schema(registered: Registered) -> None:
    """By a validator that is not ours: what is published is what is written and what the gate takes."""
    validator = jsonschema.Draft202012Validator(json.loads((FORMATS / "provenance.schema.json").read_text()))
    validator.check_schema(validator.schema)
    held = json.loads((registered.folder / bundle.FILE_NAME).read_bytes())
    golden = FORMATS.parents[1] / "tests" / "golden" / "model-1" / "golden" / bundle.FILE_NAME
    for value in (held, json.loads(golden.read_bytes())):
        assert list(validator.iter_errors(value)) == []
    wrong: list[dict[str, Any]] = [
        {key: value for key, value in held.items() if key != "checkpoint"},
        {**held, "more": 1},
        {**held, "format": "bitwitness/provenance/2"},
        {**held, "entries": [{**held["entries"][0], "index": -1}]},
        {**held, "entries": [{**held["entries"][0], "proof": ["AB" * 32]}]},
        {**held, "weights": [{**held["weights"][0], "name": "a b"}]},
    ]
    for value in wrong:
        assert list(validator.iter_errors(value))
        with pytest.raises(bundle.BundleError):
            bundle.parse(jcs.encode(value))


def test_every_check_is_described(registered: Registered) -> None:
    text = (FORMATS / "provenance.md").read_text(encoding="utf-8")
    for name in registered.verdict():
        assert f"`{name}`" in text, name
    for name in bundle.Provenance.model_fields:
        assert f"`{name}`" in text, name
