"""docs/cli.md is what the commands say, and every command has an example that names it."""

from __future__ import annotations

import re
from pathlib import Path

from bitwitness.ledger.cli import docs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    assert docs.main(["--check", str(PAGE)]) == 0, "run `make docs`"


def test_every_command_has_an_example_and_json() -> None:
    sections = re.findall(r"## `(ledger [^`]+)`\n\n```text\n(.*?)```", docs.page(), re.DOTALL)
    assert len(sections) > 15
    for name, text in sections:
        if "Commands:" in text:
            continue
        assert f"Example: {name}" in text, name
        assert not re.search("Example: .*Example:", text), name  # each on a line of its own
        assert "--json" in text or name in ("ledger serve", "ledger witness serve"), name
        assert "--project" in text or name == "ledger init", name


def test_no_command_takes_a_secret_in_its_arguments() -> None:
    """Other users of the machine see them. A passphrase comes from a prompt, a file or a variable."""
    options = set(re.findall(r"--[a-z][a-z-]*", docs.page()))
    secret = {name for name in options if re.search("pass|secret", name)}
    assert "--passphrase-file" in options and secret == {"--passphrase-file"}


def test_a_stale_page_is_told(tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    assert docs.main(["--check", str(page)]) == 1
    assert docs.main([str(page)]) == 0
    assert docs.main(["--check", str(page)]) == 0
    page.write_text(page.read_text() + "x")
    assert docs.main(["--check", str(page)]) == 1
