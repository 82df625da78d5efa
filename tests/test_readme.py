"""What README tells a newcomer to type is typed here, on real text, against real parts."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def readme_commands() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("## A first run, by hand")[1].split("\n## ")[0]
    return [line.strip() for line in block.splitlines() if line.startswith("    ledger ")]


def test_readme_and_demo_tell_the_same() -> None:
    demo = (ROOT / "docs" / "demo.sh").read_text(encoding="utf-8").replace("cd demo", "")
    for command in readme_commands():
        command = command.removesuffix(" && cd demo")
        assert command in demo, f"the demo does not run: {command}"


def test_no_page_promises_a_table_that_is_empty() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert re.search(r"<!-- operators -->\n\s*[^<\s]", text)


def test_every_linked_page_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_the_demo_runs_from_data_to_proof(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(ROOT / "docs" / "demo.sh")],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    held_out = re.search(r"held-out ([0-9.]+) nats/token", done.stdout)
    assert held_out is not None and float(held_out[1]) < 2.6, done.stdout
    assert re.search(r"weights.*model\.\S+", done.stdout.split("One flipped byte")[1]), "the tensor is named"
    assert "GET /: 200" in done.stdout
