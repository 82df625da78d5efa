"""The page on the ledger file: every table is named."""

from __future__ import annotations

from pathlib import Path

from bitwitness.ledger import fsck
from bitwitness.ledger.sqlite import derived_schema, schema

FORMATS = Path(__file__).resolve().parents[2] / "docs" / "formats"


def test_every_table_and_view_is_on_the_page() -> None:
    text = (FORMATS / "ledger-file.md").read_text(encoding="utf-8")
    expected = fsck.expected_definitions()
    names = [name for name, sql in expected.items() if sql.startswith(("CREATE TABLE", "CREATE VIEW"))]
    assert set(names) >= {*derived_schema.TABLE_NAMES, *derived_schema.VIEW_NAMES, "entries"}
    assert [name for name in names if f"`{name}`" not in text] == []
    assert f"0x{schema.APPLICATION_ID:08x}" in text and schema.FORMAT in text
